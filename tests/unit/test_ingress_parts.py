"""Small parts of ingress: rate limit, numbers under contention, the log of refusals, settings, the documents."""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from libs.contracts.errors import StoreAway
from libs.contracts.origin import SealKeys
from libs.contracts.topology import Topology
from libs.runtime.composer import Composer
from libs.runtime.openapi import page
from libs.runtime.publisher import Outgoing
from libs.runtime.settings import SettingsError, read_settings
from services.ingress.deliveries import Log
from services.ingress.domain import Event
from services.ingress.inbox import Inbox
from services.ingress.metrics import IngressMetrics
from services.ingress.openapi import DOCUMENT
from services.ingress.ports import Appended, Placement, Waiting
from services.ingress.rates import Rates
from services.ingress.settings import IngressSettings
from tests.support.ingress import MovableClock, an_event


def test_without_a_limit_everything_passes() -> None:
    rates = Rates(0, 1, MovableClock())
    assert [rates.wait_seconds("a") for _ in range(1000)] == [0.0] * 1000


def test_a_burst_passes_then_the_rate_and_sources_do_not_share() -> None:
    clock = MovableClock()
    rates = Rates(10, 3, clock)
    assert [rates.wait_seconds("a") for _ in range(3)] == [0.0] * 3
    assert rates.wait_seconds("a") == pytest.approx(0.1)
    assert rates.wait_seconds("b") == 0.0
    clock.now += 100
    assert rates.wait_seconds("a") == 0.0
    assert rates.wait_seconds("a") > 0


class OtherReplicaIsFaster:
    """A store whose numbers move on by somebody else's appends now and then."""

    def __init__(self, every: int) -> None:
        self.last = 0
        self.every = every
        self.calls = 0
        self.given: list[int] = []

    async def append(
        self, event: Event, session: str, packed: bytes, number: int, doorbell: Outgoing, now: int
    ) -> Placement:
        await asyncio.sleep(0)
        self.calls += 1
        if self.calls % self.every == 0:
            self.last += 1
        if number != self.last + 1:
            return Waiting(self.last + 1)
        self.last = number
        self.given.append(number)
        return Appended(number, new=True)


class Silent:
    def post(self, session: str, messages: Any) -> None:
        pass


def inbox_over(store: Any) -> Inbox:
    clock = MovableClock()
    keys = SealKeys((("k", b"k" * 32),))
    return Inbox(store, Silent(), Composer(Topology(), clock), keys, clock)


async def test_a_wrong_guess_is_corrected_once_for_all_that_are_in_flight() -> None:
    store = OtherReplicaIsFaster(every=10)
    inbox = inbox_over(store)
    await asyncio.gather(*(inbox.append(an_event(f"e{n}"), "s1") for n in range(100)))
    assert len(store.given) == len(set(store.given)) == 100


async def test_a_single_writer_is_right_at_the_first_try() -> None:
    store = OtherReplicaIsFaster(every=10**9)
    inbox = inbox_over(store)
    await asyncio.gather(*(inbox.append(an_event(f"e{n}"), "s1") for n in range(50)))
    assert store.calls == 50


async def test_numbers_that_never_fit_are_given_up_as_away() -> None:
    class Never:
        async def append(self, *_: Any) -> Placement:
            return Waiting(10**6)

    class Elsewhere(OtherReplicaIsFaster):
        async def append(self, *args: Any) -> Placement:
            self.last += 1
            return Waiting(self.last + 1)

    with pytest.raises(StoreAway):
        await inbox_over(Elsewhere(1)).append(an_event(), "s1")


def test_the_log_is_bounded_and_can_be_followed() -> None:
    ring = Log(3)
    for n in range(5):
        ring.add(n, "input.rejected", "a", f"line {n}", event="")
    assert [line["text"] for line in ring.lines()] == ["line 2", "line 3", "line 4"]
    assert [line["seq"] for line in ring.lines(after=4)] == [5]
    assert "event" not in ring.lines()[0]


def test_metrics_have_every_label_set_at_zero() -> None:
    registry = CollectorRegistry()
    metrics = IngressMetrics(registry, ["a", "b"])
    metrics.count("a", "held")
    text = generate_latest(registry).decode()
    assert text.count("turnkeeper_ingress_events_total{") == 18
    assert 'turnkeeper_ingress_events_total{outcome="held",source="a"} 1.0' in text
    assert "turnkeeper_ingress_ack_seconds_bucket" in text


def test_the_document_describes_every_route_and_the_page_shows_it() -> None:
    paths = set(DOCUMENT["paths"])
    assert "/v1/events/{source}" in paths
    for path in paths:
        assert path.split("{")[0] in page(DOCUMENT)


def test_every_problem_that_ingress_answers_with_has_its_heading() -> None:
    documented = set(
        re.findall(r"^## `?([a-z-]+)`?", Path("docs/problems.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    used = set()
    for file in [
        *Path("services/ingress").rglob("*.py"),
        Path("libs/runtime/auth.py"),
        Path("libs/runtime/problems.py"),
    ]:
        used |= set(re.findall(r'Problem\(\s*\d+,\s*"([a-z-]+)"', file.read_text(encoding="utf-8")))
    assert used <= documented
    assert len(used) > 15


def settings(monkeypatch: pytest.MonkeyPatch, **more: str) -> IngressSettings:
    good = {
        "REDIS_URL": "redis://h:1/0",
        "AMQP_URL": "amqp://h:1/",
        "SEAL_KEYS": "k:" + base64.b64encode(b"x" * 32).decode(),
    }
    for name, value in (good | more).items():
        monkeypatch.setenv(f"TURNKEEPER_{name}", value)
    return read_settings(IngressSettings)


def test_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch).keys_of_seals.keys[0][0] == "k"


@pytest.mark.parametrize(
    "name, value",
    [
        ("SEAL_KEYS", "k:c2hvcnQ="),
        ("SEAL_KEYS", ""),
        ("USER_TOKEN_SECRET", "short-one"),
        ("OPERATOR_TOKENS", "op:fly:00"),
        ("USER_TOKEN_JWKS_URL", "file:///etc/passwd"),
        ("SUBJECT_TTL_SECONDS", str(500 * 86_400)),
        ("INGRESS_MAX_BODY_BYTES", "0"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(monkeypatch, **{name: value})
    assert f"TURNKEEPER_{name}" in str(caught.value)
    if len(value) > 3:
        assert value not in str(caught.value)
