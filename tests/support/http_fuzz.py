"""Requests that a service's own OpenAPI document allows, and such as it does not, from everybody (schemathesis).

Half of the names in the paths are of things that exist, so that what lies behind the first look-up is reached too.
"""

import contextlib
import itertools
import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

AT_ONCE = 20
"""Cases of one call before the next call has its turn."""
UNAVAILABLE = 503
CHECKS = (status_code_conformance, content_type_conformance, response_schema_conformance)
UNDOCUMENTED = (400, 404, 405, 413, 431)
"""What any HTTP server may answer before a call is known at all."""
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
LET_IN = ("operator", "owner")
"""Who gets further than the first look, so they come oftener."""
LONGEST_WAIT = 0.1
SECONDS = 40


@dataclass
class Tally:
    """What came of the cases of one service."""

    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    """The first of each kind, with the request that found it."""


Signer = Callable[[bytes], Mapping[str, str]]


def fuzz(
    url: str,
    *,
    cases: int,
    seed: int,
    subjects: Mapping[str, str],
    credentials: Mapping[str, Mapping[str, str]],
    sign: Signer,
) -> Tally:
    """Send at least so many cases to the service at `url`. `credentials` are headers by name; `sign` gives those of a
    genuine delivery. A run is replayed by its seed, as far as the service is."""
    load_all_checks()
    tally = Tally()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    examples = max(1, min(AT_ONCE, cases // (len(operations) * len(LET_IN) * len(MODES))))
    for number, (who, mode) in enumerate(itertools.cycle(_rounds(sorted(credentials)))):
        for operation in operations:
            alone = operation.path in ("/livez", "/readyz", "/metrics")
            if number and alone:
                continue  # one request is all that there is
            _run(operation, url, mode, 1 if alone else examples, seed + number, subjects, who, credentials[who], sign,
                 tally)  # fmt: skip
            if tally.cases >= cases and number >= len(LET_IN) * len(MODES) - 1:
                return tally
    raise AssertionError("unreachable")


def _rounds(everybody: list[str]) -> list[tuple[str, GenerationMode]]:
    """Who calls, and how: those who get further first and oftener."""
    others = [who for who in everybody if who not in LET_IN]
    return [(who, mode) for other in others for who in (*LET_IN, other) for mode in MODES]


def _run(
    operation: Any,
    url: str,
    mode: GenerationMode,
    examples: int,
    seed: int,
    subjects: Mapping[str, str],
    who: str,
    headers: Mapping[str, str],
    sign: Signer,
    tally: Tally,
) -> None:
    quiet = hypothesis.settings(max_examples=examples, deadline=None, database=None, phases=[hypothesis.Phase.generate],
                                suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip

    @hypothesis.seed(seed)
    @quiet
    @hypothesis.given(
        case=operation.as_strategy(generation_mode=mode),
        unknown=st.booleans(),
        raw=st.one_of(st.none(), st.none(), st.none(), st.binary(max_size=64)),
    )
    def one(case: Any, unknown: bool, raw: bytes | None) -> None:
        if not unknown:
            case.path_parameters = {**(case.path_parameters or {})} | {
                name: subjects[name] for name in case.path_parameters or {} if name in subjects
            }
        _send(case, url, who, headers, raw, sign, tally)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # a call without input knows no wrong one
            one()


def _send(
    case: Any, url: str, who: str, headers: Mapping[str, str], raw: bytes | None, sign: Signer, tally: Tally
) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_seconds"), int | float):
        case.body["wait_seconds"] = min(case.body["wait_seconds"], LONGEST_WAIT)
    more: dict[str, Any] = {"headers": {**(case.headers or {}), **headers}, "timeout": SECONDS}
    if raw is not None and case.method != "GET":
        more["data"] = raw
    if case.path == "/v1/events/{source}":
        sent = case.as_transport_kwargs(base_url=url)
        body = more.get("data", sent.get("data"))
        if body is None and "json" in sent:
            body = json.dumps(sent["json"]).encode()
        body = body.encode() if isinstance(body, str) else body or b""
        more["data"] = body
        if who == "operator":
            more["headers"] |= dict(sign(body))
    response = case.call(base_url=url, **more)
    tally.cases += 1
    tally.statuses[response.status_code] += 1
    request = f"{case.method} {response.request.url} as {who}: {response.request.body!r:.300}"
    if response.status_code >= 500 and response.status_code != UNAVAILABLE:
        tally.faults.setdefault(f"{case.method} {case.path} {response.status_code}", f"{request}: {response.text:.300}")
        return
    if raw is not None or response.status_code in UNDOCUMENTED:
        return
    try:
        case.validate_response(response, checks=list(CHECKS))
    except Exception as fault:
        tally.faults.setdefault(f"{case.method} {case.path} {type(fault).__name__}", f"{request}: {fault!s:.1500}")
