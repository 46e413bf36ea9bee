"""A real Python program under debugpy, without a cage and inside one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.dap_lab import DapLab
from fakes.tool_lab import ToolLab, cage
from kaged.cage.orphan_processes import MARK, mark_value
from kaged.toolbox.dap.tool import DEFINITION
from requirements import requirement

PROGRAM = """import os
import sys


class User:
    def __init__(self) -> None:
        self.name = "ada"
        self.address = {"city": "London"}


def double(x):
    y = x * 2
    return y


user = User()
total = 0
for i in range(6):
    total += double(i)
print("total", total, os.environ.get("FOO"), sys.argv[1:], os.getcwd())
sys.exit(3)
"""


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    made = DapLab(tmp_path, wait_s=60.0)
    made.write("src/main.py", PROGRAM)
    (made.root / "src").chmod(0o755)
    (made.root / "src/main.py").chmod(0o644)
    yield made
    await made.close()


@pytest.fixture(params=["uncaged", "default cage"])
def tool_lab(request: pytest.FixtureRequest, lab: DapLab) -> ToolLab:
    if request.param == "uncaged":
        return lab.tool_lab
    return lab.tool_lab_for(cage("ro ./", root=lab.root, capabilities=["exec"]))


async def debug(tool_lab: ToolLab, action: str, **given: Any) -> Any:
    return await tool_lab.call("debug", action=action, **given)


@requirement(
    "AT-DAP-11", "AT-DAP-16", "AT-DAP-20", "AT-DAP-21", "AT-DAP-28", "AT-DAP-38", "AT-DAP-39",
    "AT-DAP-48", "AT-DAP-49", "AT-DAP-50", "AT-DAP-51",
)  # fmt: skip
async def test_a_program_is_debugged_from_entry_to_exit(lab: DapLab, tool_lab: ToolLab) -> None:
    given: dict[str, Any] = {
        "runtime": "python",
        "script": "./src/main.py",
        "args": ["one", "two"],
        "env": {"FOO": "bar"},
        "cwd": "./src",
    }
    begun = await debug(tool_lab, "launch", **given)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    assert begun["location"]["source_preview"] == "import os"
    made = await debug(
        tool_lab, "set_breakpoint", path="./src/main.py", line=12, condition="x == 4"
    )
    assert (made["verified"], made["actual_line"]) == (True, 12)

    hit = await debug(tool_lab, "continue")
    assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
    assert hit["location"]["source_preview"] == "    y = x * 2"
    shown = await debug(tool_lab, "variables")
    assert {"name": "x", "value": "4", "type": "int"} in shown["variables"]
    assert await debug(tool_lab, "evaluate", expression="x + 1") == {"result": "5", "type": "int"}
    assert (await debug(tool_lab, "evaluate", expression="i", frame_id=1))["result"] == "4"
    pid = await debug(tool_lab, "evaluate", expression="__import__('os').getpid()")
    assert int(pid["result"]) != os.getpid()
    refusal = await tool_lab.refusal("debug", action="evaluate", expression="nobody")
    assert "NameError" in refusal.message

    stepped = await debug(tool_lab, "step_over")
    assert (stepped["stopped_reason"], stepped["location"]["line"]) == ("step", 13)
    out = await debug(tool_lab, "step_out")
    assert out["location"]["line"] == 19
    members = await debug(tool_lab, "variables", scope="global", expand="user")
    assert {"name": "user.name", "value": "'ada'", "type": "str"} in members["variables"]
    deeper = await debug(tool_lab, "variables", scope="global", expand="user.address")
    assert any("London" in one["value"] for one in deeper["variables"])

    ended = await debug(tool_lab, "continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 3)
    assert "total 30 bar ['one', 'two']" in ended["output"]
    assert "/src" in ended["output"]
    assert (await debug(tool_lab, "disconnect"))["disconnected"] is True
    assert lab.adapters_running() == 0


@requirement("AT-DAP-28", "AT-BEY-06")
async def test_hit_counts_and_logpoints(lab: DapLab) -> None:
    await lab.debug("launch", runtime="python", script="./src/main.py")
    await lab.debug("set_breakpoint", path="./src/main.py", line=12, hit_count=3)
    await lab.debug("set_breakpoint", path="./src/main.py", line=13, log_message="y is {y}")
    hit = await lab.debug("continue")
    assert (await lab.debug("evaluate", expression="x"))["result"] == "2"
    await lab.debug("remove_breakpoint", path="./src/main.py", line=12)
    ended = await lab.debug("continue")
    assert ended["status"] == "exited"
    assert "y is 10" in hit.get("output", "") + ended["output"]
    assert "log_message breakpoints observe without stopping" in DEFINITION.description


@requirement("AT-DAP-38")
async def test_stepping_into_a_call(lab: DapLab) -> None:
    await lab.debug("launch", runtime="python", script="./src/main.py")
    await lab.debug("set_breakpoint", path="./src/main.py", line=19)
    await lab.debug("continue")
    inside = await lab.debug("step_into")
    assert inside["location"]["line"] == 12
    frames = await lab.debug("stack_trace", levels=2)
    assert [one["name"] for one in frames["frames"]] == ["double", "<module>"]


@requirement("AT-DAP-40", "AT-DAP-41", "AT-DAP-44")
async def test_an_endless_loop_is_paused(tmp_path: Path) -> None:
    lab = DapLab(tmp_path, wait_s=3.0)
    lab.write("loop.py", "import threading, time\nwhile True:\n    time.sleep(0.01)\n")
    await lab.debug("launch", runtime="python", script="./loop.py", stop_on_entry=False)
    await lab.until(lambda: lab.adapters_running() == 1)
    assert (await lab.debug("continue"))["status"] == "running"
    said = await lab.debug("pause")
    assert (said["status"], said["stopped_reason"]) == ("stopped", "pause")
    assert (await lab.debug("threads"))["threads"][0]["name"] == "MainThread"
    await lab.close()
    assert lab.adapters_running() == 0


@requirement("AT-DAP-58")
async def test_what_debugpy_cannot_do_is_said(lab: DapLab) -> None:
    await lab.debug("launch", runtime="python", script="./src/main.py")
    refusal = await lab.tool_lab.refusal(
        "debug", action="write_memory", memory_reference="x", data="aGk="
    )
    assert refusal.code == "dap_unsupported"


@requirement("AT-DAP-05", "AT-DAP-60")
async def test_nothing_of_an_uncaged_program_outlives_its_session(lab: DapLab) -> None:
    lab.write("src/stay.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    started = await lab.debug("launch", runtime="python", script="./src/stay.py")
    mark = f"{MARK}={mark_value(started['debug_session_id'])}".encode()
    assert len(_carrying(mark)) >= 2  # the adapter and the program, which is not in its group
    await lab.bridge.end_run("run_1")
    assert _carrying(mark) == []


def _carrying(mark: bytes) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        try:
            held = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if mark in held.split(b"\0"):
            found.append(entry.name)
    return found
