"""Calls that end otherwise than by an answer: given up, timed out, too many, answered twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from kaged.wire.correlator import TooManyOpen
from kaged.wire.errors import ErrorCode, InternalError, number_of_error
from requirements import requirement

# Tells of each call that began and of each that was cancelled, and answers `a.b` only after that.
PATIENT = """
import json, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def put(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m["method"] == "initialize":
        put(id=m["id"], result={"name": "stub", "version": "1.0.0", "api_version": 1,
                                "methods": ["a.b", "c.d"]})
    elif m["method"] == "a.b":
        put(method="call.began", params={"id": m["id"]})
    elif m["method"] == "c.d":
        put(id=m["id"], result="first")
        put(id=m["id"], result="second")
    elif m["method"] == "kaged.cancel":
        with open(LOG, "a") as log:
            log.write(line)
        put(id=m["params"]["id"], result="late")
        put(method="call.cancelled", params=m["params"])
    elif m["method"] == "shutdown":
        break
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder / "log"


def patient(log: Path) -> dict[str, Any]:
    return {
        "files": {"main.py": f"LOG = {str(log)!r}\n{PATIENT}"},
        "capabilities": [f"write:fs:{log.parent}"],
        "notifications": ["call.began", "call.cancelled"],
    }


@requirement("PH-BEY-09")
async def test_a_caller_that_gives_up_cancels_its_call(lab: PluginLab, log: Path) -> None:
    plugin = await lab.running(**patient(log))
    call = asyncio.get_running_loop().create_task(lab.call(plugin))
    await lab.until_event("plugin.notification")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await lab.until_event("plugin.notification", 2)
    (_, began, first), (_, cancelled, second) = lab.notifications
    assert (began, cancelled) == ("call.began", "call.cancelled")
    assert first == second
    # The late answer harmed nobody, and the record does not call it a success.
    assert await lab.call(plugin, "c.d") == "first"
    returned = await lab.seen("plugin.method_returned")
    assert [data["success"] for _, data in returned] == [False, True]


@requirement("PH-BEY-09")
async def test_a_call_that_times_out_is_cancelled_before_it_is_given_up(
    lab: PluginLab, log: Path
) -> None:
    plugin = await lab.running(**patient(log))
    with pytest.raises(InternalError, match="did not answer"):
        await plugin.call_method("a.b", {}, lab.context(), timeout_s=0.2)
    await lab.until_event("plugin.crashed")
    said = json.loads(log.read_text(encoding="utf-8"))
    began = lab.notifications[0][2]
    assert (said["method"], said["params"]) == ("kaged.cancel", began)


async def test_the_second_answer_to_a_call_is_ignored(lab: PluginLab, log: Path) -> None:
    plugin = await lab.running(**patient(log))
    assert await lab.call(plugin, "c.d") == "first"
    assert await lab.call(plugin, "c.d") == "first"
    assert "answered" in [line.get("why") for line in lab.logs]


@requirement("PH-BEY-10")
async def test_the_sixty_fifth_open_call_is_told_to_come_back(lab: PluginLab, log: Path) -> None:
    plugin = await lab.running(**patient(log))
    loop = asyncio.get_running_loop()
    calls = [loop.create_task(lab.call(plugin)) for _ in range(64)]
    await lab.until_event("plugin.notification", 64)
    with pytest.raises(TooManyOpen) as caught:
        await lab.call(plugin)
    assert number_of_error(caught.value) == ErrorCode.RESOURCE_BUSY
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert await lab.call(plugin, "c.d") == "first"
