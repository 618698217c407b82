"""From a source's configuration to its verifier."""

from collections.abc import Callable, Sequence
from typing import assert_never

from libs.contracts.application import BrokerUser, Hmac, StandardWebhooks, UserToken, Verify
from services.ingress.schemes.base import SchemeFault, Verifier
from services.ingress.schemes.broker_user import BrokerUserVerifier
from services.ingress.schemes.covering import CoveringVerifier
from services.ingress.schemes.hmac_scheme import HmacVerifier
from services.ingress.schemes.standard_webhooks import StandardWebhooksVerifier


def build_verifier(verify: Verify, resolve: Callable[[str], str]) -> tuple[Verifier | None, list[str]]:
    """The verifier of a source and every fault of its configuration, as `field: what is wrong`.

    `resolve` turns a reference into its secret and raises ValueError. None for `user-token`: users speak through the
    session routes, where their token is checked.
    """
    match verify:
        case StandardWebhooks():
            secrets, faults = _secrets(verify.secrets, resolve)
            return _built(lambda: StandardWebhooksVerifier(secrets), faults)
        case Hmac():
            secrets, faults = _secrets(verify.secrets, resolve)
            return _built(lambda: _hmac(verify, secrets), faults)
        case BrokerUser():
            return _built(lambda: BrokerUserVerifier(verify.users), [])
        case UserToken():
            return None, []
        case _:
            assert_never(verify)


def _hmac(verify: Hmac, secrets: Sequence[str]) -> Verifier:
    inner = HmacVerifier(verify, secrets)
    return CoveringVerifier(inner, verify.covers) if verify.covers else inner


def _secrets(references: Sequence[str], resolve: Callable[[str], str]) -> tuple[list[str], list[str]]:
    secrets, faults = [], []
    for index, reference in enumerate(references):
        try:
            secrets.append(resolve(reference))
        except ValueError as error:
            faults.append(f"secrets: number {index + 1}: {error}")
    return secrets, faults


def _built(make: Callable[[], Verifier], faults: list[str]) -> tuple[Verifier | None, list[str]]:
    if faults:
        return None, faults
    try:
        return make(), []
    except SchemeFault as error:
        return None, error.faults
