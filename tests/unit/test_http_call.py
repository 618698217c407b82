"""How a request is written, and what a status means: pure rules of `libs/contracts/http_call.py` and its model."""

from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from libs.contracts.application import HttpConnector
from libs.contracts.http_call import Unfit, fill_path, fill_query, meaning_of, split_url
from libs.contracts.templates import TemplateError


def path(url: str, **args: Any) -> str:
    return fill_path(split_url(url)[1], {**args, "args": args})


@pytest.mark.parametrize(
    "value", ["a/b", "a?b=c", "a#b", "http://evil.example/", "//evil", "@evil", "%2e%2e", "é ", "a;b=c"]
)
def test_a_value_stays_one_segment_whatever_it_holds(value: str) -> None:
    filled = path("https://api.example/v1/{{ id }}/x", id=value)
    assert filled.count("/") == 3
    assert not set("?#@;") & set(filled)
    assert unquote(filled.split("/")[2]) == value


@given(st.text(min_size=1, max_size=40))
def test_any_text_changes_neither_host_nor_number_of_segments(value: str) -> None:
    try:
        url = "https://api.example" + path("https://api.example/a/{{ id }}/b", id=value)
    except Unfit:
        return
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("https", "api.example", "", "")
    assert parts.path.split("/")[:2] == ["", "a"]
    assert len(parts.path.split("/")) == 4
    assert unquote(parts.path.split("/")[2]) == value


@pytest.mark.parametrize(
    "value", [".", "..", "", "../admin", "x/../../admin", "..\\admin", "a\nb", "a\x00", None, [1], {}]
)
def test_a_value_that_would_lead_elsewhere_is_not_sent(value: Any) -> None:
    with pytest.raises(Unfit):
        path("https://api.example/v1/{{ id }}", id=value)


def test_dots_that_literal_and_value_make_together_are_not_sent() -> None:
    with pytest.raises(Unfit):
        path("https://api.example/v1/.{{ id }}", id=".")
    assert path("https://api.example/v1/v{{ id }}.json", id=1.5) == "/v1/v1.5.json"


def test_a_missing_value_is_told() -> None:
    with pytest.raises(TemplateError):
        path("https://api.example/{{ nothing }}")


def test_a_query_leaves_out_null_and_repeats_lists() -> None:
    query = {"q": "{{ q }}", "n": "{{ n | default(none) }}", "ids": "{{ ids }}", "v": 2, "f": "{{ f }}"}
    assert (
        fill_query(query, {"q": "a&b=c d", "ids": [1, "x/y"], "f": True})
        == "q=a%26b%3Dc%20d&ids=1&ids=x%2Fy&v=2&f=true"
    )
    with pytest.raises(Unfit, match="q"):
        fill_query({"q": "{{ q }}"}, {"q": {"a": 1}})


@pytest.mark.parametrize(("status", "answers", "meaning"), [
    (200, {}, "committed"), (201, {}, "committed"), (204, {}, "committed"),
    (301, {}, "unknown"), (303, {}, "unknown"), (307, {}, "unknown"),
    (400, {}, "refused"), (402, {}, "refused"), (403, {}, "refused"), (404, {}, "refused"), (409, {}, "refused"),
    (422, {}, "refused"), (401, {}, "failed"), (405, {}, "failed"), (415, {}, "failed"),
    (408, {}, "unknown"), (425, {}, "unknown"), (429, {}, "unknown"), (499, {}, "unknown"), (418, {}, "unknown"),
    (500, {}, "unknown"), (502, {}, "unknown"), (503, {}, "unknown"), (504, {}, "unknown"),
    (503, {"503": "failed"}, "failed"), (502, {"503": "failed"}, "unknown"), (502, {"5xx": "failed"}, "failed"),
    (404, {"4xx": "unknown"}, "unknown"), (404, {"404": "committed", "4xx": "unknown"}, "committed"),
    (202, {"202": "unknown"}, "unknown"),
])  # fmt: skip
def test_a_status_means_what_it_proves_unless_the_file_says_otherwise(status: int, answers: Any, meaning: str) -> None:
    assert meaning_of(status, answers) == meaning


URL = "https://api.example/v1/x"


@pytest.mark.parametrize(("part", "fault"), [
    ({"url": "{{ host }}/x"}, "literal"),
    ({"url": "https://{{ host }}/x"}, "literal"),
    ({"url": "https://api.example{{ path }}"}, "literal"),
    ({"url": "https://api.{{ x }}.example/"}, "literal"),
    ({"url": "ftp://api.example/"}, "http"),
    ({"url": "https://ana:secret@api.example/"}, "reference"),
    ({"url": "https://api.example:0/"}, "port"),
    ({"url": "https://api.example:99999/"}, "port"),
    ({"url": "https://api.example/a?b=c"}, "query"),
    ({"url": "https://api.example/a#b"}, "fragment"),
    ({"url": "https://api.example/a/../b"}, "dots"),
    ({"url": "https://api.example/a b"}, "XX"),
    ({"url": "https://api.example/{{ a"}, "XX"),
    ({"url": "https://api.example/{{ a | }}"}, "template"),
    ({"method": "OPTIONS"}, "GET"),
    ({"method": "GET"}, "query"),
    ({"method": "GET", "query": {}, "body": {"a": 1}}, "body"),
    ({"headers": {"Authorization": "Bearer abc"}}, "reference"),
    ({"headers": {"X-Api-Key": "abc"}}, "reference"),
    ({"headers": {"Host": "evil.example"}}, "runtime"),
    ({"headers": {"Turnkeeper-Actor": "ana"}}, "runtime"),
    ({"headers": {"idempotency-key": "1"}}, "runtime"),
    ({"headers": {"a b": "1"}}, "header"),
    ({"headers": {"X": "a\r\nY: b"}}, "ASCII"),
    ({"headers": {"X": "{{ a | }}"}}, "template"),
    ({"headers": {"X": "1", "x": "2"}}, "twice"),
    ({"answers": {"2xy": "committed"}}, "status"),
    ({"answers": {"409": "maybe"}}, "committed"),
    ({"body": {"a": ["{{ b | }}"]}}, "body.a.0"),
    ({"result": {"a": "{{ b | }}"}}, "result.a"),
    ({"query": {"a": "{{ b | }}"}}, "query.a"),
    ({"max_answer": 0}, "greater"),
    ({"retries": 3}, "permitted"),
    ({"idempotency_header": "a b"}, "header"),
])  # fmt: skip
def test_a_wrong_file_is_told_by_path_and_without_a_secret(part: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault) as caught:
        HttpConnector(**{"url": URL, **part})
    assert "abc" not in "".join(error["msg"] for error in caught.value.errors())


def test_the_defaults_are_those_of_the_docs() -> None:
    chosen = HttpConnector(url=URL)
    assert (chosen.method, chosen.timeout, chosen.idempotency_header) == ("POST", 10.0, "Idempotency-Key")
    assert (chosen.max_answer, chosen.reads, chosen.sends_body) == (1_000_000, "json", True)
    assert HttpConnector(url=URL, answers={409: "failed"}).answers == {"409": "failed"}  # as YAML reads it
