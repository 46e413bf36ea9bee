"""The host is killed between the steps of linking and calling: what it said before, holds."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
from pathlib import Path

import pytest

from fakes.bridge_lab import RealTime
from fakes.forked_children import ForkedChildren
from fakes.service_lab import ServiceLab
from kaged.services.contract import AuthCompleteCall, InvokeCall
from kaged.services.errors import CapabilityError
from raising import raises_code
from requirements import requirement
from thorough import THOROUGH, counted

HOST = Path(__file__).parent / "children" / "dying_host.py"
STAGES = ("begun", "linked", "running")
KILLS = counted(len(STAGES), 30, 500)


def _killed_when(hosts: ForkedChildren, stage: str, folder: Path) -> str:
    """Start a host, kill it with SIGKILL when it got that far; returns the flow it began."""
    hosts.start(str(folder), stage)
    flow_id = next(hosts.lines()).strip()
    hosts.kill()
    assert hosts.wait() == -signal.SIGKILL
    assert flow_id.startswith("caf_")
    return flow_id


async def _restarted(folder: Path) -> ServiceLab:
    lab = ServiceLab(folder, RealTime())
    await lab.open()
    await lab.register()
    return lab


@requirement("SC-AMB-40")
@pytest.mark.timeout(2 * 3600 if THOROUGH else 120)
@pytest.mark.thorough
async def test_what_a_killed_host_had_promised_holds_after_its_restart(tmp_path: Path) -> None:
    with ForkedChildren(HOST) as hosts:
        for number, stage in enumerate(itertools.islice(itertools.cycle(STAGES), KILLS)):
            folder = tmp_path / f"{stage}-{number}"
            folder.mkdir()
            flow_id = await asyncio.to_thread(_killed_when, hosts, stage, folder)
            await _require_promises(stage, folder, flow_id)
            shutil.rmtree(folder)


async def _require_promises(stage: str, folder: Path, flow_id: str) -> None:
    lab = await _restarted(folder)
    assert await lab.calls.settle() == (1 if stage == "running" else 0)

    # The account that was linked works; before that there is none.
    if stage == "begun":
        [row] = (await lab.call("list"))["capabilities"]
        assert row["linked_accounts"] == []
    else:
        assert (await lab.invoke("whoami"))["output"]["account"] == "acct_default"
    if stage == "running":
        # The repeat of a call that may have taken effect is not made again.
        lab.provider.calls.clear()
        for _ in range(2):
            with raises_code("capability_outcome_unknown", CapabilityError):
                await lab.invoke("send", idempotency_key="k")
        assert lab.provider.of(InvokeCall) == []
        assert (await lab.invoke("send", idempotency_key="another"))["ok"]

    # The flow that was under way goes on where it was, and its account works.
    assert (await lab.call("auth.complete", flow_id=flow_id, code="c"))["ok"]
    assert len(lab.provider.of(AuthCompleteCall)) == 1
    later = await lab.invoke("whoami", account_ref="acct_later")
    assert later["output"]["account"] == "acct_later"
    await lab.close()
