"""Operators' calls: sessions, what was held, what is in quarantine, what became of an event, the newest refusals."""

from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from libs.contracts.application import Application
from libs.contracts.canonical import JSON
from libs.contracts.faults import Fault, Trial
from libs.contracts.ids import is_slug, is_text_id
from libs.runtime.auth import Operators
from libs.runtime.problems import Problem
from services.ingress.admission import Admissions
from services.ingress.deliveries import Log, Sources
from services.ingress.domain import Event, event_identity, released
from services.ingress.edge import held_full, no_session, read_body
from services.ingress.ports import POINTER, Clock, HeldFull, Office, Taken
from services.ingress.strict_json import Malformed, parse
from services.ingress.sweepers import Releases

MAX_BODY = 64 * 1024
MOST_DIGITS = 18


class _Faults(BaseModel):
    """The faults of one trial, instead of the application file's."""

    model_config = ConfigDict(extra="forbid")

    faults: tuple[Fault, ...] = Field(max_length=100)


class OperatorRoutes:
    """Routes for operators; each asks for a scope."""

    def __init__(
        self,
        store: Office,
        sources: Sources,
        admissions: Admissions,
        releases: Releases,
        operators: Operators,
        ring: Log,
        clock: Clock,
        *,
        body_seconds: float,
        application: Application | None = None,
    ) -> None:
        """`application` is given only where trials are switched on."""
        self._application = application
        self._store = store
        self._sources = sources
        self._admissions = admissions
        self._releases = releases
        self._operators = operators
        self._ring = ring
        self._clock = clock
        self._body_seconds = body_seconds

    def routes(self) -> list[Route]:
        """To be mounted by the composition root."""
        return [
            Route("/v1/sessions/{session}", self.put_session, methods=["PUT"]),
            Route("/v1/events/{source}/{event_id:path}", self.get_event, methods=["GET"]),
            Route("/v1/held", self.get_held, methods=["GET"]),
            Route("/v1/held/release", self.release_held, methods=["POST"]),
            Route("/v1/quarantine", self.get_quarantine, methods=["GET"]),
            Route("/v1/quarantine/{id}", self.get_quarantined, methods=["GET"]),
            Route("/v1/quarantine/{id}/release", self.release_quarantined, methods=["POST"]),
            Route("/v1/log", self.get_log, methods=["GET"]),
        ]

    def _operator(self, request: Request, scope: str) -> str:
        return self._operators.check(request.headers.get("authorization"), scope)

    async def put_session(self, request: Request) -> Response:
        """`PUT /v1/sessions/{session}` `{"owner"}`: write the owner, once. For tests also `"trial"`: true, or its own
        `{"faults": […]}`."""
        self._operator(request, "sessions")
        session, body = request.path_params["session"], await self._object(request)
        owner = body.get("owner")
        if not is_slug(session) or not isinstance(owner, str) or not is_slug(owner):
            detail = "A session and its owner are named by 1 to 64 letters, digits, - and _."
            raise Problem(400, "malformed", "Not a session and its owner", detail)
        trial = self._trial(body.get("trial"))
        made = await self._store.create_session(session, owner, self._clock.now_ms(), trial)
        if made == "real":
            raise Problem(409, "not-a-trial", "This session is no trial", "Only a new session can be one.")
        if isinstance(made, Taken):
            raise Problem(409, "owner-is-written", "This session has another owner", "An owner is written once.")
        count = await self._releases.session(session) if made.waiting else 0
        return JSONResponse({"session": session, "owner": owner, "released": count}, 201 if made.new else 200)

    def _trial(self, given: JSON) -> str:
        """The mark of a trial as it is stored, "" for none. Raises Problem."""
        if given is None or given is False:
            return ""
        if self._application is None:
            raise Problem(403, "trials-off", "There are no trials here", "TURNKEEPER_TRIALS=1 allows them, for tests.")
        if given is True:
            return Trial.of(self._application.faults).model_dump_json()
        try:
            faults = _Faults.model_validate(given).faults
        except ValidationError as error:
            errors = [{"at": ".".join(map(str, one["loc"])), "detail": one["msg"]} for one in error.errors()]
            raise Problem(400, "malformed", "Not the faults of a trial", errors=errors) from None
        if unknown := self._application.unknown_actions(faults):
            raise Problem(400, "malformed", "Not the faults of a trial", "; ".join(unknown))
        return Trial.of(faults).model_dump_json()

    async def get_event(self, request: Request) -> Response:
        """`GET /v1/events/{source}/{event_id}`: what became of an event; `?ce_source=` for a CloudEvent, which is known
        by its own source and id together."""
        self._operator(request, "read")
        name, event_id = request.path_params["source"], request.path_params["event_id"]
        configured = self._sources.get(name)
        if configured is None:
            raise Problem(404, "unknown-source", "There is no source of this name")
        now, window = self._clock.now_ms(), int(configured.source.dedupe.window * 1000)
        identity = event_identity(name, event_id, request.query_params.get("ce_source", ""))
        record = await self._store.record(name, identity, now, window)
        if record is not None and record.mark.startswith(POINTER):
            identity = record.mark.removeprefix(POINTER)  # an unsigned id only points to what the body gave
            record = await self._store.record(name, identity, now, window)
        if record is None:
            raise Problem(404, "unknown-event", "This event is not known", "It never came, or its window is over.")
        found: dict[str, Any] = {"source": name, "event": event_id, "id": identity, "status": record.status}
        if record.number:
            found |= {"session": record.session, "number": record.number}
        found["mark"] = record.mark
        found["outcome"] = None if record.outcome == "-" else record.outcome
        return JSONResponse(found)

    async def get_held(self, request: Request) -> Response:
        """`GET /v1/held`: what waits for a subject or a session, by deadline."""
        self._operator(request, "read")
        lines = []
        for subject in await self._store.held_subjects("+inf"):
            lines += [_held(event, subject=subject) for event in (await self._store.held(subject))[0]]
        for session in await self._store.waiting_sessions("+inf"):
            lines += [_held(event, session=session) for event in await self._store.waiting(session)]
        return JSONResponse({"held": sorted(lines, key=lambda line: line["deadline"])})

    async def release_held(self, request: Request) -> Response:
        """`POST /v1/held/release` `{"subject","session","force"?}`: register a subject by hand, release what waits.

        A subject leads to one session for good, so one for which nothing waits is taken for a slip, unless `force`.
        """
        operator = self._operator(request, "release")
        body = await self._object(request)
        subject, session = body.get("subject"), body.get("session")
        if not isinstance(subject, str) or not is_text_id(subject) or not isinstance(session, str):
            raise Problem(400, "malformed", "Name a subject and the session that it belongs to")
        if not is_slug(session) or await self._admissions.owner(session) is None:
            raise no_session()
        if body.get("force") is not True and not (await self._store.held(subject))[0]:
            detail = 'Registering cannot be undone. Say {"force": true} to register it all the same.'
            raise Problem(404, "nothing-held", "Nothing waits for this subject", detail)
        registered = await self._store.register(subject, session, f"operator:{operator}")
        if isinstance(registered, Taken):
            raise Problem(
                409, "subject-is-registered", "This subject belongs to another session", session=registered.by
            )
        count = await self._releases.subject(subject, session)
        return JSONResponse({"subject": subject, "session": session, "released": count})

    async def get_quarantine(self, request: Request) -> Response:
        """`GET /v1/quarantine`: all entries without their bodies, newest first."""
        self._operator(request, "read")
        entries = await self._store.quarantined()
        return JSONResponse({"quarantine": [_entry(entry, whole=False) for entry in entries]})

    async def get_quarantined(self, request: Request) -> Response:
        """`GET /v1/quarantine/{id}`: one entry with its body."""
        self._operator(request, "read")
        return JSONResponse(_entry(await self._entry(request), whole=True))

    async def release_quarantined(self, request: Request) -> Response:
        """`POST /v1/quarantine/{id}/release` `{"session"?}`: let it in, as an event of its own."""
        self._operator(request, "release")
        entry, body = await self._entry(request), await self._object(request)
        session = body.get("session", "")
        event = released(
            Event.unpack(orjson.dumps(entry["held"])), entry["id"], now=self._clock.now_ms(), session=str(session)
        )
        if not event.where:
            raise Problem(400, "no-session", "Its data names no session: say which one it is for")
        if event.session and (not is_slug(event.session) or await self._admissions.owner(event.session) is None):
            raise no_session()
        try:
            answer = await self._admissions.admit(event, f"release.{entry['id']}", str(entry["body"]).encode())
        except HeldFull:
            raise held_full() from None
        if answer.status == "unrouted":
            raise no_session()
        await self._store.drop_quarantined(entry["id"])
        return JSONResponse({"status": answer.status, "id": answer.id}, 200 if answer.status == "duplicate" else 202)

    async def get_log(self, request: Request) -> Response:
        """`GET /v1/log?after=N`: the newest deliveries of this replica that did not go the usual way."""
        self._operator(request, "read")
        after = request.query_params.get("after", "0")
        if not after.isascii() or not after.isdigit() or len(after) > MOST_DIGITS:
            raise Problem(400, "bad-number", f"`after` is a whole number of at most {MOST_DIGITS} digits")
        return JSONResponse({"lines": list(self._ring.lines(int(after)))})

    async def _entry(self, request: Request) -> dict[str, Any]:
        entry = await self._store.quarantine_entry(request.path_params["id"])
        if entry is None:
            raise Problem(404, "unknown-quarantine-entry", "There is no such entry in quarantine")
        return entry

    async def _object(self, request: Request) -> dict[str, JSON]:
        raw = await read_body(request, MAX_BODY, self._body_seconds)
        try:
            value = parse(raw) if raw else {}
        except Malformed as malformed:
            raise Problem(400, "malformed", "The body cannot be read", str(malformed)) from None
        if not isinstance(value, dict):
            raise Problem(400, "malformed", "The body is not an object")
        return value


def _held(event: Event, *, subject: str = "", session: str = "") -> dict[str, Any]:
    return {
        "id": event.id,
        "source": event.source,
        "event": event.event,
        "type": event.type,
        "subject": subject,
        "session": session,
        "accepted_at": event.accepted_at,
        "deadline": event.deadline,
    }


def _entry(entry: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    hidden = ("held",) if whole else ("held", "body")
    return {name: value for name, value in entry.items() if name not in hidden}
