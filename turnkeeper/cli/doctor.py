"""`turnkeeper doctor`: what is wrong, and what to do about it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from libs.contracts.keys import SERVICES
from turnkeeper import letters
from turnkeeper import stack as stacks
from turnkeeper.cli.options import STATE, Json, State, target
from turnkeeper.client import Client, ClientError
from turnkeeper.engines import EngineError, EngineUnavailable, docker, external, local, probe
from turnkeeper.ports import is_free
from turnkeeper.printing import fault_line, print_json, print_line
from turnkeeper.stack import DEFAULT_PORT_BASE, Stack, StackError
from turnkeeper.target import Target, TargetError

OLD_SECONDS = 10.0
"""A committed message leaves within milliseconds; after this long somebody should look."""
_OUTBOX = re.compile(r'^turnkeeper_outbox_oldest_seconds\{service="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `todo` says what to do where it is not well."""

    what: str
    well: bool
    says: str
    todo: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(state: State = STATE, as_json: Json = False) -> None:
    """Look at everything that usually goes wrong, and say what to do. The exit status is 1 if something is wrong.

    Without a running stack: whether one could be started here. With one, or a deployment named by the environment:
    its servers, the readiness of each service, messages that wait too long, unknown outcomes, dead letters.

    **Examples**

      turnkeeper doctor

      turnkeeper doctor --json | jq -r 'select(.well | not) | .todo'
    """
    wrong = 0
    for finding in _examine(state):
        wrong += not finding.well
        if as_json:
            print_json(finding.__dict__)
        else:
            _print(finding)
    if wrong:
        raise ClientError(f"{wrong} of these need something done, as said above")


def _print(finding: Finding) -> None:
    print_line(f"{'ok   ' if finding.well else 'WRONG'} {finding.what}: {finding.says}")
    if not finding.well and finding.todo:
        print_line(f"      -> {finding.todo}")


def _examine(state: Path) -> Iterator[Finding]:
    stack = _stack(state)
    try:
        speaking = target(state)
    except TargetError:
        yield Finding("stack", True, f"none runs in {state}")
        yield _engines()
        yield _ports()
        return
    if stack is not None:
        yield from _processes(stack)
        yield _fault("redis", probe.redis_fault(stack.redis_url), "see logs/redis.log, or: turnkeeper down, then up")
    if speaking.amqp:
        yield _fault(
            "rabbitmq", probe.rabbitmq_fault(speaking.amqp), "see logs/rabbitmq.log, or: turnkeeper down, then up"
        )
    with Client(speaking) as client:
        for service in SERVICES:
            yield from _service(client, service)
        yield _unknown(client)
        yield _paused(client)
    yield _dead(speaking)


def _stack(state: Path) -> Stack | None:
    try:
        return stacks.read_stack(state)
    except StackError:
        return None


def _engines() -> Finding:
    """Whether Redis and RabbitMQ can be had here."""
    if external.is_given():
        return Finding("engine", True, "external: both servers are named by the environment")
    try:
        local.find_programs()
        return Finding("engine", True, "local: redis-server and rabbitmq-server are here")
    except EngineUnavailable as error:
        no_local = fault_line(error)
    try:
        docker.check(at_once=True)
        return Finding("engine", True, "docker: an engine answers and has the images")
    except EngineError as error:
        return Finding("engine", False, f"{no_local}; {fault_line(error)}", f"as root: {local.INSTALL}")


def _ports() -> Finding:
    taken = [DEFAULT_PORT_BASE + i for i in range(len(SERVICES)) if not is_free(DEFAULT_PORT_BASE + i)]
    if not taken:
        return Finding("ports", True, f"{DEFAULT_PORT_BASE} to {DEFAULT_PORT_BASE + len(SERVICES) - 1} are free")
    return Finding("ports", False, f"{', '.join(map(str, taken))} taken", "turnkeeper up --port-base 0 takes free ones")


def _processes(stack: Stack) -> Iterator[Finding]:
    for name, runs in stacks.running(stack.state).items():
        todo = f"see {stack.state / 'logs' / name}.log; turnkeeper down, then up, starts it again with its data"
        yield Finding(f"process {name}", runs, "runs" if runs else "has ended", todo)


def _fault(what: str, fault: str | None, todo: str) -> Finding:
    return Finding(what, fault is None, fault or "answers", todo)


def _service(client: Client, service: str) -> Iterator[Finding]:
    urls = client.target.all_urls(service)
    if not urls:
        yield Finding(service, True, f"not looked at: TURNKEEPER_{service.upper()}_URL is not set")
        return
    for url in urls:
        yield _readiness(client, service, url)
    try:
        oldest = max((float(value) for _, value in _OUTBOX.findall(client.metrics(service))), default=0.0)
    except ClientError:
        return  # said above: it does not answer
    says = f"the oldest waits for {oldest:.0f} s" if oldest >= 1 else "nothing waits"
    todo = f"RabbitMQ does not take messages of {service}: is it up, and are its memory and disk alarms off?"
    yield Finding(f"{service} outbox", oldest < OLD_SECONDS, says, todo)


def _readiness(client: Client, service: str, url: str) -> Finding:
    what = f"{service} at {url}"
    try:
        ready, told = client.readiness(service, url)
    except ClientError as error:
        return Finding(
            what, False, fault_line(error).partition(":")[0] + " does not answer", "start it, or mend its URL"
        )
    faults = [f"{name}: {fault}" for name, fault in told.get("faults", {}).items()]
    warnings = [f"warning: {warning}" for warning in told.get("warnings", [])]
    return Finding(what, ready, "; ".join([*faults, *warnings]) or "ready", "mend what it says; it recovers by itself")


def _unknown(client: Client) -> Finding:
    try:
        found = client.operations(state="unknown")
    except (ClientError, TargetError) as error:
        return Finding("unknown operations", False, "cannot be read", fault_line(error))
    named = ", ".join(f"{one['session']} {one['operation']}" for one in found[:5])
    todo = 'find out what became of each, then: turnkeeper resolve SESSION OPERATION committed|failed --note "…"'
    return Finding("unknown operations", not found, f"{len(found)}: {named}" if found else "none", todo)


def _paused(client: Client) -> Finding:
    """A pause is no fault; one that was forgotten is, so each is named with its way out."""
    try:
        found = client.pauses()
    except (ClientError, TargetError) as error:
        return Finding("pauses", False, "cannot be read", fault_line(error))
    named = "; ".join(
        f"{one['kind']} {one['name']}".strip() + f" by {one['by']}, {one['waiting']} waiting" for one in found[:5]
    )
    return Finding("pauses", not found, named or "none", "turnkeeper pause shows them; turnkeeper resume KIND [NAME]")


def _dead(speaking: Target) -> Finding:
    if not speaking.amqp:
        return Finding("dead letters", True, "not looked at: TURNKEEPER_AMQP_URL is not set")
    try:
        count = letters.count(speaking)
    except ClientError as error:
        return Finding("dead letters", False, "cannot be counted", fault_line(error))
    return Finding("dead letters", not count, str(count or "none"), "turnkeeper dead list, then show, replay or drop")
