"""The pages match the code: every link, function, test, metric and problem that they name exists."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from libs.contracts.keys import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])
LINK = re.compile(r"\[[^\]\[]*(?:\[[^\]]*\])?[^\]\[]*\]\(([^)\s]+)\)")
"""Target of an inline link."""
CODE_LINK = re.compile(r"\[[^\]]*\]\(\.\./([\w/.]+\.(?:py|lua))\)")
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
PROMISES = [f"G{number}" for number in range(1, 11)]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(text_of(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            dead.append(target)
    assert dead == []


@cache
def functions_of(path: str) -> frozenset[str]:
    """Names of all functions, methods and classes of a Python file, nested ones too."""
    tree = ast.parse(text_of(ROOT / path))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def named_functions(page: Path) -> list[tuple[str, str]]:
    """(file, function) for each name in code font that follows a link to a Python file.

    `… ](../services/x.py) `a` …, `b``: names belong to the nearest link before them, in their sentence or table cell.
    """
    found = []
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    for link in CODE_LINK.finditer(text):
        path = link[1]
        rest = re.split(r"\[[^\]]*\]\(|\n\n|; ", text[link.end() :], maxsplit=1)[0]
        if not path.endswith(".py"):
            continue
        run = re.match(r"(?:\s*\|)?[\s,]*((?:`\w+`(?:,\s+|\s+and\s+then\s+|\s+and\s+)?)+)", rest)
        found += [(path, name) for name in re.findall(r"`(\w+)`", run[1])] if run else []
    return found


@pytest.mark.parametrize("page", ["tour.md", "guarantees.md"])
def test_every_function_named_beside_a_file_is_in_it(page: str) -> None:
    named = named_functions(DOCS / page)
    assert len(named) > 40
    assert [(path, name) for path, name in named if name not in functions_of(path)] == []


def test_every_private_function_of_the_tour_is_in_a_file_that_it_links() -> None:
    text = text_of(DOCS / "tour.md")
    linked = {path for path in CODE_LINK.findall(text) if path.endswith(".py")}
    known = frozenset[str]().union(*(functions_of(path) for path in linked))
    assert {name for name in re.findall(r"`(_\w+)`", text) if name not in known} == set()


def test_the_tour_goes_through_every_service_and_its_scripts() -> None:
    linked = CODE_LINK.findall(text_of(DOCS / "tour.md"))
    for service in ("ingress", "session", "consent", "tools"):
        assert any(path.startswith(f"services/{service}/") and path.endswith(".lua") for path in linked), service


def sections(page: Path) -> dict[str, str]:
    """Text by heading of the second level."""
    parts = re.split(r"^## (.+)$", text_of(page), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_its_line_its_tests_and_what_is_not_promised(promise: str) -> None:
    said = sections(DOCS / "guarantees.md")[promise]
    assert CODE_LINK.search(said)
    assert len(NAMED_TEST.findall(said)) >= 2
    assert re.search(rf"`tests/mutants/{promise.lower()}-[\w-]+\.patch`", said)
    assert "**Tried.**" in said
    assert "**Not promised.**" in said


def test_every_test_that_a_page_names_exists() -> None:
    named = [found for page in PAGES for found in NAMED_TEST.findall(text_of(page))]
    assert len(named) > 40
    missing = [(path, name) for path, name in named if not (ROOT / path).exists() or name not in functions_of(path)]
    assert missing == []


def test_every_patch_that_a_page_names_exists() -> None:
    named = {name for page in PAGES for name in re.findall(r"tests/mutants/([a-z0-9-]+\.patch)", text_of(page))}
    assert {name for name in named if not (ROOT / "tests" / "mutants" / name).exists()} == set()


def test_what_is_rendered_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "render.py"), "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def metrics_of_code() -> set[str]:
    """Names as they are scraped: counters with `_total`, the build's info with `_info`."""
    names = set()
    for file in [*(ROOT / "services").rglob("metrics.py"), ROOT / "libs/runtime/metrics.py"]:
        for kind, name in re.findall(r"\b(Counter|Gauge|Histogram|Info)\(\s*\"(turnkeeper_\w+)\"", text_of(file)):
            names.add(name + {"Counter": "_total", "Info": "_info"}.get(kind, ""))
    return names


def test_every_metric_is_explained_to_operators_and_no_other() -> None:
    explained = set(re.findall(r"^\| `(turnkeeper_\w+)`", text_of(DOCS / "operations.md"), re.MULTILINE))
    assert explained == metrics_of_code()


def test_every_alert_has_its_line() -> None:
    rules = text_of(ROOT / "deploy/prometheus/alerts.yml")
    told = text_of(DOCS / "operations.md")
    assert [name for name in re.findall(r"alert: (\w+)", rules) if f"`{name}`" not in told] == []


def problems_of_code() -> set[str]:
    """The code of each problem that a service or the runtime answers with."""
    found = set()
    for file in [*(ROOT / "services").rglob("*.py"), *(ROOT / "libs/runtime").rglob("*.py")]:
        text = text_of(file)
        found |= set(re.findall(r"Problem\(\s*(?:\d{3}|error\.status_code),\s*\"([a-z-]+)\"", text))
        found |= set(re.findall(r"\(\d{3}, \"([a-z]+(?:-[a-z]+)*)\", \"", text))  # tables of refusals
    return found


def test_every_problem_has_its_heading_and_only_once() -> None:
    headings = re.findall(r"^## (\S+)$", text_of(DOCS / "problems.md"), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(headings) == problems_of_code()


SHARED = {"attempts", "evidence", "evidencedue", "outbox", "outboxdue", "partitions", "epoch", "probe"}
"""Families of the runtime, which every service has."""


@pytest.mark.parametrize("service", ["ingress", "session", "consent", "tools"])
def test_a_package_names_exactly_the_key_families_that_its_service_writes(service: str) -> None:
    said = ast.get_docstring(ast.parse(text_of(ROOT / "services" / service / "__init__.py"))) or ""
    _, begins, owned = said.partition("in Redis")
    assert begins, "the package says what it owns in Redis"
    words = set(re.findall(r"[a-z]+", re.split(r"\n\n|\n- ", owned)[0]))
    families = {family.name: family.writers for family in FAMILIES if family.name not in SHARED}
    assert words & set(families) == {name for name, writers in families.items() if service in writers}


def test_the_files_of_a_page_say_nothing_of_another_machine() -> None:
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(?:work|home|root)/", text_of(page)), page.name
