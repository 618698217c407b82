"""The question, worded by the runtime over the stored arguments (design §3.3).

Every argument is shown in full: where the tool's `ask` template does not show one, it is appended. Characters that
cannot be seen, or that reorder what is seen, are shown by their number, `\\u{202E}`. Nothing else goes in: no word of
the event, none of the planner. The text is plain; whoever shows it in markup escapes it.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from libs.contracts.application import Tool
from libs.contracts.session import Step
from libs.contracts.templates import TemplateError, render

MINUTE_MS = 60_000
MANY_BLANKS = 5
_OPEN, _NUMBERED, _CLOSE = "\ue000", "\ue001", "\ue002"
"""Private-use characters around a value in a trial rendering. Values cannot hold them: they are made visible first."""
_MARK = re.compile(f"{_OPEN}\\d+{_NUMBERED}|{_CLOSE}")
_BLANKS = re.compile(r"^ +| +$|  +")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORD = re.compile(r"[^\W\d_]+")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LOOK_ALIKE_SCRIPTS = frozenset({"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC"})
# Default-ignorable or blank, although their category is a letter's, a mark's or a symbol's (DerivedCoreProperties).
_HIDDEN_RANGES = (
    (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF),
)  # fmt: skip


def question(
    action: str, steps: Sequence[Step], tools: Mapping[str, Tool], *, asked_by: str | None, ttl_ms: int,
    written_by: str = "",
) -> str:  # fmt: skip
    """The question about these steps. `asked_by` is the source that asks, None where the user's own turn does;
    `written_by` who wrote what that source signed, where it says so.

    `ttl_ms` is the time to answer, in milliseconds. Each step's tool must be in `tools`.
    """
    asked = "; then ".join(_step(step, tools[step.tool]) for step in steps)
    return frame(action, asked, asked_by=asked_by, ttl_ms=ttl_ms, written_by=written_by)


def frame(action: str, asked: str, *, asked_by: str | None, ttl_ms: int, written_by: str = "") -> str:
    """What stands around the steps: the id to answer with, who asks, and the time there is.

    Who wrote it is somebody else's choice of a name: `is_author` holds it to a name, and here no character hides.
    """
    source = "" if asked_by is None else f" (from {asked_by})"
    if asked_by is not None and written_by:
        source = f" (signed by {asked_by}, written by {visible(written_by)})"
    return f"{action}{source}: {asked}. Approve within {ttl_ms / MINUTE_MS:g} minutes?"


def visible(text: str) -> str:
    """Text in which each character can be seen: what is hidden, blank or reorders becomes `\\u{…}`.

    A run of blanks is shown with its length (`\\u{20*5000}`), so that nothing can be pushed out of sight. A letter
    of another script within a Latin word is shown by its number too. Unambiguous: a literal `\\u{` is escaped.
    """
    return _escape(text.replace("\\u{", "\\u{5C}u{"))


def quoted(text: str) -> str:
    """Text between quotes, in which no character can be hidden and no quote can end it early."""
    return '"' + _escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def canonical_text(value: Any) -> str:
    """A JSON value in canonical order, every character visible."""
    match value:
        case str():
            return quoted(value)
        case dict():
            return "{" + ",".join(f"{quoted(key)}:{canonical_text(value[key])}" for key in sorted(value)) + "}"
        case list():
            return "[" + ",".join(canonical_text(item) for item in value) + "]"
        case _:
            return orjson.dumps(value).decode()


def _escape(text: str) -> str:
    mixed = _WORD.sub(lambda word: _unmixed(word[0]), text)
    blanks = _BLANKS.sub(lambda run: _blanks(len(run[0])), mixed)
    return "".join(_number(char) if _hidden(char) else char for char in blanks)


def _number(char: str) -> str:
    return f"\\u{{{ord(char):X}}}"


def _blanks(count: int) -> str:
    return "\\u{20}" * count if count < MANY_BLANKS else f"\\u{{20*{count}}}"


def _hidden(char: str) -> bool:
    if char == " ":
        return False
    category = unicodedata.category(char)
    if category in _HIDDEN_CATEGORIES or category == "Zs":
        return True
    return any(first <= ord(char) <= last for first, last in _HIDDEN_RANGES)


def _unmixed(word: str) -> str:
    """`pаypal` with a Cyrillic а reads like another word: within a Latin word such letters show their number."""
    if word.isascii() or not any(_script(char) == "LATIN" for char in word):
        return word
    return "".join(_number(char) if _script(char) in _LOOK_ALIKE_SCRIPTS else char for char in word)


def _script(char: str) -> str:
    return unicodedata.name(char, "").partition(" ")[0]


def _step(step: Step, tool: Tool) -> str:
    """One step as a phrase."""
    if tool.ask is not None:
        try:
            return _by_template(tool.ask, step.args, tool.units)
        except TemplateError:
            pass  # a template that does not fit these arguments: the plain form shows them all
    return f"run {step.tool} with {canonical_text(step.args)}"


def _by_template(template: str, args: Mapping[str, Any], units: Mapping[str, str]) -> str:
    shown_args = {name: _visible_leaves(value) for name, value in args.items()}
    text = render(template, shown_args)
    trials = {name: _trial(template, shown_args, name, text) for name in sorted(args)}
    said = _with_units(text, {name: trial for name, trial in trials.items() if trial and name in units}, units)
    rest = [_appended(name, args[name], units.get(name)) for name, trial in trials.items() if trial is None]
    phrase = " ".join(said.split())
    return f"{phrase} [with {', '.join(rest)}]" if rest else phrase


def _visible_leaves(value: Any) -> Any:
    match value:
        case str():
            return visible(value)
        case dict():
            return {key: _visible_leaves(item) for key, item in value.items()}
        case list():
            return [_visible_leaves(item) for item in value]
        case _:
            return value


def _trial(template: str, args: Mapping[str, Any], name: str, text: str) -> str | None:
    """The rendering with one argument's parts marked, if it shows that each of them is in `text` in full.

    Marks tell where a value ends up, whatever the template does to it. A template that decides by the value, cuts it
    or counts on its type renders something else with marks: then the argument counts as not shown.
    """
    parts: list[str] = []
    marked = _marked(args[name], parts)
    if not parts or any(not part for part in parts):
        return None
    try:
        trial = render(template, {**args, name: marked})
    except TemplateError:
        return None
    complete = all(f"{_OPEN}{index}{_NUMBERED}{part}{_CLOSE}" in trial for index, part in enumerate(parts))
    return trial if complete and _MARK.sub("", trial) == text else None


def _marked(value: Any, parts: list[str]) -> Any:
    match value:
        case dict():
            return {key: _marked(item, parts) for key, item in value.items()}
        case list():
            return [_marked(item, parts) for item in value]
        case _:
            parts.append(value if isinstance(value, str) else render("{{ value }}", {"value": value}))
            return f"{_OPEN}{len(parts) - 1}{_NUMBERED}{parts[-1]}{_CLOSE}"


def _with_units(text: str, trials: Mapping[str, str], units: Mapping[str, str]) -> str:
    """The text with the unit behind each value that has one, unless the template says it there itself."""
    places = [(end, units[name]) for name, trial in trials.items() for end in _ends(trial)]
    for end, unit in sorted(places, reverse=True):
        if not _says(unit, text[:end], text[end:]):
            text = f"{text[:end]} {unit}{text[end:]}"
    return text


def _ends(trial: str) -> Iterable[int]:
    """Where marked values end, counted in the text without marks."""
    for match in re.finditer(_CLOSE, trial):
        yield len(_MARK.sub("", trial[: match.start()]))


def _says(unit: str, before: str, after: str) -> bool:
    follows = re.match(rf"\s*{re.escape(unit)}(?!\w)", after, re.IGNORECASE)
    precedes = re.search(rf"(?<!\w){re.escape(unit)}\s*\S*$", before, re.IGNORECASE)
    return bool(follows or precedes)


def _appended(name: str, value: Any, unit: str | None) -> str:
    label = name if _NAME.fullmatch(name) else quoted(name)
    return f"{label}={canonical_text(value)}" + (f" {unit}" if unit else "")
