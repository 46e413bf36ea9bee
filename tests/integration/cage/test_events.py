"""What the spawner reports is what the audit log declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.cage.conftest import Events
from kaged.audit import AuditEvent
from kaged.cage import CageRequest, GrantRefused, Spawner, Uncaged, UncagedRequest
from kaged.cage.collect import collect
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode


async def test_every_event_is_one_that_the_audit_log_takes(
    spawner: Spawner, events: Events, place: Path
) -> None:
    policy = CagePolicy(fs=(FsGrant(str(place), FsMode.RO),))
    await collect(await spawner.spawn(CageRequest("plugin:a", policy, ("true",))))
    bare = UncagedRequest("lsp:b", Uncaged("language servers see the project"), ("/bin/true",))
    await collect(await spawner.spawn(bare))
    missing = CagePolicy(fs=(FsGrant(str(place / "none"), FsMode.RO),))
    with pytest.raises(GrantRefused):
        await spawner.spawn(CageRequest("plugin:c", missing, ("true",)))
    assert events.names() == [
        "cage.started", "cage.exited", "cage.started", "cage.exited", "cage.refused",
    ]  # fmt: skip
    for name, data in events.all:
        assert AuditEvent(name, data).data == data
    refused = events.last("cage.refused")
    assert refused["path"] == str(place / "none")
    assert refused["code"] == "cage_grant_refused"
