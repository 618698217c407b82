"""A session's evidence over HTTP, for operators: what is stored, as it is stored, so that the reader can judge it."""

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Header
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libs.contracts.canonical import JSON
from libs.contracts.evidence import Entry
from libs.contracts.ids import Slug
from libs.contracts.origin import Seal, SealKeys, seal_is_valid
from libs.runtime.auth import Operators
from services.tools.notary import Evidence
from services.tools.store import RedisLedger

MOST_SEALS = 1_000
Authorization = Annotated[str | None, Header()]


class GivenSeals(BaseModel):
    """Seals by input, each as its entry has it."""

    model_config = ConfigDict(extra="forbid")

    seals: dict[str, JSON] = Field(max_length=MOST_SEALS)


class EvidenceEdge:
    """The routes' functions. Texts hold stored bytes, one character a byte (ISO 8859-1), whatever they are."""

    def __init__(self, evidence: Evidence, ledger: RedisLedger, seals: SealKeys, operators: Operators) -> None:
        self._evidence = evidence
        self._ledger = ledger
        self._seals = seals
        self._operators = operators

    async def key(self) -> dict[str, Any]:
        """The public keys that heads are signed with: 32 bytes each in base64 (Ed25519, RFC 8032), by id."""
        return {"keys": self._evidence.public}

    async def evidence(self, session: Slug, authorization: Authorization = None) -> dict[str, Any]:
        """The session's chain and the records that it tells of: operations, actions, owner. What is not sealed yet is
        sealed first."""
        self._operators.check(authorization, "read")
        await self._evidence.seal_waiting(session)
        chain = await self._evidence.chain(session)
        records = await self._records(session, chain.lines)
        return {
            "session": session,
            "base": chain.base,
            "previous": chain.previous,
            "sealed": chain.sealed,
            "hash": chain.hash,
            "lines": [line.decode("latin-1") for line in chain.lines],
            "links": list(chain.links),
            "heads": list(chain.heads),
            "records": records,
            "seals": self._judged(chain.lines, session),
            "keys": self._evidence.public,
        }

    async def seals(self, session: Slug, given: GivenSeals, authorization: Authorization = None) -> dict[str, Any]:
        """Whether these seals, by their inputs, are ours: for entries that only the archive keeps. Changes nothing."""
        self._operators.check(authorization, "read")
        return {"seals": {name: self._holds(raw, session) for name, raw in given.seals.items()}}

    async def _records(self, session: str, lines: Any) -> dict[str, dict[str, str]]:
        names = {"session"}
        for line in lines:
            for told in _sets(line):
                names.add(str(told.get("of", "")))
        names |= {f"operation:{key}" for _, key in await self._ledger.of_session(session)}
        found = await asyncio.gather(*(self._ledger.record_of(session, name) for name in sorted(names)))
        return dict(zip(sorted(names), found, strict=True))

    def _judged(self, lines: Any, session: str) -> dict[str, bool]:
        """Whether the seal of each input is ours: only who holds the seal keys can say."""
        judged = {}
        for line in lines:
            body = _body(line)
            if body.get("kind") == "input":
                judged[str(body.get("input", ""))] = self._holds(body.get("seal"), session)
        return judged

    def _holds(self, raw: Any, session: str) -> bool:
        try:
            seal = Seal.model_validate(raw)
        except ValidationError:
            return False
        return seal.session == session and seal_is_valid(self._seals, seal)


def _body(line: bytes) -> dict[str, Any]:
    try:
        return Entry.parse(line).body
    except ValueError:
        return {}  # the reader's check says so


def _sets(line: bytes) -> list[dict[str, Any]]:
    found = _body(line).get("sets")
    return [told for told in found if isinstance(told, dict)] if isinstance(found, list) else []


def add_evidence_routes(app: FastAPI, edge: EvidenceEdge) -> None:
    """Add them to the door's application."""
    app.get("/v1/evidence/keys")(edge.key)
    app.get("/v1/sessions/{session}/evidence")(edge.evidence)
    app.post("/v1/sessions/{session}/evidence/seals")(edge.seals)
