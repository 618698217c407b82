"""The table of rights is what the services use: nothing that they use is missing, and nothing more is granted."""

import pytest

from libs.contracts.commands import commands_of
from libs.contracts.keys import FAMILIES, SERVICES
from tests.support.store_use import use_of

CONNECTION = {"hello", "ping", "select", "client|setname"}
ASKED_WHERE_CONFIG_IS_FORBIDDEN = {"info"}
"""Readiness asks INFO only of a Redis that refuses CONFIG GET; ours grants that."""


@pytest.mark.parametrize("service", SERVICES)
def test_all_that_a_service_asks_of_redis_can_be_read_from_its_text(service):
    assert use_of(service).unread == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_granted_the_commands_that_it_uses_and_no_other(service):
    granted = set(commands_of(service))
    assert granted >= CONNECTION
    assert granted - CONNECTION == use_of(service).commands - CONNECTION - ASKED_WHERE_CONFIG_IS_FORBIDDEN


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_may_write_the_families_that_it_writes_and_no_other(service):
    assert {family.name for family in FAMILIES if service in family.writers} == use_of(service).writes


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_may_read_the_families_that_it_only_reads_and_no_other(service):
    granted = {family.name for family in FAMILIES if service in family.readers and service not in family.writers}
    assert granted == use_of(service).reads


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_may_rule_the_server_or_read_the_whole_keyspace(service):
    forbidden = {
        "keys", "scan", "randomkey", "flushall", "flushdb", "debug", "eval", "script|flush", "script|kill", "acl",
        "monitor", "config", "config|set", "config|rewrite", "client", "client|kill", "client|pause", "shutdown",
        "swapdb", "migrate", "dump", "restore", "rename", "copy", "sort", "move", "replicaof", "module", "info",
    }  # fmt: skip
    granted = set(commands_of(service))
    assert not granted & forbidden
    assert not [command for command in granted if command.startswith(("@", "+"))]
