"""The planner that the application file names, with its secrets; a missing one stops the start, by its reference."""

import re
from collections.abc import Mapping

import httpx2

from libs.contracts.application import Application, resolve_secret
from libs.runtime.clock import Clock
from libs.runtime.settings import SettingsError
from services.session.domain.plan import Plan, View
from services.session.domain.view import CHARACTERS_A_TOKEN, SYSTEM, size, tools_of
from services.session.planners.answers import RemotePlanner
from services.session.planners.calls import Endpoint, Patience
from services.session.planners.http import HttpPlanner
from services.session.planners.openai import RELATE_WANTED, RESERVED, OpenaiPlanner

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name (RFC 9110 §5.1)."""
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding"})


class Elsewhere:
    """Stands where a planner inside the process would: the session asks this one off its partition, never here."""

    async def plan(self, view: View) -> Plan:
        """A fault, since nobody is asked here."""
        return Plan(fault="this planner is asked off the partition")


def build_remote(
    application: Application, environment: Mapping[str, str], clock: Clock, most: int
) -> tuple[RemotePlanner, Endpoint] | None:
    """The planner that is asked over HTTP, `most` times at once, and what to close at the end; None for others.

    Raises SettingsError with every fault.
    """
    planner = application.planner
    if planner.http is not None:
        headers = _headers(planner.http.headers, environment)
        _check_url("planner.http.url", planner.http.url)
        patience = Patience(planner.http.timeout, planner.http.retries)
        endpoint = Endpoint(planner.http.url, headers, patience, most, clock)
        return HttpPlanner(endpoint), endpoint
    if planner.openai is not None:
        chosen = planner.openai
        headers = _authorization(chosen.key, environment)
        _check_url("planner.openai.url", chosen.url)
        if faults := [*_reserved(application), *_too_narrow(application)]:
            raise SettingsError(faults)
        url = f"{chosen.url.rstrip('/')}/chat/completions"
        endpoint = Endpoint(url, headers, Patience(chosen.timeout, chosen.retries), most, clock)
        return OpenaiPlanner(chosen, endpoint, tools_of(application.tools)), endpoint
    return None


def _headers(references: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    headers, faults = {}, []
    for name, reference in references.items():
        where = f"planner.http.headers.{name}"
        if not _NAME.fullmatch(name) or name.lower() in _OURS:
            faults.append(f"{where}: no name of a header that may be set")
            continue
        try:
            headers[name] = _secret(reference, environment)
        except ValueError as error:
            faults.append(f"{where}: {error}")
    if faults:
        raise SettingsError(faults)
    return headers


def _authorization(key: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    if key is None:
        return {}
    try:
        return {"authorization": f"Bearer {_secret(key, environment)}"}
    except ValueError as error:
        raise SettingsError([f"planner.openai.key: {error}"]) from None


def _check_url(where: str, url: str) -> None:
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise SettingsError([f"{where}: {error}"]) from None
    if not parts.host or not 0 < (parts.port or 80) <= 65_535:
        raise SettingsError([f"{where}: it names no host, or a port that there is not"])
    if parts.userinfo:
        raise SettingsError([f"{where}: a password does not belong into the file; give a header by reference instead"])


def _secret(reference: str, environment: Mapping[str, str]) -> str:
    """Raises ValueError that names the reference and never the value."""
    value = resolve_secret(reference, environment)
    if not _VALUE.fullmatch(value):
        raise ValueError(f"what {reference} holds cannot stand in a header: printable ASCII without spaces around it")
    return value


def _reserved(application: Application) -> list[str]:
    return [
        f"tools.{name}: the planner openai has a function of this name; call the tool otherwise"
        for name in sorted(RESERVED & set(application.tools))
    ]


def _too_narrow(application: Application) -> list[str]:
    """The tools and the instructions go with every request: the rest must have room beside them."""
    planner = application.planner.openai
    if planner is None:
        return []
    system = {"role": "system", "content": SYSTEM + planner.instructions + RELATE_WANTED}
    fixed = size([system]) + sum(len(str(tool)) for tool in tools_of(application.tools))
    if fixed <= planner.tokens * CHARACTERS_A_TOKEN * 3 // 4:
        return []
    tokens = fixed // CHARACTERS_A_TOKEN
    return [f"planner.openai.tokens: tools and instructions alone take about {tokens}; allow at least {tokens * 2}"]
