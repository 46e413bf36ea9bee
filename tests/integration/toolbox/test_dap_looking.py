"""Breakpoints, steps and what can be seen, with a planned adapter that logs what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.dap_lab import ALL_CAPABILITIES, DapLab, stopped
from fakes.tool_lab import cage
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    made = DapLab(tmp_path)
    yield made
    await made.close()


def frame(lab: DapLab, number: int, name: str, line: int, path: str = "main.fake") -> Any:
    source = {"path": str(lab.root.resolve() / path)}
    return {"id": 9000 + number, "name": name, "line": line, "column": 5, "source": source}


def stack(lab: DapLab, *frames: Any) -> None:
    lab.answer("stackTrace", {"body": {"stackFrames": list(frames), "totalFrames": len(frames)}})


# -- breakpoints -----------------------------------------------------------------------------------


@requirement("AT-DAP-28", "AT-DAP-29", "AT-DAP-30", "AT-DAP-32")
async def test_breakpoints_of_a_file_are_sent_whole_and_keep_their_numbers(lab: DapLab) -> None:
    await lab.launched()
    at = {"path": "./main.fake"}
    assert await lab.debug("set_breakpoint", line=1, **at) == {
        "breakpoint_id": 1,
        "verified": True,
        "actual_line": 1,
        "path": "./main.fake",
    }
    second = await lab.debug("set_breakpoint", line=3, condition="x > 1", hit_count=3, **at)
    assert second["breakpoint_id"] == 2
    sent = [one["arguments"]["breakpoints"] for one in lab.received("setBreakpoints")]
    assert sent == [
        [{"line": 1}],
        [{"line": 1}, {"line": 3, "condition": "x > 1", "hitCondition": "3"}],
    ]
    again = await lab.debug("set_breakpoint", line=1, log_message="x is {x}", **at)
    assert again["breakpoint_id"] == 1
    assert (await lab.debug("list_breakpoints"))["breakpoints"] == [
        {
            "id": 1,
            "path": "./main.fake",
            "line": 1,
            "condition": None,
            "verified": True,
            "log_message": "x is {x}",
        },
        {
            "id": 2,
            "path": "./main.fake",
            "line": 3,
            "condition": "x > 1",
            "verified": True,
            "hit_count": 3,
        },
    ]


@requirement("AT-DAP-31", "AT-DAP-30")
async def test_removing_a_breakpoint_keeps_the_others(lab: DapLab) -> None:
    await lab.launched()
    at = {"path": "./main.fake"}
    for line in (1, 2):
        await lab.debug("set_breakpoint", line=line, **at)
    gone = await lab.debug("remove_breakpoint", line=1, **at)
    assert gone == {"removed": True, "path": "./main.fake", "line": 1}
    assert (await lab.debug("remove_breakpoint", line=1, **at))["removed"] is False
    assert lab.received("setBreakpoints")[-1]["arguments"]["breakpoints"] == [{"line": 2}]
    assert (await lab.debug("set_breakpoint", line=1, **at))["breakpoint_id"] == 3
    shown = (await lab.debug("list_breakpoints"))["breakpoints"]
    assert [one["id"] for one in shown] == [2, 3]


@pytest.mark.parametrize("together", [False, True])
async def test_a_breakpoint_may_move_and_be_verified_later(lab: DapLab, together: bool) -> None:
    """The event follows its answer, in a packet of its own or in the same one."""
    await lab.launched()
    lab.plan(together=together)
    lab.answer("setBreakpoints", {"body": {"breakpoints": [{"id": 5, "verified": False}]}})
    later = {"breakpoint": {"id": 5, "verified": True, "line": 2}, "reason": "changed"}
    lab.after("setBreakpoints", {"event": "breakpoint", "body": later})
    await lab.debug("set_breakpoint", path="./main.fake", line=1)
    await lab.debug("threads")
    (shown,) = (await lab.debug("list_breakpoints"))["breakpoints"]
    assert shown["verified"] is True
    lab.after("setBreakpoints")
    lab.after("continue", stopped("breakpoint"))
    stack(lab, frame(lab, 0, "main", 2))
    assert (await lab.debug("continue"))["breakpoint_id"] == 1


async def test_breakpoints_set_at_once_do_not_mix_up_their_answers(lab: DapLab) -> None:
    await lab.launched()
    at = {"path": "./main.fake"}
    made = await asyncio.gather(
        *(lab.debug("set_breakpoint", line=line, **at) for line in (3, 1, 2))
    )
    assert sorted((one["breakpoint_id"], one["actual_line"]) for one in made) == [
        (1, 3),
        (2, 1),
        (3, 2),
    ]


async def test_a_step_that_the_adapter_refuses_leaves_the_program_stopped(lab: DapLab) -> None:
    await lab.launched()
    lab.answer("next", {"error": "cannot step here"})
    refusal = await lab.tool_lab.refusal("debug", action="step_over")
    assert (refusal.code, "cannot step here" in refusal.message) == ("dap_request_failed", True)
    stack(lab, frame(lab, 0, "main", 2))
    assert (await lab.debug("stack_trace"))["total_frames"] == 1


@requirement("AT-DAP-33", "AT-DAP-34")
async def test_instruction_breakpoints_are_kept_as_a_list(lab: DapLab) -> None:
    await lab.launched()
    first = await lab.debug("set_instruction_breakpoint", instruction_reference="0x10")
    assert first == {
        "breakpoint_id": 1,
        "verified": True,
        "instruction_reference": "0x10",
        "offset": 0,
    }
    await lab.debug(
        "set_instruction_breakpoint", instruction_reference="0x20", offset=4, condition="a"
    )
    sent = lab.received("setInstructionBreakpoints")[-1]["arguments"]["breakpoints"]
    assert sent == [
        {"instructionReference": "0x10", "offset": 0},
        {"instructionReference": "0x20", "offset": 4, "condition": "a"},
    ]
    removed = await lab.debug("remove_instruction_breakpoint", instruction_reference="0x10")
    assert removed == {"removed": True}
    sent = lab.received("setInstructionBreakpoints")[-1]["arguments"]["breakpoints"]
    assert [one["instructionReference"] for one in sent] == ["0x20"]


@requirement("AT-DAP-35", "AT-DAP-36", "AT-DAP-37")
async def test_data_breakpoints(lab: DapLab) -> None:
    await lab.launched()
    info = {"dataId": "d1", "description": "x", "accessTypes": ["write"], "canPersist": True}
    lab.answer("dataBreakpointInfo", {"body": info})
    said = await lab.debug("data_breakpoint_info", name="x", variables_reference=4)
    assert said == {
        "data_id": "d1",
        "description": "x",
        "access_types": ["write"],
        "can_persist": True,
    }
    asked = lab.received("dataBreakpointInfo")[0]["arguments"]
    assert asked == {"name": "x", "variablesReference": 4}
    made = await lab.debug("set_data_breakpoint", data_id="d1", hit_count=2)
    assert made == {"breakpoint_id": 1, "verified": True, "data_id": "d1"}
    await lab.debug("set_data_breakpoint", data_id="d2", access_type="readWrite")
    sent = lab.received("setDataBreakpoints")[-1]["arguments"]["breakpoints"]
    assert sent == [
        {"dataId": "d1", "accessType": "write", "hitCondition": "2"},
        {"dataId": "d2", "accessType": "readWrite"},
    ]
    assert await lab.debug("remove_data_breakpoint", data_id="d1") == {"removed": True}
    sent = lab.received("setDataBreakpoints")[-1]["arguments"]["breakpoints"]
    assert [one["dataId"] for one in sent] == ["d2"]


# -- moving ----------------------------------------------------------------------------------------


@requirement("AT-DAP-38", "AT-DAP-43")
@pytest.mark.parametrize(
    ("action", "command"),
    [("step_into", "stepIn"), ("step_over", "next"), ("step_out", "stepOut")],
)
async def test_a_step_gives_where_it_ended(lab: DapLab, action: str, command: str) -> None:
    await lab.launched()
    stack(lab, frame(lab, 0, "main", 2))
    lab.after(command, stopped("step"))
    assert await lab.debug(action) == {
        "status": "stopped",
        "stopped_reason": "step",
        "location": {
            "path": "./main.fake",
            "line": 2,
            "column": 4,
            "source_preview": "line two",
        },
    }
    assert lab.received(command)[0]["arguments"] == {"threadId": 7}
    await lab.debug(action, thread_id=9)
    assert lab.received(command)[1]["arguments"] == {"threadId": 9}


@requirement("AT-DAP-39", "AT-DAP-42", "AT-AUD-11", "AT-DAP-63")
@pytest.mark.parametrize(
    ("action", "reason"),
    [("continue", "breakpoint"), ("step_over", "breakpoint"), ("step_over", "step")],
)
async def test_a_stop_at_a_breakpoint_names_it(lab: DapLab, action: str, reason: str) -> None:
    started = await lab.launched()
    await lab.debug("set_breakpoint", path="./main.fake", line=3)
    stack(lab, frame(lab, 0, "main", 3))
    command = "continue" if action == "continue" else "next"
    lab.after(command, stopped(reason, hitBreakpointIds=[100]))
    said = await lab.debug(action)
    assert (said["stopped_reason"], said["breakpoint_id"]) == ("breakpoint", 1)
    assert said["location"]["line"] == 3
    assert lab.events[-1] == (
        "debug.breakpoint_hit",
        {
            "debug_session_id": started["debug_session_id"],
            "breakpoint_id": 1,
            "path": "./main.fake",
            "line": 3,
        },
    )


@requirement("AT-DAP-64")
async def test_output_comes_with_the_next_answer_and_is_bounded(lab: DapLab) -> None:
    await lab.launched()
    printed = {"event": "output", "body": {"category": "stdout", "output": "hello\n"}}
    flood = {"event": "output", "body": {"category": "stdout", "output": "x" * 200_000}}
    lab.after("continue", printed, flood, stopped("pause"))
    said = await lab.debug("continue")
    assert said["output"].startswith("hello\nxxx")
    assert len(said["output"]) == 64 * 1024


@requirement("AT-DAP-43")
async def test_places_outside_the_cage_or_project_have_no_source(
    lab: DapLab, tmp_path: Path
) -> None:
    lab.write("src/main.fake", "seen\n")
    lab.write("lib/other.fake", "canary-3\n")
    lab.after("configurationDone", stopped("entry"))
    from kaged.toolbox.dap import backend

    policy = cage("ro ./src", root=lab.root, capabilities=["exec"])
    caged = lab.tool_lab_for(policy)
    real = backend.launch_uncaged

    async def outside(policy: Any, plan: Any, cwd: str) -> Any:
        # Where the planned adapter runs is not this test's business.
        return await real(lab.spawner, plan, cwd, {}, "dap_test")

    lab.bridge.launcher = outside
    given = {"runtime": "fake", "script": "./src/main.fake", "cwd": "./src"}
    await caged.call("debug", action="launch", **given)
    library = {**frame(lab, 0, "f", 1), "source": {"path": str(tmp_path / "lib.py")}}
    for shown, path in (
        (frame(lab, 0, "f", 1, "lib/other.fake"), "./lib/other.fake"),
        (library, "lib.py"),
    ):
        stack(lab, shown)
        lab.after("next", stopped("step"))
        said = await caged.call("debug", action="step_over")
        assert said["location"] == {"path": path, "line": 1, "column": 4}
        assert "canary-3" not in json.dumps(said)


# -- looking ---------------------------------------------------------------------------------------


@requirement("AT-DAP-44", "AT-DAP-45", "AT-DAP-46", "AT-AMB-37")
async def test_frames_are_numbered_from_the_top(lab: DapLab) -> None:
    await lab.launched()
    frames = [frame(lab, number, f"f{number}", number + 1) for number in range(3)]
    stack(lab, *frames)
    whole = await lab.debug("stack_trace")
    assert [(one["id"], one["name"], one["line"]) for one in whole["frames"]] == [
        (0, "f0", 1),
        (1, "f1", 2),
        (2, "f2", 3),
    ]
    assert whole["frames"][0]["path"] == "./main.fake"
    one = await lab.debug("stack_trace", levels=1)
    assert (len(one["frames"]), one["total_frames"]) == (1, 3)
    lab.answer("evaluate", {"body": {"result": "42", "type": "int"}})
    assert await lab.debug("evaluate", expression="x", frame_id=1) == {
        "result": "42",
        "type": "int",
    }
    asked = lab.received("evaluate")[0]["arguments"]
    assert asked == {"expression": "x", "frameId": 9001, "context": "watch"}
    before = len(lab.received("stackTrace"))
    lab.after("next", stopped("step"))
    await lab.debug("step_over")
    await lab.debug("evaluate", expression="x", context="repl")
    assert len(lab.received("stackTrace")) > before
    refusal = await lab.tool_lab.refusal("debug", action="evaluate", expression="x", frame_id=50)
    assert "frame" in refusal.message


def _scopes(lab: DapLab) -> None:
    stack(lab, frame(lab, 0, "f", 1))
    scopes = [
        {"name": "Locals", "variablesReference": 11, "expensive": False},
        {"name": "Globals", "variablesReference": 12, "expensive": True},
    ]
    lab.answer("scopes", {"body": {"scopes": scopes}})


@requirement("AT-DAP-47")
async def test_scopes(lab: DapLab) -> None:
    await lab.launched()
    _scopes(lab)
    assert (await lab.debug("scopes"))["scopes"] == [
        {"name": "Locals", "variables_reference": 11, "expensive": False},
        {"name": "Globals", "variables_reference": 12, "expensive": True},
    ]
    assert lab.received("scopes")[0]["arguments"] == {"frameId": 9000}


@requirement("AT-DAP-48")
async def test_variables_of_a_scope(lab: DapLab) -> None:
    await lab.launched()
    _scopes(lab)
    listed = [
        {"name": "count", "value": "3", "type": "int", "variablesReference": 0},
        {"name": "user", "value": "<User>", "type": "User", "variablesReference": 20},
    ]
    lab.answer("variables", {"body": {"variables": listed}})
    assert (await lab.debug("variables"))["variables"] == [
        {"name": "count", "value": "3", "type": "int"},
        {"name": "user", "value": "<User>", "type": "User", "expandable": True},
    ]
    assert [one["arguments"] for one in lab.received("variables")] == [{"variablesReference": 11}]
    filtered = await lab.debug("variables", scope="global", filter="coun")
    assert [one["name"] for one in filtered["variables"]] == ["count"]
    assert lab.received("variables")[-1]["arguments"] == {"variablesReference": 12}
    assert (await lab.debug("variables", scope="closure"))["variables"] == []


@requirement("AT-DAP-49")
async def test_an_unknown_name_cannot_be_expanded(lab: DapLab) -> None:
    await lab.launched()
    _scopes(lab)
    listed = [
        {"name": "user", "value": "<User>", "type": "User", "variablesReference": 20},
        {"name": "plain", "value": "1", "type": "int", "variablesReference": 0},
    ]
    lab.answer("variables", {"body": {"variables": listed}})
    expanded = await lab.debug("variables", expand="user.user")
    assert [one["name"] for one in expanded["variables"]] == [
        "user.user.user",
        "user.user.plain",
    ]
    for name in ("nobody", "plain", "user.nobody", ".".join(["user"] * 40)):
        refusal = await lab.tool_lab.refusal("debug", action="variables", expand=name)
        assert refusal.code == "invalid_params"


@requirement("AT-DAP-50")
async def test_an_evaluation_that_fails_leaves_the_session_alive(lab: DapLab) -> None:
    await lab.launched()
    stack(lab, frame(lab, 0, "f", 1))
    lab.answer("evaluate", {"error": "NameError: zzz"})
    refusal = await lab.tool_lab.refusal("debug", action="evaluate", expression="zzz")
    assert "NameError: zzz" in refusal.message
    assert (await lab.debug("threads"))["threads"]


@requirement("AT-DAP-52")
async def test_disassembly(lab: DapLab) -> None:
    await lab.launched()
    source = {"path": str(lab.root.resolve() / "main.fake")}
    code = [
        {"address": "0x1", "instruction": "nop"},
        {"address": "0x2", "instruction": "ret", "symbol": "f", "location": source, "line": 4},
    ]
    lab.answer("disassemble", {"body": {"instructions": code}})
    said = await lab.debug("disassemble", memory_reference="0x1")
    assert said["instructions"] == [
        {"address": "0x1", "instruction": "nop"},
        {
            "address": "0x2",
            "instruction": "ret",
            "symbol": "f",
            "path": "./main.fake",
            "line": 4,
        },
    ]
    assert lab.received("disassemble")[0]["arguments"] == {
        "memoryReference": "0x1",
        "offset": 0,
        "instructionOffset": 0,
        "instructionCount": 32,
        "resolveSymbols": True,
    }


@requirement("AT-DAP-53", "AT-DAP-54")
async def test_memory(lab: DapLab) -> None:
    await lab.launched()
    body = {"address": "0x1", "data": "aGk=", "unreadableBytes": 2}
    lab.answer("readMemory", {"body": body})
    lab.answer("writeMemory", {"body": {"bytesWritten": 2, "offset": 1}})
    assert await lab.debug("read_memory", memory_reference="m", count=4) == {
        "address": "0x1",
        "data": "aGk=",
        "unreadable_bytes": 2,
    }
    written = await lab.debug("write_memory", memory_reference="m", offset=1, data="aGk=")
    assert written == {"bytes_written": 2, "offset": 1}
    asked = lab.received("writeMemory")[0]["arguments"]
    assert asked == {"memoryReference": "m", "offset": 1, "data": "aGk=", "allowPartial": False}
    refusal = await lab.tool_lab.refusal(
        "debug", action="write_memory", memory_reference="m", data="no base64!"
    )
    assert refusal.code == "invalid_params"


@requirement("AT-DAP-55", "AT-DAP-56")
async def test_modules_and_sources(lab: DapLab, tmp_path: Path) -> None:
    await lab.launched()
    listed = [{"id": 1, "name": "m", "path": "/usr/lib/m.so", "version": "2"}, {"id": 2}]
    lab.answer("modules", {"body": {"modules": listed, "totalModules": 9}})
    assert await lab.debug("modules") == {
        "modules": [
            {"id": 1, "name": "m", "path": "/usr/lib/m.so", "version": "2"},
            {"id": 2, "name": ""},
        ],
        "total": 9,
    }
    outside = str(tmp_path / "lib.py")
    own = str(lab.root.resolve() / "main.fake")
    sources = [{"name": "main", "path": own}, {"name": "lib", "path": outside}]
    lab.answer("loadedSources", {"body": {"sources": sources}})
    assert await lab.debug("loaded_sources") == {
        "sources": [
            {"name": "main", "path": "./main.fake"},
            {"name": "lib", "path": outside, "outside_project": True},
        ],
        "count": 2,
    }


@requirement("AT-DAP-57")
async def test_custom_requests(lab: DapLab) -> None:
    await lab.launched()
    lab.answer("vendor/ping", {"body": {"pong": 1}})
    said = await lab.debug("custom_request", command="vendor/ping", arguments={"a": 1})
    assert said == {"command": "vendor/ping", "body": {"pong": 1}}
    assert lab.received("vendor/ping")[0]["arguments"] == {"a": 1}
    for command in (
        "initialize",
        "launch",
        "attach",
        "configurationDone",
        "disconnect",
        "terminate",
        "restart",
    ):
        refusal = await lab.tool_lab.refusal("debug", action="custom_request", command=command)
        assert refusal.code == "invalid_params"


@requirement("AT-DAP-58")
async def test_what_the_adapter_cannot_do_is_not_asked(lab: DapLab) -> None:
    lab.plan(capabilities={"supportsConfigurationDoneRequest": True})
    await lab.launched()
    before = lab.commands()
    at: dict[str, Any] = {"path": "./main.fake", "line": 1}
    for action, given, capability in (
        ("set_breakpoint", {**at, "condition": "x"}, "supportsConditionalBreakpoints"),
        ("set_breakpoint", {**at, "hit_count": 1}, "supportsHitConditionalBreakpoints"),
        ("set_breakpoint", {**at, "log_message": "x"}, "supportsLogPoints"),
        (
            "set_instruction_breakpoint",
            {"instruction_reference": "x"},
            "supportsInstructionBreakpoints",
        ),
        ("data_breakpoint_info", {"name": "x"}, "supportsDataBreakpoints"),
        ("set_data_breakpoint", {"data_id": "x"}, "supportsDataBreakpoints"),
        ("disassemble", {"memory_reference": "x"}, "supportsDisassembleRequest"),
        ("read_memory", {"memory_reference": "x", "count": 1}, "supportsReadMemoryRequest"),
        (
            "write_memory",
            {"memory_reference": "x", "data": "aGk="},
            "supportsWriteMemoryRequest",
        ),
        ("modules", {}, "supportsModulesRequest"),
        ("loaded_sources", {}, "supportsLoadedSourcesRequest"),
    ):
        refusal = await lab.tool_lab.refusal("debug", action=action, **given)
        assert refusal.code == "dap_unsupported", action
        assert refusal.detail == {"capability": capability}
    assert lab.commands() == before
    assert set(ALL_CAPABILITIES) > {"supportsModulesRequest"}


@requirement("AT-DAP-40", "AT-DAP-41", "AT-DAP-59")
async def test_a_running_program_can_be_paused_and_not_inspected(tmp_path: Path) -> None:
    lab = DapLab(tmp_path, wait_s=0.3)
    await lab.launched()
    stack(lab, frame(lab, 0, "main", 2))
    assert (await lab.debug("continue"))["status"] == "running"
    for action in ("stack_trace", "variables", "scopes", "step_over"):
        assert (await lab.tool_lab.refusal("debug", action=action)).code == "dap_not_stopped"
    refusal = await lab.tool_lab.refusal("debug", action="evaluate", expression="1")
    assert refusal.code == "dap_not_stopped"
    assert (await lab.debug("continue"))["status"] == "running"
    lab.after("pause", stopped("pause"))
    said = await lab.debug("pause")
    assert (said["status"], said["stopped_reason"]) == ("stopped", "pause")
    assert said["location"]["line"] == 2
    await lab.close()
