"""Debug sessions of several sessions and runs, and debuggers that are not there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.dap_lab import DapLab
from fakes.tool_lab import ToolLab, cage
from kaged.toolbox.dap import BUILTIN, dap_tools
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    made = DapLab(tmp_path)
    yield made
    await made.close()


@requirement("AT-DAP-03")
async def test_agents_do_not_see_each_others_sessions(lab: DapLab) -> None:
    await lab.launched()
    for other in (
        lab.tool_lab_for(caller="primary.subagents.b"),
        lab.tool_lab_for(session_id="ses_2"),
    ):
        assert (await other.refusal("debug", action="stack_trace")).code == "dap_session_ended"
        started = await other.call("debug", action="launch", runtime="fake", script="./main.fake")
        assert started["status"] == "stopped"
        await other.call("debug", action="disconnect")
    assert (await lab.debug("threads"))["threads"]


@requirement("AT-DAP-05")
async def test_the_end_of_a_run_ends_its_own_sessions_and_no_others(lab: DapLab) -> None:
    await lab.launched()
    await lab.bridge.end_run("run_other")
    assert lab.adapters_running() == 1
    await lab.bridge.end_run("run_1")
    assert lab.adapters_running() == 0


@requirement("AT-DAP-23")
async def test_a_program_may_have_ended_before_its_launch_is_answered(lab: DapLab) -> None:
    lab.write("main.fake", "x\n")
    given: dict[str, Any] = {"runtime": "fake", "script": "./main.fake", "stop_on_entry": False}
    lab.plan(before={"configurationDone": [_event("exited", exitCode=0), _event("terminated")]})
    said = await lab.debug("launch", **given)
    assert (said["status"], said["exit_code"]) == ("exited", 0)


# -- who may ---------------------------------------------------------------------------------------


@requirement("AT-DAP-13")
async def test_a_debugger_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    lab = DapLab(tmp_path, environ={"PATH": ""})
    lab.write("a.x", "x\n")
    refusal = await lab.tool_lab.refusal("debug", action="launch", runtime="cobol", script="./a.x")
    assert refusal.code == "dap_adapter_not_found"
    assert isinstance(refusal.detail, dict)
    assert refusal.detail["runtime"] == "cobol"
    refusal = await lab.tool_lab.refusal("debug", action="launch", runtime="go", script="./a.x")
    assert refusal.code == "dap_adapter_not_found"
    assert refusal.detail == {
        "runtime": "go",
        "command": ["dlv", "dap", "--client-addr=${client}"],
        "install": "apt install delve",
    }
    await lab.close()


def test_the_default_debuggers() -> None:
    assert (BUILTIN["python"].type, BUILTIN["python"].requires_ptrace) == ("debugpy", False)
    assert (BUILTIN["node"].type, BUILTIN["bun"].type) == ("pwa-node", "bun")
    assert all(BUILTIN[runtime].requires_ptrace for runtime in ("go", "rust", "cpp", "c"))


@requirement("AT-DAP-17")
async def test_without_a_launcher_a_caged_debugger_does_not_start(tmp_path: Path) -> None:
    lab = DapLab(tmp_path, uncaged_only=True)
    lab.write("a.fake", "x\n")
    caged = lab.tool_lab_for(cage("ro ./", root=lab.root, capabilities=["exec"]))
    refusal = await caged.refusal("debug", action="launch", runtime="fake", script="./a.fake")
    assert refusal.code == "dap_adapter_not_found"
    assert lab.received() == []
    await lab.close()


@requirement("AT-DISP-20")
async def test_without_a_bridge_there_is_no_session(tmp_path: Path) -> None:
    tool_lab = ToolLab(tmp_path, dap_tools(lambda _: None))
    assert (await tool_lab.refusal("debug", action="threads")).code == "dap_session_ended"


def _event(name: str, **body: Any) -> dict[str, Any]:
    return {"type": "event", "event": name, "body": body}
