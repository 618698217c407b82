"""User A against user B's everything: each route of the four services with everybody's credentials (G10).

`pytest -s` prints the matrix. The services are a whole stack on real servers; what is refused must change nothing.
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx2
import jwt
import pytest
import redis

from libs.contracts.application import StandardWebhooks, resolve_secret
from tests.support.eventually import eventually_sync
from tests.support.http_fuzz import fuzz
from tests.support.http_rights import ROWS, SCOPES, Row, every_route, refused
from tests.support.servers import Servers
from tests.support.stages import Stage
from tests.support.webhooks import sign_webhook
from turnkeeper.client import Client
from turnkeeper.demo.scenario import Settings
from turnkeeper.signing import user_token
from turnkeeper.stack import Stack
from turnkeeper.target import of_stack

OWNER, OTHER = "ana", "ben"
OPERATORS = {name: f"a-token-of-the-operator-{name}-{secrets.token_hex(8)}" for name in ("all", *SCOPES)}
PEOPLE = (
    "none", "garbage", "another scheme", "expired", "wrong key", "no algorithm", "other user",
    *(f"only {scope}" for scope in SCOPES), "operator", "owner",
)  # fmt: skip
Subjects = dict[str, str]


@pytest.fixture(scope="module")
def stack(servers: Servers) -> Iterator[Stack]:
    """A stack whose operators have one scope each."""
    scopes = {"all": "*"} | {scope: scope for scope in SCOPES}
    tokens = ",".join(f"{name}:{scopes[name]}:{_digest(token)}" for name, token in OPERATORS.items())
    made = Stage(servers)
    yield made.of(Settings(env={"TURNKEEPER_OPERATOR_TOKENS": tokens}))
    made.close()


@pytest.fixture(scope="module")
def subjects(stack: Stack) -> Subjects:
    """What belongs to ana: a session with an open question, an operation, and events that are held and quarantined."""
    session = f"s-{secrets.token_hex(4)}"
    target = replace(of_stack(stack), operator=OPERATORS["all"])
    with Client(target) as client:
        client.create_session(session, OWNER)
        client.say(session, "Book Fri 19:00 for 4", OWNER)
        booked = eventually_sync(
            lambda: next((line for line in client.timeline(session) if line.kind == "tool.committed"), None)
        )
        reservation = booked.text.rpartition(" ")[2]
        event = f"e-{secrets.token_hex(4)}"
        offer = {"reservation": reservation, "offer": {"party": 4, "day": "Sat", "time": "20:30"}}
        client.deliver(client.sign("restaurant", event=event, type="offer.other", data=offer))
        (action,) = eventually_sync(lambda: client.actions(session))
        client.deliver(client.sign("restaurant", event=event, type="offer.other", data={**offer, "more": 1}))
        client.deliver(
            client.sign("restaurant", event="held", type="table.note", data={"reservation": "held", "text": "x"})
        )
        entry = eventually_sync(client.quarantine)[0]
        operation = client.operations(session)[0]["operation"]
    return {
        "session": session, "action": action["action"], "digest": action["question_digest"], "source": "restaurant",
        "event_id:path": event, "id": entry["id"], "operation": operation, "user": OWNER,
        "kind": "session", "name": session,
    }  # fmt: skip


def test_every_route_has_a_row_that_says_who_may_call_it() -> None:
    assert set(every_route()) == set(ROWS)


@pytest.mark.slow
@pytest.mark.engine
def test_each_route_refuses_everybody_but_those_it_is_for_and_changes_nothing(
    stack: Stack, subjects: Subjects, servers: Servers
) -> None:
    marks, wrong, bodies = {}, [], {}
    before = _quiet(servers, stack)
    with httpx2.Client(timeout=10) as http:
        for key, row in ROWS.items():
            for who in PEOPLE:
                if not (due := refused(row, who)):
                    continue
                answer = _call(http, stack, key, row, subjects, _header(stack, who))
                marks[key, who] = answer.status_code
                if answer.status_code != due:
                    wrong.append(f"{who} at {' '.join(key)}: {answer.status_code} and not {due}: {answer.text}")
                if answer.status_code == 401:
                    assert answer.headers["content-type"] == "application/problem+json"
                    bodies.setdefault(row.who == "sender", set()).add(answer.content)
    after = _quiet(servers, stack)
    assert sorted(key for key in {*before, *after} if after.get(key) != before.get(key)) == []
    with httpx2.Client(timeout=10) as http:
        for key, row in ROWS.items():
            for who in PEOPLE:
                if refused(row, who):
                    continue
                answer = _call(http, stack, key, row, subjects, _header(stack, who))
                marks[key, who] = answer.status_code
                if answer.status_code in (401, 403) or answer.status_code >= 500:
                    wrong.append(f"{who} at {' '.join(key)}: {answer.status_code}: {answer.text}")
    print("\n" + _printed(marks))
    assert wrong == []
    # one for everybody at the doors of people, one for senders: neither tells what was wrong
    assert {sender: len(found) for sender, found in bodies.items()} == {True: 1, False: 1}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("service", ["ingress", "session", "consent", "tools"])
def test_no_request_is_answered_with_a_500_or_otherwise_than_the_document_says(
    service: str, stack: Stack, subjects: Subjects
) -> None:
    """`make fuzz-http N=2000` sends more; `SEED` sends the same again."""
    seed = int(os.environ.get("SEED") or secrets.randbelow(2**31))
    found = fuzz(
        stack.url(service),
        cases=int(os.environ.get("FUZZ_HTTP_CASES", "100")),
        seed=seed,
        subjects={name.removesuffix(":path"): value for name, value in subjects.items()},
        credentials={who: _header(stack, who) for who in ("none", "garbage", "other user", "operator", "owner")},
        sign=lambda body: _signed(stack, body),
    )
    print(f"{service}: {found.cases} cases with SEED={seed}: {dict(sorted(found.statuses.items()))}")
    assert found.faults == {}, f"SEED={seed}"


def _signed(stack: Stack, body: bytes) -> Mapping[str, str]:
    """What the restaurant's scheme puts beside this body."""
    target = of_stack(stack)
    verify = target.application().sources["restaurant"].verify
    assert isinstance(verify, StandardWebhooks)
    secret = resolve_secret(verify.secrets[0], target.environment)
    return sign_webhook(secret, secrets.token_hex(8), int(time.time()), body)


def _call(
    http: httpx2.Client,
    stack: Stack,
    key: tuple[str, str, str],
    row: Row,
    subjects: Subjects,
    header: Mapping[str, str],
) -> httpx2.Response:
    service, method, path = key
    return http.request(
        method,
        stack.url(service) + _filled(path, subjects),
        headers={**row.headers, **header},
        json=None if row.body is None else json.loads(_filled(json.dumps(dict(row.body)), subjects)),
    )


def _filled(text: str, subjects: Subjects) -> str:
    for name, value in subjects.items():
        text = text.replace("{" + name + "}", value)
    return text


def _header(stack: Stack, who: str) -> dict[str, str]:
    now, secret = int(time.time()), stack.user_token_secret
    if who == "none":
        return {}
    if who == "another scheme":
        return {"Authorization": f"Basic {user_token(secret, OWNER, now, 600)}"}
    token = {
        "garbage": "not.a.token",
        "expired": user_token(secret, OWNER, now - 7_200, 3_600),
        "wrong key": user_token("another-secret-of-40-bytes-that-we-made-up", OWNER, now, 600),
        "no algorithm": jwt.encode({"sub": OWNER, "exp": now + 600}, None, algorithm="none"),
        "other user": user_token(secret, OTHER, now, 600),
        "owner": user_token(secret, OWNER, now, 600),
        "operator": OPERATORS["all"],
        **{f"only {scope}": OPERATORS[scope] for scope in SCOPES},
    }[who]
    return {"Authorization": f"Bearer {token}"}


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _quiet(servers: Servers, stack: Stack) -> dict[bytes, Any]:
    """Everything that the store holds of this stack, once nothing is on its way and it stays the same; readiness' own
    mark left out."""
    seen: list[dict[bytes, Any]] = [{}]
    with redis.Redis.from_url(servers.redis_url()) as client:

        def stays() -> bool:
            keys = [
                key for key in client.scan_iter(match=f"tk:{stack.namespace}:*", count=1_000) if b":probe" not in key
            ]
            seen.append({key: _content(client, key) for key in keys})
            on_its_way = [
                key
                for key in keys
                if b":outbox" in key or b":admitted" in key or b":event:" in key or key.endswith(b":evidencedue")
            ]
            return bool(keys) and not on_its_way and seen[-1] == seen[-2]

        eventually_sync(stays)
    return seen[-1]


def _content(client: redis.Redis, key: bytes) -> Any:
    match client.type(key):
        case b"hash":
            return client.hgetall(key)
        case b"zset":
            return client.zrange(key, 0, -1, withscores=True)
        case b"list":
            return client.lrange(key, 0, -1)
        case _:
            return client.get(key)


def _printed(marks: Mapping[tuple[tuple[str, str, str], str], int]) -> str:
    keys = list(dict.fromkeys(key for key, _ in marks))
    width = max(len(" ".join(key)) for key in keys)
    short = [who.replace("another ", "").replace(" ", "-")[:13] for who in PEOPLE]
    lines = [" " * width + " ".join(f"{name:>13}" for name in short)]
    for key in keys:
        row: list[Any] = [marks.get((key, who), "") for who in PEOPLE]
        lines.append(f"{' '.join(key):<{width}}" + " ".join(f"{mark:>13}" for mark in row))
    tried = sum(1 for status in marks.values() if status in (401, 403))
    return "\n".join([*lines, f"{len(marks)} calls: {len(marks) - tried} let in, {tried} refused"])
