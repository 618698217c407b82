"""Which Redis commands each service may send: those that its scripts and its Python use, and no other (G10).

`tests/architecture/test_rights.py` compares this table with both, in both directions: a command that a service begins
to use is added here, one that it no longer uses is taken away. Of no service are `KEYS`, `SCAN`, `FLUSHALL`, `DEBUG`,
`EVAL` (scripts are loaded once and run by their digest), `SCRIPT FLUSH`, `ACL`, `MONITOR`, `CLIENT KILL`.
"""

_ALL = ("ingress", "session", "consent", "tools")

_CONNECTION = "hello ping select client|setname"
"""What a connection begins with. Not the category `@connection`: it holds CLIENT KILL and CLIENT PAUSE."""

_COMMANDS: dict[str, tuple[str, ...]] = {
    # scripts, and what readiness looks at: of CONFIG the reading alone
    "evalsha": _ALL,
    "script|load": _ALL,
    "config|get": _ALL,
    "time": ("ingress", "consent", "tools"),
    # strings and all keys
    "get": _ALL,
    "set": _ALL,
    "incr": _ALL,
    "del": _ALL,
    "exists": ("ingress", "consent"),
    "persist": ("tools",),
    "pexpire": _ALL,
    "pexpireat": ("consent", "tools"),
    "pttl": ("ingress", "session", "consent"),
    # hashes
    "hget": _ALL,
    "hset": _ALL,
    "hdel": _ALL,
    "hmget": _ALL,
    "hgetall": ("ingress", "consent", "tools"),
    "hexists": ("ingress", "consent", "tools"),
    "hincrby": ("ingress", "tools"),
    "hlen": ("ingress", "consent", "tools"),
    # sorted sets
    "zadd": _ALL,
    "zrem": _ALL,
    "zrange": _ALL,
    "zrangebyscore": _ALL,
    "zscore": _ALL,
    "zcard": _ALL,
    "zcount": ("consent",),
    "zremrangebyrank": ("consent", "tools"),
    "zremrangebyscore": ("ingress", "consent"),
    # lists
    "llen": ("tools",),
    "lrange": ("session", "tools"),
    "ltrim": ("session", "tools"),
    "rpush": _ALL,
}


def commands_of(service: str) -> list[str]:
    """The commands of a service as Redis' ACL spells them, `command` or `command|subcommand`."""
    return [*_CONNECTION.split(), *(command for command, services in _COMMANDS.items() if service in services)]
