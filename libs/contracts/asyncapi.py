"""What travels over RabbitMQ as an AsyncAPI 3 document, from the messages and the topology. Pure."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from libs.contracts.cloudevents import NOTICE_TYPE, REQUIRED
from libs.contracts.codec import BUNDLE_TYPE, MESSAGE_TYPE, MESSAGES
from libs.contracts.envelope import Envelope, Message
from libs.contracts.session import Notice, PlanMade, PlanRequested
from libs.contracts.topology import WORKERS, Topology

VERSION = "3.1.0"
_SCHEMA = "#/components/schemas/{model}"
_BINDING = "0.3.0"
_TOPICS = get_args(Notice.model_fields["topic"].annotation)


def document(topology: Topology) -> dict[str, Any]:
    """The AsyncAPI document of a deployment with this topology."""
    channels = _channels(topology)
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "Turnkeeper messages",
            "version": "1",
            "description": "Applications publish events, subscribe to notices and may plan turns. What is tagged "
            "internal is between the services: it is listed so that it can be read, and nobody else has the right to "
            "it. Between services several messages for one queue travel as a bundle, a JSON array of envelopes.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": _operations(),
        "components": {"schemas": _schemas(), "messages": _messages()},
    }


def _schemas() -> dict[str, Any]:
    models: list[type[BaseModel]] = [Envelope, *(MESSAGES[name] for name in sorted(MESSAGES))]
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=_SCHEMA)
    text = {"type": "string", "minLength": 1}
    headers = {f"ce-{name}": text for name in (*REQUIRED, "subject", "time", "datacontenttype", "dataschema")}
    notice = {
        **{f"ce-{name}": text for name in (*REQUIRED, "subject", "time")},
        "ce-specversion": {"const": "1.0"},
        "ce-type": {"enum": [f"{NOTICE_TYPE}.{topic}.v1" for topic in _TOPICS]},
        "ce-traceparent": {"type": "string"},
    }
    own = {
        "EventHeaders": {
            "type": "object",
            "description": "The headers of the source's scheme, as over HTTP, or a CloudEvent's attributes; "
            "cloudEvents: and cloudEvents_ are read as ce- is.",
            "properties": headers,
        },
        "NoticeHeaders": {
            "type": "object",
            "description": "A notice is a CloudEvent in binary mode: ce-source and ce-id together are what copies are "
            "known by.",
            "properties": notice,
            "required": [f"ce-{name}" for name in (*REQUIRED, "subject", "time")],
        },
    }
    return dict(sorted({**found["$defs"], **own}.items()))


def _enveloped(name: str) -> dict[str, Any]:
    model = MESSAGES[name].__name__
    return {
        "allOf": [
            {"$ref": _SCHEMA.format(model="Envelope")},
            {
                "type": "object",
                "properties": {"type": {"const": name}, "body": {"$ref": _SCHEMA.format(model=model)}},
                "required": ["type", "body"],
            },
        ]
    }


def _messages() -> dict[str, Any]:
    found: dict[str, Any] = {
        "event": {
            "title": "An event of a source",
            "summary": "Any JSON, or a CloudEvent; signed as the source's scheme says",
            "contentType": "application/json",
            "headers": {"$ref": _SCHEMA.format(model="EventHeaders")},
            "payload": {},
        },
        "dead": {
            "title": "What could not be handled, with the reason",
            "contentType": MESSAGE_TYPE,
            "payload": {"$ref": _SCHEMA.format(model="Envelope")},
        },
    }
    for name, message in sorted(MESSAGES.items()):
        summary = " ".join((message.__doc__ or "").split())
        found[name] = {"name": name, "title": message.__name__, "summary": summary}
        found[name] |= {"contentType": _media(message), "payload": _enveloped(name)}
    found[Notice.wire_type()]["headers"] = {"$ref": _SCHEMA.format(model="NoticeHeaders")}
    return found


def _media(message: type[Message]) -> str:
    return MESSAGE_TYPE if message.TO in ("notices", "archive", "planner") else BUNDLE_TYPE


def _channel(address: str, title: str, messages: list[str], *tags: str, **binding: Any) -> dict[str, Any]:
    kind = "queue" if "queue" in binding else "routingKey"
    return {
        "address": address,
        "title": title,
        "messages": {_key(name): {"$ref": f"#/components/messages/{name}"} for name in messages},
        "tags": [{"name": tag} for tag in tags],
        "bindings": {"amqp": {"is": kind, **binding, "bindingVersion": _BINDING}},
    }


def _key(name: str) -> str:
    """A name of a message within its channel: runtime expressions know no dots."""
    return name.replace(".", "_")


def _to(destination: str) -> list[str]:
    return [name for name, message in sorted(MESSAGES.items()) if destination == message.TO]


def _channels(topology: Topology) -> dict[str, Any]:
    def exchange(name: str, type: str) -> dict[str, Any]:
        return {"name": name, "type": type, "durable": True, "autoDelete": False}

    def queue(name: str) -> dict[str, Any]:
        return {"name": name, "durable": True, "exclusive": False, "autoDelete": False}

    events = _channel("{source}.{type}", "Where publishers publish", ["event"], "public",
                      exchange=exchange(topology.events, "topic"))  # fmt: skip
    events["parameters"] = {
        "source": {"description": "a source of the application file"},
        "type": {"description": "what the event says too; may be left out together with the dot"},
    }
    notices = _channel("{session}.{topic}", "Where applications subscribe", _to("notices"), "public",
                       exchange=exchange(topology.notices, "topic"))  # fmt: skip
    notices["parameters"] = {"session": {"description": "a session, or * for all"}, "topic": {"enum": list(_TOPICS)}}
    sessions = _channel("p{partition}", "The partitions of sessions", _to("session"), "internal",
                        exchange=exchange(topology.sessions, "direct"))  # fmt: skip
    sessions["parameters"] = {"partition": {"description": "two digits, by the hash of the session"}}
    found = {"events": events, "notices": notices, "sessions": sessions}
    for worker in WORKERS:
        tag = "public" if worker == "planner" else "internal"
        name = topology.work_queue(worker)
        found[worker] = _channel(name, f"Work for {worker}", _to(worker), tag, queue=queue(name))
    found["plans"] = _channel(topology.plans, "Answers of planners", [PlanMade.wire_type()], "public",
                              queue=queue(topology.plans))  # fmt: skip
    found["archive"] = _channel(topology.archive, "Evidence, append-only", _to("archive"), "internal",
                                queue=queue(topology.archive))  # fmt: skip
    found["dead"] = _channel(topology.dead, "Dead letters, for operators", ["dead"], "operators",
                             queue=queue(topology.dead))  # fmt: skip
    return found


def _operations() -> Mapping[str, Any]:
    """As an application sees them: what it sends and what it receives."""
    return {
        "publishEvent": _operation("send", "events", ["event"], "Tell what happened"),
        "hearNotice": _operation("receive", "notices", [Notice.wire_type()], "Hear questions, replies and results"),
        "takePlan": _operation("receive", "planner", [PlanRequested.wire_type()], "Take a turn to plan"),
        "answerPlan": _operation("send", "plans", [PlanMade.wire_type()], "Say what shall be done"),
        "readDead": _operation("receive", "dead", ["dead"], "Read what could not be handled"),
    }


def _operation(action: str, channel: str, messages: list[str], summary: str) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "messages": [{"$ref": f"#/channels/{channel}/messages/{_key(name)}"} for name in messages],
    }
