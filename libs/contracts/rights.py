"""Who may do what in Redis and RabbitMQ, as the servers read it: an ACL file and a definitions file (G10).

The table is `keys.FAMILIES` (key family → who writes, who reads), `commands` (command → services) and
`topology.permissions` (user → what it writes and reads). Everything here is rendered from it: for the deployment by
`turnkeeper secrets init`, for a private stack by the engines.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from libs.contracts.keys import SERVICES, acl_rules
from libs.contracts.topology import BROKER_USERS, password_hash, permissions

HEALTH_USER = "health"
"""The Redis user of a container's own health check: it may send PING and nothing else."""
REDIS_USERS = (*SERVICES, HEALTH_USER)
NOBODY = "off resetpass"
"""Redis' default user as nobody can be it. It keeps its rights all the same: as this user Redis reads its own
append-only file, and without them it drops every transaction in it, which is all that scripts wrote."""
ANY_NAMESPACE = "*"
"""For servers that many deployments share under one set of users, each with a namespace: those of test runs."""


def login_names() -> list[str]:
    """The logins of a deployment, as `redis_ingress` or `rabbitmq_publisher`."""
    return [*(f"redis_{user}" for user in REDIS_USERS), *(f"rabbitmq_{user}" for user in BROKER_USERS)]


def redis_acl_file(logins: Mapping[str, str], namespace: str, *, default: str = NOBODY) -> str:
    """Redis' ACL file. `logins` maps `redis_<user>` to the password, `default` says who may be the default user.

    Passwords stand in it as SHA-256, as Redis takes them.
    """
    lines = [f"user default {default} allkeys allchannels +@all"]
    for service in SERVICES:
        rules = " ".join(acl_rules(service, namespace))
        lines.append(f"user {service} on #{redis_digest(logins[f'redis_{service}'])} {rules}")
    health = redis_digest(logins[f"redis_{HEALTH_USER}"])
    lines.append(f"user {HEALTH_USER} on #{health} resetkeys resetchannels -@all +ping")
    return "\n".join(lines) + "\n"


def redis_digest(password: str) -> str:
    """A password as Redis' ACL file has it: plain SHA-256, so it must be a random one."""
    return hashlib.sha256(password.encode()).hexdigest()


def broker_users(logins: Mapping[str, str], namespace: str, admin: tuple[str, str]) -> dict[str, Any]:
    """RabbitMQ's definitions of users and their rights, without queues: for a broker whose owner declares them.

    `logins` maps `rabbitmq_<user>` to the password; `admin` (name, password) may do everything.
    """
    space = ".+" if namespace == ANY_NAMESPACE else namespace
    name, password = admin
    users = {name: password, **{user: logins[f"rabbitmq_{user}"] for user in BROKER_USERS}}
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "vhosts": [{"name": "/"}],
        "users": [
            {
                "name": user,
                "password_hash": password_hash(word),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": ["administrator"] if user == name else [],
            }
            for user, word in users.items()
        ],
        "permissions": [
            {"user": user, "vhost": "/", **(everything if user == name else permissions(user, space))} for user in users
        ],
    }
