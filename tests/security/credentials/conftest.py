"""Bound hosts before attackers: what tests of attacks may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.bound_world import Authorities, BoundWorld, Recorder, bound_world, placeholder
from kaged.kernel.bindings import (
    ANY_BASIC,
    BEARER,
    CageCredential,
    CredentialBinding,
    Destination,
    Place,
    PlaceKind,
)
from kaged.kernel.request_rules import RequestRule


@pytest.fixture
def outside(tmp_path: Path) -> Authorities:
    """Return the authority of the servers outside."""
    return Authorities(tmp_path)


@pytest.fixture
async def recorder(outside: Authorities) -> AsyncIterator[Recorder]:
    """Return a server that records what reaches it."""
    server = Recorder()
    await server.start(outside.server("api.test"))
    yield server
    await server.close()


@pytest.fixture
async def world(outside: Authorities, recorder: Recorder) -> AsyncIterator[BoundWorld]:
    """Return the gate of a cage whose credential may be used for `/ok/**`, but not to delete."""
    places = (
        BEARER,
        Place(PlaceKind.HEADER, "x-api-key"),
        ANY_BASIC,
        Place(PlaceKind.QUERY, "key"),
    )
    rules = (
        RequestRule(("GET", "POST", "HEAD"), "/ok/**"),
        RequestRule((), "/ok/secret/**", allow=False),
    )
    ca_file = str(outside.file)
    binding = CredentialBinding(
        "github", (Destination("api.test"),), places, rules, ca_file=ca_file
    )
    other = CredentialBinding("other", (Destination("other.test"),), places, ca_file=ca_file)
    held = CageCredential(binding, placeholder(1)), CageCredential(other, placeholder(2))
    async with bound_world(*held, server_port=recorder.port) as one:
        yield one
