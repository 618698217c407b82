"""The whole ingress service as a process, on the run's servers."""

import asyncio
import base64
import copy
import hashlib
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import yaml

from libs.contracts.topology import Topology
from libs.runtime.topology import declare
from tests.support import service_process
from tests.support.ingress import SEAL_KEYS_TEXT
from tests.support.service_process import PARTITIONS, USER_SECRET, ServiceProcess
from tests.support.webhooks import sign_webhook

WEBHOOK_SECRET = "whsec_" + base64.b64encode(b"w" * 32).decode()
HMAC_SECRET = "an-invented-hmac-secret-of-32-bytes"
OPERATOR = "an-invented-operator-token"

APPLICATION: dict[str, Any] = {
    "sources": {
        "app": {"verify": {"scheme": "user-token"}},
        "restaurant": {
            "verify": {"scheme": "standard-webhooks", "secrets": ["env:WEBHOOK_SECRET"]},
            "route": {"subject": "reservation:{{ data.reservation }}"},
            "unrouted": {"hold": "10m"},
            "types": {"table.gone": {"subject": "reservation:{{ data.reservation }}", "gone": True}},
        },
        "direct": {
            "verify": {"scheme": "standard-webhooks", "secrets": ["env:WEBHOOK_SECRET"]},
            "route": {"session": "{{ data.session }}"},
            "unrouted": {"hold": "2s"},
        },
        "strict": {
            "verify": {"scheme": "standard-webhooks", "secrets": ["env:WEBHOOK_SECRET"]},
            "route": {"session": "{{ data.session }}"},
            "unrouted": {"reject": True},
        },
        "bodies": {
            "verify": {"scheme": "hmac", "secrets": ["env:HMAC_SECRET"], "header": "x-sig", "id_header": "x-id"},
            "route": {"session": "{{ data.session }}"},
        },
        "attributes": {
            "verify": {
                "scheme": "hmac",
                "secrets": ["env:HMAC_SECRET"],
                "header": "x-sig",
                "covers": ["specversion", "id", "source", "type", "subject"],
            },
            "route": {"session": "{{ data.session }}"},
            "types": {"*": {"subject": "{{ ce.subject | default('none') }}"}},
        },
        "billing": {
            "verify": {"scheme": "broker-user", "users": ["guest"]},
            "kind": "system",
            "route": {"session": "{{ data.session }}"},
        },
    },
    "planner": {"scripted": {"rules": "rules.yaml"}},
}


def environment(redis_url: str, amqp_url: str, namespace: str, config: Path, **more: str) -> dict[str, str]:
    """What the service is told."""
    own = {
        "TURNKEEPER_SEAL_KEYS": SEAL_KEYS_TEXT,
        "TURNKEEPER_OPERATOR_TOKENS": f"op:*:{hashlib.sha256(OPERATOR.encode()).hexdigest()}",
        "WEBHOOK_SECRET": WEBHOOK_SECRET,
        "HMAC_SECRET": HMAC_SECRET,
    }
    return service_process.environment(redis_url, amqp_url, namespace, config, **{**own, **more})


class IngressProcess(ServiceProcess):
    """One replica."""

    SERVICE = "ingress"


async def start_ingress(
    redis_url: str, amqp_url: str, namespace: str, folder: Path, *, replicas: int = 1, **more: str
) -> list[IngressProcess]:
    """Ready replicas of one deployment of its own."""
    config = folder / "turnkeeper.yaml"
    application = copy.deepcopy(APPLICATION)
    application["sources"]["billing"]["verify"]["users"] = [broker_user(amqp_url)]
    config.write_text(yaml.safe_dump(application), encoding="utf-8")
    await declare(amqp_url, Topology(namespace, PARTITIONS))
    made = [
        IngressProcess(
            environment(redis_url, amqp_url, namespace, config, TURNKEEPER_REPLICA=str(number), **more),
            folder / f"ingress-{number}.log",
        )
        for number in range(replicas)
    ]
    for replica in made:
        replica.start()
    await asyncio.gather(*(replica.ready() for replica in made))
    return made


def broker_user(amqp_url: str) -> str:
    """Who we are to RabbitMQ."""
    return urlsplit(amqp_url).username or "guest"


def user_token(user: str) -> dict[str, str]:
    """The header of a signed-in user."""
    token = jwt.encode({"sub": user, "exp": int(time.time()) + 600}, USER_SECRET, algorithm="HS256")
    return {"Authorization": f"Bearer {token}"}


def signed(id: str, body: bytes, age: int = 0) -> dict[str, str]:
    """The headers of a genuine webhook sent `age` seconds ago."""
    return sign_webhook(WEBHOOK_SECRET, id, int(time.time()) - age, body)


OPERATOR_HEADERS = {"Authorization": f"Bearer {OPERATOR}"}
