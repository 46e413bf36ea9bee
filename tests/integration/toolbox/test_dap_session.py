"""Debug sessions: whose they are, how they begin, how they end; with a planned adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.dap_lab import DapLab, stopped
from fakes.tool_lab import ToolLab, cage
from kaged.cage import CageProcess
from kaged.config.serverchoice import AdapterChoice
from kaged.kernel.policy import CagePolicy
from kaged.toolbox.dap import BUILTIN, caged_launcher, dap_tools
from kaged.toolbox.dap.adapters import AdapterPlan
from kaged.toolbox.dap.tool import ACTIONS, DEFINITION
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    made = DapLab(tmp_path)
    yield made
    await made.close()


@requirement("AT-REG-13", "AT-AMB-15")
def test_the_tool_has_twenty_seven_actions() -> None:
    properties: Any = DEFINITION.parameters["properties"]
    assert properties["action"]["enum"] == [
        "launch",
        "attach",
        "set_breakpoint",
        "remove_breakpoint",
        "list_breakpoints",
        "set_instruction_breakpoint",
        "remove_instruction_breakpoint",
        "data_breakpoint_info",
        "set_data_breakpoint",
        "remove_data_breakpoint",
        "step_into",
        "step_over",
        "step_out",
        "continue",
        "pause",
        "stack_trace",
        "threads",
        "scopes",
        "variables",
        "evaluate",
        "disassemble",
        "read_memory",
        "write_memory",
        "modules",
        "loaded_sources",
        "custom_request",
        "disconnect",
    ]
    assert len(ACTIONS) == 27
    assert DEFINITION.namespace == "debug"


@requirement("AT-DAP-51")
def test_agents_are_told_to_prefer_watch() -> None:
    assert "context=watch" in DEFINITION.description
    assert "arbitrary code" in DEFINITION.description


@requirement("AT-DAP-01", "AT-DISP-12")
async def test_actions_need_their_parameters(lab: DapLab) -> None:
    broken: list[dict[str, Any]] = [
        {},
        {"action": "fly"},
        {"action": "launch", "runtime": "fake"},
        {"action": "launch", "script": "./a"},
        {"action": "attach", "runtime": "fake"},
        {"action": "attach", "runtime": "fake", "port": 0},
        {"action": "attach", "runtime": "fake", "port": 65_536},
        {"action": "set_breakpoint", "path": "./a"},
        {"action": "set_breakpoint", "path": "./a", "line": 0},
        {"action": "evaluate"},
        {"action": "read_memory", "memory_reference": "x"},
        {"action": "read_memory", "memory_reference": "x", "count": 65_537},
        {"action": "stack_trace", "levels": 0},
        {"action": "threads", "unknown": 1},
    ]
    for params in broken:
        assert (await lab.tool_lab.refusal_with("debug", params)).code == "invalid_params", params
    assert lab.adapters_running() == 0


@requirement("AT-DAP-08", "AT-DAP-07", "AT-DAP-22")
@pytest.mark.parametrize("late", [False, True])
async def test_the_opening_is_in_order_whenever_launch_is_answered(lab: DapLab, late: bool) -> None:
    lab.plan(late_launch=late)
    said = await lab.launched(args=["a"], env={"K": "v"})
    assert said["debug_session_id"].startswith("dap_")
    assert (said["status"], said["stopped_reason"]) == ("stopped", "entry")
    assert said["threads"] == [{"id": 7, "name": "main"}]
    assert lab.commands()[:3] == ["initialize", "launch", "configurationDone"]
    assert [one["seq"] for one in lab.received()] == list(range(1, len(lab.received()) + 1))
    (launch,) = lab.received("launch")
    assert launch["arguments"]["program"] == str(lab.root.resolve() / "main.fake")
    assert launch["arguments"]["args"] == ["a"]
    assert launch["arguments"]["env"] == {"K": "v"}
    assert launch["arguments"]["cwd"] == str(lab.root.resolve())


@requirement("AT-DAP-07")
async def test_what_an_adapter_asks_is_answered(lab: DapLab) -> None:
    asked = [
        {"type": "request", "command": "runInTerminal", "arguments": {"args": ["x"]}},
        {"type": "request", "command": "startDebugging", "arguments": {}},
        {"type": "event", "event": "unknownEvent", "body": {}},
    ]
    lab.plan(before={"launch": asked})
    await lab.launched()
    await lab.debug("threads")
    answers = [one for one in lab.received() if one["type"] == "response"]
    assert [(one["command"], one["success"]) for one in answers] == [
        ("runInTerminal", False),
        ("startDebugging", False),
    ]


@requirement("AT-DAP-02", "AT-AUD-09")
async def test_an_agent_has_one_session_at_a_time(lab: DapLab) -> None:
    first = await lab.launched()
    refusal = await lab.tool_lab.refusal(
        "debug", action="launch", runtime="fake", script="./main.fake"
    )
    assert refusal.code == "dap_session_active"
    refusal = await lab.tool_lab.refusal("debug", action="attach", runtime="fake", port=5)
    assert refusal.code == "dap_session_active"
    assert (await lab.debug("threads"))["threads"] == [{"id": 7, "name": "main"}]
    assert lab.adapters_running() == 1
    assert lab.events == [
        (
            "debug.session_started",
            {
                "debug_session_id": first["debug_session_id"],
                "runtime": "fake",
                "script": "./main.fake",
                "caller": "primary",
            },
        )
    ]


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


@requirement("AT-DAP-04", "AT-DAP-61")
async def test_without_a_session_every_other_action_says_so(lab: DapLab) -> None:
    lab.write("a.fake", "x\n")
    given: dict[str, Any] = {
        "path": "./a.fake",
        "line": 1,
        "expression": "1",
        "memory_reference": "m",
        "count": 1,
        "data": "aGk=",
        "command": "x",
        "name": "n",
        "data_id": "d",
        "instruction_reference": "i",
    }

    async def all_refused() -> None:
        for action in ACTIONS:
            if action not in {"launch", "attach"}:
                refusal = await lab.tool_lab.refusal("debug", action=action, **given)
                assert refusal.code == "dap_session_ended", action

    await all_refused()
    await lab.launched()
    await lab.debug("disconnect")
    await all_refused()


@requirement("AT-DAP-27")
@pytest.mark.parametrize("fault", ["refuses", "dies", "dies at once"])
async def test_a_failed_launch_leaves_nothing_behind(lab: DapLab, fault: str) -> None:
    what = {"refuses": {"error": "Build error: no such file"}}.get(fault, "die")
    lab.answer("initialize" if fault == "dies at once" else "launch", what)
    lab.write("main.fake", "x\n")
    refusal = await lab.tool_lab.refusal(
        "debug", action="launch", runtime="fake", script="./main.fake"
    )
    if fault == "refuses":
        assert "Build error" in refusal.message
    assert lab.adapters_running() == 0
    assert lab.events == []
    lab.plan(answers={})
    assert (await lab.launched())["status"] == "stopped"


@requirement("AT-DAP-05", "AT-DAP-06", "AT-AUD-10", "AT-DAP-63")
@pytest.mark.parametrize("how", ["run", "project"])
async def test_the_end_of_a_run_or_project_ends_its_sessions(lab: DapLab, how: str) -> None:
    lab.plan(stay=True)  # an adapter that outlives its input and SIGTERM
    started = await lab.launched()
    if how == "run":
        await lab.bridge.end_run("run_other")
        assert lab.adapters_running() == 1
        await lab.bridge.end_run("run_1")
    else:
        await lab.bridge.close()
    assert lab.adapters_running() == 0
    name, data = lab.events[-1]
    assert (name, data["reason"]) == ("debug.session_ended", "run_ended")
    assert data["debug_session_id"] == started["debug_session_id"]
    assert (await lab.tool_lab.refusal("debug", action="threads")).code == "dap_session_ended"


@requirement("AT-FAIL-05", "AT-AUD-10")
async def test_an_adapter_that_dies_ends_the_session_as_a_crash(lab: DapLab) -> None:
    await lab.launched()
    lab.answer("threads", "die")
    assert (await lab.tool_lab.refusal("debug", action="threads")).code == "dap_session_ended"
    await lab.until(lambda: len(lab.events) == 2)
    assert lab.events[-1][1]["reason"] == "crash"
    assert (await lab.tool_lab.refusal("debug", action="continue")).code == "dap_session_ended"
    lab.plan(answers={})
    assert (await lab.launched())["status"] == "stopped"


@requirement("AT-DAP-62", "AT-FAIL-06")
async def test_a_program_that_ended_can_be_launched_again(lab: DapLab) -> None:
    await lab.launched()
    lab.after("continue", {"event": "exited", "body": {"exitCode": 3}}, {"event": "terminated"})
    assert await lab.debug("continue") == {"status": "exited", "exit_code": 3}
    assert await lab.debug("step_over") == {"status": "exited", "exit_code": 3}
    assert (await lab.launched())["status"] == "stopped"
    names = [name for name, _ in lab.events]
    assert names == ["debug.session_started", "debug.session_ended", "debug.session_started"]
    assert lab.events[1][1]["reason"] == "disconnect"


@requirement("AT-DAP-60")
@pytest.mark.parametrize("terminate", [True, False])
async def test_disconnect_ends_the_adapter(lab: DapLab, terminate: bool) -> None:
    await lab.launched()
    said = await lab.debug("disconnect", terminate_debuggee=terminate)
    assert said == {"disconnected": True, "debuggee_terminated": terminate}
    assert lab.adapters_running() == 0
    (asked,) = lab.received("disconnect")
    assert asked["arguments"] == {"terminateDebuggee": terminate}
    assert lab.events[-1][1]["reason"] == "disconnect"


@requirement("AT-DAP-23")
async def test_without_stop_on_entry_the_program_runs(lab: DapLab) -> None:
    lab.write("main.fake", "x\n")
    given: dict[str, Any] = {"runtime": "fake", "script": "./main.fake", "stop_on_entry": False}
    said = await lab.debug("launch", **given)
    assert said["status"] == "running"
    assert "stopped_reason" not in said
    await lab.debug("disconnect")
    lab.plan(before={"configurationDone": [_event("exited", exitCode=0), _event("terminated")]})
    said = await lab.debug("launch", **given)
    assert (said["status"], said["exit_code"]) == ("exited", 0)


@requirement("AT-DAP-25")
async def test_attach_names_host_and_port(lab: DapLab) -> None:
    said = await lab.debug("attach", runtime="fake", port=5678, host="127.0.0.1")
    assert said["status"] == "running"
    (asked,) = lab.received("attach")
    assert (asked["arguments"]["host"], asked["arguments"]["port"]) == ("127.0.0.1", 5678)
    assert lab.events[0][1]["script"] is None
    await lab.debug("disconnect", terminate_debuggee=False)


# -- who may ---------------------------------------------------------------------------------------


@requirement("AT-DAP-14", "AT-DAP-15")
async def test_a_caged_caller_needs_exec_and_something_to_read(lab: DapLab) -> None:
    lab.write("src/a.fake", "x\n")
    given: dict[str, Any] = {"action": "launch", "runtime": "fake", "script": "./src/a.fake"}
    without = lab.tool_lab_for(cage("ro ./src", root=lab.root))
    refusal = await without.refusal("debug", **given)
    assert (refusal.code, "exec" in str(refusal.detail)) == ("capability_denied", True)
    nothing = lab.tool_lab_for(cage(root=lab.root, capabilities=["exec"]))
    assert (await nothing.refusal("debug", action="threads")).code == "capability_denied"
    reading = lab.tool_lab_for(cage("ro ./src", root=lab.root, capabilities=["exec"]))
    assert (await reading.refusal("debug", action="threads")).code == "dap_session_ended"


@requirement("AT-DAP-24")
async def test_launch_looks_at_its_paths_first(lab: DapLab) -> None:
    lab.write("src/a.fake", "x\n")
    lab.write("lib/b.fake", "x\n")
    caged = lab.tool_lab_for(cage("ro ./src", root=lab.root, capabilities=["exec"]))
    for tool_lab, script, cwd, code in (
        (lab.tool_lab, "../x", "./", "invalid_params"),
        (lab.tool_lab, "./src/a.fake", "../", "invalid_params"),
        (lab.tool_lab, "./none", "./", "file_not_found"),
        (lab.tool_lab, "./src/a.fake", "./none", "file_not_found"),
        (caged, "./lib/b.fake", "./src", "capability_denied"),
        (caged, "./src/a.fake", "./lib", "capability_denied"),
    ):
        refusal = await tool_lab.refusal(
            "debug", action="launch", runtime="fake", script=script, cwd=cwd
        )
        assert refusal.code == code, (script, cwd)
    assert lab.adapters_running() == 0


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


@requirement("AT-DAP-18", "AT-DAP-19", "AT-DAP-20", "AT-AMB-19")
async def test_debuggers_that_need_ptrace_need_a_relaxed_cage(tmp_path: Path) -> None:
    seen: list[tuple[CagePolicy, AdapterPlan]] = []
    lab = DapLab(tmp_path)

    async def spy(policy: CagePolicy, plan: AdapterPlan, cwd: str) -> CageProcess:
        seen.append((policy, plan))
        return await caged_launcher(lab.spawner)(policy, plan, cwd)

    lab.bridge.launcher = spy
    true = ("/bin/true",)
    lab.bridge.adapters = {
        "silent": AdapterChoice("x", None, true, None),
        "tracing": AdapterChoice("x", None, true, True),
        "harmless": AdapterChoice("x", None, true, False),
    }
    lab.write("a.x", "x\n")
    default = lab.tool_lab_for(cage("ro ./", root=lab.root, capabilities=["exec"]))
    for runtime in ("silent", "tracing"):
        refusal = await default.refusal("debug", action="launch", runtime=runtime, script="./a.x")
        assert (refusal.code, refusal.number) == ("dap_requires_relaxed_seccomp", -32001)
        assert "relaxed" in (refusal.fix or "")
        assert default.audit.names()[-1] == "tool.denied"
    assert seen == []
    await default.refusal("debug", action="launch", runtime="harmless", script="./a.x")
    assert len(seen) == 1
    policy = cage("ro ./", root=lab.root, capabilities=["exec"], relaxed=True)
    relaxed = lab.tool_lab_for(policy)
    await relaxed.refusal("debug", action="launch", runtime="tracing", script="./a.x")
    assert seen[-1][0] is policy
    await lab.tool_lab.refusal("debug", action="launch", runtime="tracing", script="./a.x")
    await lab.close()


@requirement("AT-DAP-17")
async def test_without_a_launcher_a_caged_debugger_does_not_start(tmp_path: Path) -> None:
    lab = DapLab(tmp_path, uncaged_only=True)
    lab.write("a.fake", "x\n")
    caged = lab.tool_lab_for(cage("ro ./", root=lab.root, capabilities=["exec"]))
    refusal = await caged.refusal("debug", action="launch", runtime="fake", script="./a.fake")
    assert refusal.code == "dap_adapter_not_found"
    assert lab.received() == []
    await lab.close()


@requirement("AT-DAP-26")
async def test_a_caged_caller_attaches_only_where_its_network_goes(lab: DapLab) -> None:
    policy = cage("ro ./", root=lab.root, capabilities=["exec"], net=["allowed.test:5678"])
    caged = lab.tool_lab_for(policy)
    for host, port in (("example.org", 5678), ("allowed.test", 99), ("localhost", 5678)):
        refusal = await caged.refusal(
            "debug", action="attach", runtime="fake", port=port, host=host
        )
        assert (refusal.code, f"{host}:{port}" in str(refusal.detail)) == (
            "capability_denied",
            True,
        )


@requirement("AT-DISP-20")
async def test_without_a_bridge_there_is_no_session(tmp_path: Path) -> None:
    tool_lab = ToolLab(tmp_path, dap_tools(lambda _: None))
    assert (await tool_lab.refusal("debug", action="threads")).code == "dap_session_ended"


async def test_a_step_that_never_ends_gives_running_and_pause_picks_it_up(tmp_path: Path) -> None:
    lab = DapLab(tmp_path, wait_s=0.3)
    await lab.launched()
    assert (await lab.debug("continue"))["status"] == "running"
    for action in ("stack_trace", "variables", "scopes"):
        assert (await lab.tool_lab.refusal("debug", action=action)).code == "dap_not_stopped"
    lab.after("pause", stopped("pause"))
    said = await lab.debug("pause")
    assert (said["status"], said["stopped_reason"]) == ("stopped", "pause")
    await lab.close()
    await asyncio.sleep(0)


def _event(name: str, **body: Any) -> dict[str, Any]:
    return {"type": "event", "event": name, "body": body}
