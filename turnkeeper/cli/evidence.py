"""`turnkeeper why`, `verify`: from an effect back to the bytes, each link checked."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer
from pydantic import ValidationError

from libs.contracts.evidence import Head
from turnkeeper.cli.options import STATE, Json, SessionName, State, client
from turnkeeper.client import Client, ClientError
from turnkeeper.evidence import archive, source, story
from turnkeeper.evidence.source import Evidence
from turnkeeper.printing import one_line, print_json, print_line, progress

_DIGEST = re.compile(r"\b[0-9a-f]{32,64}\b")
_SHORT = re.compile(r"(?P<number>[1-9]\d*):(?P<hash>[0-9a-f]{64})")
NoArchive = Annotated[
    bool, typer.Option("--no-archive", help="Do not read the archive over AMQP: what Redis holds is enough.")
]
Keys = Annotated[
    Path | None,
    typer.Option("--key", help="A file of public keys, a line each as id:base64. Without: those that the door shows."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("why")(why)
    app.command("verify")(verify)


def why(
    session: SessionName,
    operation: Annotated[str, typer.Argument(help="What people call it (O3), or its key.")],
    state: State = STATE,
    keys: Keys = None,
    no_archive: NoArchive = False,
    as_json: Json = False,
) -> None:
    """Show why an effect happened: from it back to the event's bytes. Each link is checked; exit status 1 if one does
    not hold.

    **Examples**

      turnkeeper why dinner O1

      turnkeeper why dinner O1 --json | jq -r 'select(.fault != "")'
    """
    with client(state) as asking:
        evidence = _gather(asking, session, keys, with_archive=not no_archive, heads=())
        evidence, outcomes = _with_ingress(asking, evidence)
    breaks = source.verify(evidence, _now_ms())
    links = story.why(evidence.told, evidence.records, evidence.seals, operation, breaks, outcomes)
    if not links:
        raise ClientError(f"{session} has no evidence of {operation}: see turnkeeper operations {session}")
    for link in links:
        if as_json:
            print_json({"what": link.what, "text": link.text, "entry": link.entry, "fault": link.fault})
        else:
            mark = "BROKEN" if link.fault else "ok" if link.entry else "-"
            where = f" [entry {link.entry}]" if link.entry else ""
            print_line(one_line(f"{link.what:<15} {mark:<7}{_DIGEST.sub(_short, link.text)}{where}"))
            if link.fault:
                print_line(one_line(f"{'':<15} {'':<7}{link.fault}"))
    if any(link.fault for link in links):
        raise typer.Exit(1)
    if breaks:
        progress(f"turnkeeper: elsewhere in {session}'s evidence a link is broken: turnkeeper verify {session}")


def verify(
    session: SessionName,
    head: Annotated[
        list[str] | None,
        typer.Option(help="A head that you kept: NUMBER:HASH, its JSON, or a file of heads, one a line."),
    ] = None,
    state: State = STATE,
    keys: Keys = None,
    no_archive: NoArchive = False,
    as_json: Json = False,
) -> None:
    """Check a session's evidence: the chain, its signed heads, the links between entries, and the records that they
    tell of. The first line names the first broken link; exit status 1 if there is one.

    **Examples**

      turnkeeper verify dinner

      turnkeeper verify dinner --head heads.jsonl
    """
    kept = [found for given in head or () for found in _heads(session, given)]
    with client(state) as asking:
        evidence = _gather(asking, session, keys, with_archive=not no_archive, heads=tuple(kept))
        evidence, _ = _with_ingress(asking, evidence)
    breaks = source.verify(evidence, _now_ms())
    chain = evidence.chain
    heads = len(chain.heads) + len(evidence.heads)
    if as_json:
        print_json(
            {
                "session": session, "entries": chain.sealed, "first": chain.base + 1, "hash": chain.hash,
                "heads": heads, "signed": bool(evidence.public),
                "broken": [{"where": found.where, "why": found.why} for found in breaks],
            }
        )  # fmt: skip
    elif breaks:
        for found in breaks:
            print_line(one_line(f"BROKEN {found}"))
    else:
        span = f"entries {chain.base + 1} to {chain.sealed}" if chain.sealed else "no entries"
        print_line(f"{session}: {span} hold, {heads} heads, last link {chain.hash or 'none'}")
    if not evidence.public:
        progress("turnkeeper: the heads are not signed: set TURNKEEPER_EVIDENCE_KEY for the door")
    if breaks:
        raise typer.Exit(1)


def _gather(
    asking: Client, session: str, keys: Path | None, *, with_archive: bool, heads: tuple[Head, ...]
) -> Evidence:
    answer = asking.evidence(session)
    try:
        evidence = source.of_answer(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ClientError(
            f"the door's answer is no evidence ({type(error).__name__}): is it of this version?"
        ) from error
    public = _read_keys(keys) if keys is not None else evidence.public
    # A short head (NUMBER:HASH) has no signature to check: it is compared only.
    signed = tuple(one for one in heads if one.key)
    plain = tuple(one for one in heads if not one.key)
    evidence = replace(evidence, public=public, heads=signed, plain=plain)
    if with_archive and asking.target.amqp:
        try:
            evidence = source.with_archive(evidence, archive.blocks(asking.target, session))
            unjudged = source.unjudged_seals(evidence)
            if unjudged:
                judged = asking.judge_seals(session, unjudged)
                evidence = replace(evidence, seals={**evidence.seals, **judged})
        except ClientError as error:
            progress(f"turnkeeper: the archive was not read: {error}")
    return evidence


def _heads(session: str, given: str) -> list[Head]:
    if short := _SHORT.fullmatch(given.strip()):
        return [Head(session=session, number=int(short["number"]), hash=short["hash"], at=0)]
    text = given
    if not given.lstrip().startswith("{"):
        text = Path(given).read_text(encoding="utf-8")
    found = []
    for line in filter(None, (part.strip() for part in text.splitlines())):
        try:
            told = orjson.loads(line)
            # A whole notice may have been kept: its data is the head.
            told = told.get("body", told)
            found.append(Head.model_validate(told.get("data", told)))
        except (orjson.JSONDecodeError, ValidationError, AttributeError) as error:
            raise ClientError(f"{line[:60]!r} is no head: give NUMBER:HASH, or the JSON of one a line") from error
    of_session = [one for one in found if one.session == session]
    if not of_session:
        raise ClientError(f"{given[:60]!r} holds no head of {session}")
    return of_session


def _read_keys(path: Path) -> dict[str, str]:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    pairs = [line.partition(":") for line in lines]
    if not pairs or not all(name and value for name, _, value in pairs):
        raise ClientError(f"{path} holds no public keys: a line each as id:base64")
    return {name: value for name, _, value in pairs}


def _with_ingress(asking: Client, evidence: Evidence) -> tuple[Evidence, dict[str, str]]:
    """With what ingress says of the events: their dedupe marks, and their outcomes by input. Nothing where it cannot be
    asked, or where its span is over."""
    marks, outcomes = {}, {}
    for one in evidence.told:
        if one.kind != "input" or one.get("what") != "event":
            continue
        try:
            found = asking.event_outcome(str(one.get("source")), str(one.get("event")))
        except ClientError:
            continue
        if found.get("id") == one.get("input"):
            marks[str(one.get("input"))] = str(found.get("mark", one.get("dedupe")))
            outcomes[str(one.get("input"))] = str(found.get("outcome") or "")
    return replace(evidence, marks=marks), outcomes


def _short(digest: re.Match[str]) -> str:
    """A digest as people compare it; `--json` has all of it."""
    return f"{digest[0][:12]}…"


def _now_ms() -> int:
    return int(time.time() * 1000)
