"""What each service asks of Redis, read from its Lua scripts and its Python: commands, and key families.

Read from the text and not from traffic, so that a path that no test takes is seen too.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from libs.contracts.keys import FAMILIES

ROOT = Path(__file__).parents[2]
_CALL = re.compile(r"redis\.p?call\('(\w+)'")
_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)
_CLIENT = {
    "ping": "ping", "set": "set", "get": "get", "info": "info",
    "config_get": "config|get", "script_load": "script|load",
}  # fmt: skip
"""Methods of the client that the runtime calls by themselves, and the command that each sends."""
_QUIET = {"aclose"}
_KEY_METHODS = {
    "in_partition": None, "of_session": None, "of_session_partition": None, "in_shard": None, "of_event": None,
    "in_subject_shard": None, "of_subject": None, "in_user_shard": None, "of_user": None, "of_user_shard": None,
    "meta": None,
    "dedupe_days": ("dedupe",), "outcome_bucket": ("outcome",), "outcome_bucket_in": ("outcome",),
    "binding_bucket": ("binding",), "outbox": ("outbox", "outboxdue"),
}  # fmt: skip
"""How a key is made, and the family where the name of the method says it."""
READS = frozenset(
    {"GET", "MGET", "EXISTS", "TTL", "PTTL", "TYPE", "STRLEN", "HGET", "HMGET", "HGETALL", "HLEN", "HEXISTS", "HKEYS",
     "HVALS", "HSCAN", "ZRANGE", "ZRANGEBYSCORE", "ZREVRANGE", "ZSCORE", "ZCARD", "ZCOUNT", "ZRANK", "ZMSCORE",
     "LRANGE", "LLEN", "LINDEX", "SCARD", "SMEMBERS", "SISMEMBER"}
)  # fmt: skip
"""Commands that change nothing."""
FAMILY_NAMES = frozenset(family.name for family in FAMILIES)


@dataclass
class Use:
    """What one service asks of Redis. Families are those that it makes keys of, by whether it only reads them."""

    commands: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)
    """Places that could not be understood: the test fails on them, so that nothing slips through."""


@cache
def use_of(service: str) -> Use:
    """What a service asks of Redis, its share of the runtime included."""
    use = Use()
    for folder in (ROOT / "services" / service, ROOT / "libs" / "runtime"):
        for path in sorted(folder.rglob("*.py")):
            _python(path, use)
    scripts = [
        *(ROOT / "services" / service / "lua").glob("*.lua"),
        ROOT / "libs/runtime/lua/bury_message.lua",
        ROOT / "libs/runtime/lua/count_attempt.lua",
    ]
    for path in scripts:
        use.commands |= _of_script(path)
    use.reads -= use.writes
    return use


def _of_script(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    included = [ROOT / f"libs/runtime/lua/{name}.lua" for name in _INCLUDE.findall(text)]
    code = re.sub(r"--.*", "", text)
    return {"evalsha", *(name.lower() for name in _CALL.findall(code))}.union(
        *(_of_script(one) - {"evalsha"} for one in included)
    )


def _python(path: Path, use: Use) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    short = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    """`of = self._keys.of_session`: a method under a short name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = short.get(node.func.id) if isinstance(node.func, ast.Name) else node.func
        if not isinstance(called, ast.Attribute):
            continue
        name, owner = called.attr, called.value
        where = f"{path.relative_to(ROOT)}:{node.lineno}"
        if name == "command" and _is_store(owner):
            _plain_command(node, where, use)
        elif isinstance(owner, ast.Attribute) and owner.attr == "redis" and name not in _QUIET:
            if name in _CLIENT:
                use.commands.add(_CLIENT[name])
            else:
                use.unread.append(f"{where}: redis.{name} is not known here")
        elif name in _KEY_METHODS and _is_keys(owner):
            for family in _families(node, name, tree, parents, where, use):
                (use.reads if _only_read(node, parents) else use.writes).add(family)


def _is_store(owner: ast.expr) -> bool:
    named = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return named.lstrip("_") == "store"


def _is_keys(owner: ast.expr) -> bool:
    named = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return named.lstrip("_") == "keys"


def _plain_command(node: ast.Call, where: str, use: Use) -> None:
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        use.commands.add(first.value.lower())
    else:
        use.unread.append(f"{where}: the command is not a literal")


def _families(
    node: ast.Call, name: str, tree: ast.AST, parents: dict[ast.AST, ast.AST], where: str, use: Use
) -> Iterator[str]:
    fixed = _KEY_METHODS[name]
    if fixed is not None:
        yield from fixed
        return
    first = node.args[0]
    if isinstance(first, ast.Constant):
        yield first.value
        return
    found = {value for value in _values(first, node, tree, parents) if value in FAMILY_NAMES}
    if not found:
        use.unread.append(f"{where}: the family is not a literal, nor given as one to its function")
    yield from found


def _values(name: ast.expr, at: ast.AST, tree: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[str]:
    """What a variable may be: the literals that its comprehension runs over, or that its function is called with."""
    if not isinstance(name, ast.Name):
        return
    node: ast.AST | None = at
    while node is not None:
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.For):
            loops = [node] if isinstance(node, ast.For) else node.generators
            for loop in loops:
                if isinstance(loop.target, ast.Name) and loop.target.id == name.id:
                    yield from _literals(loop.iter)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and _called(call) == node.name:
                    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                        yield from _literals(argument)
            return
        node = parents.get(node)


def _literals(node: ast.AST) -> Iterator[str]:
    yield from (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _only_read(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a key that is made here goes to commands that only read. A script counts as writing: Redis demands both
    rights of every key that EVALSHA is given."""
    up: ast.AST | None = node
    while up is not None and not isinstance(up, ast.stmt):
        if isinstance(up, ast.Call) and _called(up) == "command":
            return _reads(up)
        if isinstance(up, ast.Call) and _called(up) == "run":
            return False
        up = parents.get(up)
    if isinstance(up, ast.Assign) and len(up.targets) == 1:
        names = {one.id for one in ast.walk(up.targets[0]) if isinstance(one, ast.Name)} - {"_"}
        scope: ast.AST | None = up
        while scope is not None and not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            scope = parents.get(scope)
        uses = [
            one
            for one in ast.walk(scope or up)
            if isinstance(one, ast.Name) and one.id in names and isinstance(one.ctx, ast.Load)
        ]
        return bool(uses) and all(_used_for_reading(one, parents) for one in uses)
    return False


def _used_for_reading(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    up = parents.get(node)
    while up is not None and not isinstance(up, ast.stmt):
        if isinstance(up, ast.Call):
            if _called(up) in ("command", "get", "set"):
                return _reads(up)
            if _called(up) == "run":
                return False
        up = parents.get(up)
    return False


def _reads(call: ast.Call) -> bool:
    if _called(call) in ("get", "set"):
        return _called(call) == "get"
    first = call.args[0]
    return isinstance(first, ast.Constant) and first.value in READS
