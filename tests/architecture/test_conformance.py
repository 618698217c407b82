"""Each known failure of other systems is a test: every case about duplicates and approvals is named by one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CASES = Path("tests/data/conformance_cases.txt").read_text(encoding="utf-8").split()
TESTING = Path("docs/testing.md")


def _named() -> Iterator[tuple[str, str]]:
    """(case, `path::test`) of every test whose docstring names a case."""
    for path in Path("tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for case in re.findall(r"\bC\d{3}\b", ast.get_docstring(node) or ""):
                    yield case, f"{path}::{node.name}"


NAMED = set(_named())


@pytest.mark.parametrize("case", CASES)
def test_each_case_is_named_by_a_test_and_told_in_the_docs(case: str) -> None:
    tests = {test for named, test in NAMED if named == case}
    assert tests, f"no test's docstring names {case}"
    (row,) = re.findall(rf"^\| {case} \|.*$", TESTING.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(tests/[^`]+::[^`]+)`", row)) == tests
