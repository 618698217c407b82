"""The public failures of webhook verification, as vectors: what must pass passes, the rest is refused."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from libs.contracts.application import Hmac, StandardWebhooks
from services.ingress.schemes import Refusal, Verified, Verifier, build_verifier, check, header_pairs

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "signature_vectors.json").read_text(encoding="utf-8"))
OURS = [vector for vector in VECTORS if vector["scheme"] in ("standard_webhooks", "generic_hmac")]


def verifier_of(vector: dict[str, Any]) -> Verifier | None:
    """The vector's source as `turnkeeper.yaml` would configure it; None where it would stop the start."""
    secrets = {f"env:SECRET_{index}": secret for index, secret in enumerate(vector["secrets"])}
    if vector["scheme"] == "standard_webhooks":
        verify: Any = StandardWebhooks(scheme="standard-webhooks", secrets=tuple(secrets))
    else:
        config = dict(vector["config"])
        # The vectors stop at the signature; our model also wants to know where the id is.
        verify = Hmac(
            scheme="hmac", secrets=tuple(secrets), id="{{ data.id }}", tolerance=config.pop("tolerance_s"), **config
        )
    verifier, faults = build_verifier(verify, secrets.__getitem__)
    assert (verifier is None) == bool(faults)
    assert not any(secret in fault for fault in faults for secret in vector["secrets"] if secret)
    return verifier


def verdict(vector: dict[str, Any]) -> Verified | Refusal | None:
    verifier = verifier_of(vector)
    if verifier is None:
        return None
    headers = header_pairs([(name.encode("latin-1"), value.encode("latin-1")) for name, value in vector["headers"]])
    body = base64.b64decode(vector["body_b64"])
    return check(verifier, headers, body, now_ms=vector["now"] * 1000, tolerance_seconds=300)


@pytest.mark.parametrize("vector", OURS, ids=[vector["id"] for vector in OURS])
def test_a_vector_gets_the_right_answer(vector: dict[str, Any]) -> None:
    accepted = isinstance(verdict(vector), Verified)
    assert accepted == (vector["expect"] == "accept"), f"{vector['case']}: {vector['reason']}"


def test_all_vectors_of_our_schemes_are_run() -> None:
    assert len(OURS) == 49
    assert {vector["expect"] for vector in OURS} == {"accept", "reject"}


@pytest.mark.parametrize("id", ["A-SW-064", "A-SW-065", "A-GE-016"])
def test_a_secret_that_is_no_key_stops_the_start(id: str) -> None:
    assert verifier_of(next(vector for vector in OURS if vector["id"] == id)) is None
