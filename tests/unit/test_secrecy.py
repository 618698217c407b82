"""What a process holds secret is in no line that it writes."""

import logging
from collections.abc import Iterator

import orjson
import pytest
from pydantic import SecretStr

from libs.contracts import secrecy
from libs.contracts.application import resolve_secret
from libs.runtime.logs import JsonLines, Line
from libs.runtime.settings import RuntimeSettings

SECRET = 'a "quoted"/secret:with@marks'


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    secrecy.forget_all()
    yield
    secrecy.forget_all()


def line(**fields: object) -> str:
    return Line("tools", "0")(None, "warning", {"event": "function.raised", **fields}).decode()


@pytest.mark.parametrize("text", [SECRET, f"prefix {SECRET} suffix", repr(ValueError(SECRET)), [SECRET], {SECRET: 1}])
def test_a_secret_is_masked_wherever_it_stands_in_a_line(text: object) -> None:
    secrecy.remember(SECRET)
    told = line(error=text)
    assert "quoted" not in told
    assert "***" in told
    assert orjson.loads(told)["service"] == "tools"


def test_a_secret_in_a_url_is_masked_in_its_escaped_form() -> None:
    secrecy.remember(SECRET)
    assert "quoted" not in line(url="http://x/?key=a%20%22quoted%22%2Fsecret%3Awith%40marks")


def test_a_secret_within_another_is_masked_with_it() -> None:
    secrecy.remember("secret-one", "secret-one-and-more")
    assert "more" not in line(error="secret-one-and-more")


def test_what_is_too_short_to_be_a_secret_masks_nothing() -> None:
    secrecy.remember("a", "", "tools")
    assert "***" not in line(error="tools and a")


def test_a_reference_is_remembered_when_it_is_resolved() -> None:
    assert resolve_secret("env:KEY", {"KEY": "the-key-of-the-shop"}) == "the-key-of-the-shop"
    assert "the-key" not in line(error="refused: the-key-of-the-shop")


def test_an_exceptions_text_loses_the_passwords_of_urls_and_what_is_remembered() -> None:
    secrecy.remember("remembered-secret")
    try:
        raise OSError("cannot reach amqp://ingress:unheard-of@host:5672/ with remembered-secret")
    except OSError:
        told = Line("tools", "0")(None, "error", {"event": "x", "exc_info": True}).decode()
    assert "unheard-of" not in told
    assert "remembered-secret" not in told
    assert "cannot reach amqp://***@host:5672/" in told


def test_what_libraries_log_is_masked_too() -> None:
    secrecy.remember("remembered-secret")
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "remembered-secret", (), None)
    assert "remembered-secret" not in JsonLines("tools", "0").format(record)


def test_settings_name_each_of_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = "ab" * 32
    settings = RuntimeSettings(
        redis_url="redis://ingress:url%2Fsecret@h/0",
        amqp_url="amqp://ingress@h/",
        redis_password=SecretStr("redis-secret"),
        amqp_password=SecretStr("amqp-secret"),
        user_token_secret=SecretStr("u" * 40),
        operator_tokens=SecretStr(f"op:read:{hashed}"),
    )
    assert {"url/secret", "url%2Fsecret", "redis-secret", "amqp-secret", "u" * 40, hashed} <= set(settings.secrets())
