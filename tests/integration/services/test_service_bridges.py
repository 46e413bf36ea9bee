"""Bridges: programs of both generations work unmodified, and see what they should and no more."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.bridge_lab import BridgeLab, alive, until
from kaged.services.contract import AuthBeginCall, CapabilityCallContext
from kaged.services.errors import CapabilityAuthFlowDenied, CapabilityInvalidInput
from kaged.services.providers.bridge_command import BridgeSpec, bridge_env


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[BridgeLab]:
    found = BridgeLab(tmp_path)
    await found.open()
    found.start()
    yield found
    await found.close()


def keys_in(value: Any) -> set[str]:
    """Return the keys of all objects in some JSON."""
    if isinstance(value, dict):
        return {*value, *(k for v in value.values() for k in keys_in(v))}
    if isinstance(value, list):
        return {k for v in value for k in keys_in(v)}
    return set()


def test_the_secret_is_set_last() -> None:
    spec = BridgeSpec("x", "x", ("x",), env=(("ASH_CONTEXT_TOKEN_SECRET", "mine"), ("A", "1")))
    env = bridge_env(spec, {"ASH_CONTEXT_TOKEN": "t", "ASH_CONTEXT_TOKEN_SECRET": "host"}, "key")
    assert dict(env) == {"A": "1", "ASH_CONTEXT_TOKEN_SECRET": "key"}
    assert env[-1][0] == "ASH_CONTEXT_TOKEN_SECRET"


async def test_a_device_flow_of_a_bridge_is_polled_to_its_end(lab: BridgeLab) -> None:
    ready = lab.root / "ready"
    await lab.add("bridge_g2.py", env=(("BRIDGE_READY", str(ready)),))
    flow = await lab.call("auth.begin", capability="gog.devices")
    assert (flow["flow_type"], flow["user_code"]) == ("device_code", "ABCD-EFGH")
    pending = await lab.call("auth.poll", flow_id=flow["flow_id"])
    assert pending == {"status": "pending", "retry_after_seconds": 3}
    ready.touch()
    lab.clock.advance(3)
    done = await lab.call("auth.poll", flow_id=flow["flow_id"])
    assert done == {"ok": True, "account_ref": "acct_device"}
    revoked = await lab.call("auth.revoke", capability="gog.devices", account_ref="acct_device")
    assert revoked["provider_revoked"] is True
    flow = await lab.call("auth.begin", capability="gog.email")
    url = "https://h/?code=denied&state=state-alice"
    with pytest.raises(CapabilityAuthFlowDenied):
        await lab.call("auth.complete", flow_id=flow["flow_id"], callback_url=url)


async def test_a_persistent_bridge_is_one_process_for_many_calls(lab: BridgeLab) -> None:
    await lab.add("bridge_g2.py", mode="persistent")
    flow = await lab.call("auth.begin", capability="gog.email")
    url = "https://h/?code=c&state=state-alice"
    await lab.call("auth.complete", flow_id=flow["flow_id"], callback_url=url)
    answers = await asyncio.gather(*(lab.invoke("whoami") for _ in range(20)))
    [pid] = {one["output"]["pid"] for one in answers}
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
    await until(lambda: not lab.spawner.running)  # the host has noticed, too
    again = (await lab.invoke("whoami"))["output"]["pid"]
    assert again != pid


async def test_a_waiting_process_is_used_by_the_next_call(lab: BridgeLab) -> None:
    provider = await lab.add("bridge_g1.py")
    await lab.invoke("ping")
    await until(lambda: len(lab.spawner.running) == 1)
    [waiting] = lab.spawner.running
    started = len([one for one in lab.processes if one[0] == "cage.started"])
    await lab.invoke("ping")
    assert waiting not in lab.spawner.running
    assert len([one for one in lab.processes if one[0] == "cage.started"]) <= started + 1
    await until(lambda: len(lab.spawner.running) == 1)
    await provider.close()
    assert not lab.spawner.running


async def test_many_calls_at_once_stay_within_the_cap(lab: BridgeLab) -> None:
    provider = await lab.add("bridge_g1.py", timeout_s=120, max_concurrency=3, mode="cold")
    answers = await asyncio.gather(*(lab.invoke("ping", f"user{n}") for n in range(9)))
    assert [one["output"]["user"] for one in answers] == [f"user{n}" for n in range(9)]
    assert provider.most_running == 3


async def test_a_blank_user_never_starts_a_process(lab: BridgeLab) -> None:
    provider = lab.bridge("bridge_g1.py")
    with pytest.raises(CapabilityInvalidInput):
        await provider.auth_begin(AuthBeginCall("gog.email", None, CapabilityCallContext(" ")))
    assert lab.processes == []
    await provider.close()


async def test_the_start_without_a_cage_is_on_record(lab: BridgeLab) -> None:
    await lab.add("bridge_g1.py")
    started = [data for name, data in lab.processes if name == "cage.started"]
    assert started[0]["caged"] is False
    assert "without a cage" in started[0]["weaknesses"][0]
