"""Who may import whom, and where names are spelled."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = sorted(path for part in ("libs", "services", "turnkeeper") for path in (ROOT / part).rglob("*.py"))
SPELLED = {"keys.py", "topology.py"}
SERVICES = ("ingress", "session", "consent", "tools")


def named(path):
    return str(path.relative_to(ROOT))


def texts(path):
    """The string literals of a module, docstrings aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    attribute_docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docs
        and id(node) not in attribute_docs
    ]


def test_the_import_rules_hold():
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3_000:]


@pytest.mark.parametrize("path", [path for path in CODE if path.name not in SPELLED], ids=named)
def test_keys_are_spelled_in_keys_py_and_queues_in_topology_py_only(path):
    for text in texts(path):
        assert not re.search(r"\btk:|\{[pisu]\d\d\}", text), f"a key: {text!r}"
        assert not re.fullmatch(
            r"turnkeeper\.(events|notices|sessions|work|dead|plans|archive|session\.\S*|planner|consent|tools|ingress)"
            r"(\.in)?",
            text,
        ), f"a queue: {text!r}"


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_the_same_files(service):
    folder = ROOT / "services" / service
    for name in ("__init__", "__main__", "main", "settings", "metrics", "handlers", "domain", "ports", "store"):
        assert (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists(), name
    assert list(folder.glob("lua/*.lua"))


@pytest.mark.parametrize("path", CODE, ids=named)
def test_every_module_says_what_it_is(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree)
    assert path.stem not in ("utils", "common", "helpers", "base_service")


@pytest.mark.parametrize("service", SERVICES)
def test_the_domain_has_no_await_and_no_clock(service):
    folder = ROOT / "services" / service
    files = [folder / "domain.py"] if (folder / "domain.py").exists() else sorted((folder / "domain").glob("*.py"))
    assert files
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), path
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not {"time", "datetime", "random", "secrets", "uuid"} & set(names), path


@pytest.mark.parametrize("path", [path for path in CODE if named(path).startswith("services")], ids=named)
def test_a_handler_never_settles(path):
    if path.name == "handlers.py":
        assert not re.search(r"\.(ack|nack|reject|basic_\w+)\(", path.read_text(encoding="utf-8"))
