"""`turnkeeper why`, `verify`: from an effect back to the bytes, each link checked."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer
from pydantic import ValidationError

from libs.contracts.evidence import Head
from turnkeeper.cli.options import STATE, Json, SessionName, State, client
from turnkeeper.client import Client, ClientError, Refused, Unreachable
from turnkeeper.evidence import archive, source, story
from turnkeeper.evidence.records import find
from turnkeeper.evidence.source import Evidence
from turnkeeper.printing import one_line, print_json, print_line, progress

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
        told = evidence.told
        breaks = source.verify(evidence, _now_ms())
        links = story.why(told, evidence.records, evidence.seals, operation, breaks, _outcomes(asking, evidence))
    if not links:
        raise ClientError(f"{session} has no evidence of {operation}: see turnkeeper operations {session}")
    for link in links:
        if as_json:
            print_json({"what": link.what, "text": link.text, "entry": link.entry, "fault": link.fault})
        else:
            mark = "BROKEN" if link.fault else "ok" if link.entry else "-"
            where = f" [entry {link.entry}]" if link.entry else ""
            print_line(one_line(f"{link.what:<15} {mark:<7}{link.text}{where}"))
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
    evidence = Evidence(evidence.chain, evidence.records, evidence.seals, public)
    evidence, plain = _with_kept(evidence, heads)
    if with_archive and asking.target.amqp:
        try:
            evidence = source.with_archive(evidence, archive.blocks(asking.target, session))
        except Unreachable as error:
            progress(f"turnkeeper: the archive was not read: {error}")
    return source.with_plain(evidence, plain)


def _with_kept(evidence: Evidence, heads: tuple[Head, ...]) -> tuple[Evidence, tuple[Head, ...]]:
    signed = tuple(one for one in heads if one.signature or one.key)
    found = Evidence(evidence.chain, evidence.records, evidence.seals, evidence.public, signed)
    return found, tuple(one for one in heads if one not in signed)


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


def _outcomes(asking: Client, evidence: Evidence) -> dict[str, str]:
    """What ingress says of the events of the evidence that attempts rest on; nothing where it cannot be asked."""
    told = evidence.told
    names: set[str] = {str(name) for one in told for name in _rests_on(one.get("inputs"), one.get("asks"))}
    outcomes = {}
    for name in names:
        entry = find(told, "input", input=name)
        if entry is None or entry.get("what") != "event":
            continue
        try:
            outcomes[name] = str(asking.event_outcome(entry.get("source"), entry.get("event")).get("outcome") or "")
        except (Refused, Unreachable, ClientError):
            continue  # its span is over, or it is of no webhook
    return outcomes


def _rests_on(inputs: Sequence[str] | None, asks: Sequence[dict[str, list[str]]] | None) -> list[str]:
    return [*(inputs or ()), *(name for asked in asks or () for name in asked.get("inputs", ()))]


def _now_ms() -> int:
    return int(time.time() * 1000)
