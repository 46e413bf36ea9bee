"""What tests of bound hosts may ask for."""

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

PLACES = (
    BEARER,
    Place(PlaceKind.HEADER, "x-api-key"),
    Place(PlaceKind.HEADER, "authorization", "token "),
    ANY_BASIC,
    Place(PlaceKind.QUERY, "key"),
)


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
    """Return the gate of a cage with the credential `github`, bound to the recorder."""
    binding = CredentialBinding(
        "github", (Destination("api.test"),), PLACES, ca_file=str(outside.file)
    )
    held = CageCredential(binding, placeholder(1))
    async with bound_world(held, server_port=recorder.port) as one:
        yield one
