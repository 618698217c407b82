"""Every Lua file opens with its contract, and the contract is true of its text."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("libs/**/lua/*.lua"), *ROOT.glob("services/**/lua/*.lua")])
INCLUDED = {
    name for path in FILES for name in re.findall(r"^--@include (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
}
SCRIPTS = [path for path in FILES if path.stem not in INCLUDED]


def named(path):
    return str(path.relative_to(ROOT))


def header(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next((at for at, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return "\n".join(line.removeprefix("--") for line in lines[:end] if not line.startswith("--@include"))


def code(path):
    return re.sub(r"--.*", "", path.read_text(encoding="utf-8"))


def section(path, name):
    """One part of the header: from its name to the next name in capitals."""
    found = re.search(rf"^ {name}\b(.*?)(?=^ (?:KEYS|ARGV|RETURNS|INVARIANT|Atomic)\b|\Z)", header(path), re.M | re.S)
    return found[1] if found else ""


def told(path, name):
    """The highest number that the header gives, and whether more of unknown count follow."""
    text = section(path, name)
    numbers = [int(number) for number in re.findall(r"(?:^|\s)(?:\d{1,2}-)?(\d{1,2})(?=…|\.\.|,| |$)", text, re.M)]
    return max(numbers, default=0), bool(re.search(r"…|\.\.\.|then|and on", text))


def used(path, name):
    return max((int(number) for number in re.findall(rf"\b{name}\[(\d+)\]", code(path))), default=0)


def test_there_are_scripts():
    assert len(SCRIPTS) > 10


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_a_script_opens_with_its_contract(path):
    text = header(path)
    for part in ("KEYS", "ARGV", "RETURNS", "INVARIANT"):
        assert re.search(rf"^ {part}\b", text, re.M), part
    assert re.search(r"[Aa]tomic", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
@pytest.mark.parametrize("name", ["KEYS", "ARGV"])
def test_the_header_counts_what_the_script_uses(path, name):
    highest, more = told(path, name)
    assert used(path, name) <= highest, "used, and not in the header"
    if not more:
        calls = re.findall(r"outbox_add\([^()]*(?:\([^()]*\)[^()]*)*, (\d+)\)", code(path))
        reached = max([used(path, name), *(int(call) for call in calls if name == "ARGV")])
        assert highest == reached, "in the header, and not used"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_key_arrives_in_keys(path):
    text = code(path)
    assert "tk:" not in text
    assert not re.search(r"redis\.p?call\('\w+', *(?:ARGV\[|'[^']+' *\.\.)", text)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_script_is_named_verb_noun_and_uses_no_randomness_or_blocking(path):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", path.stem)
    assert not re.search(r"math\.random|'RANDOMKEY'|'KEYS'|'SCAN'|'BLPOP'|'FLUSH", code(path))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_an_include_exists(path):
    for name in re.findall(r"^--@include (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        assert (ROOT / "libs/runtime/lua" / f"{name}.lua").exists()
