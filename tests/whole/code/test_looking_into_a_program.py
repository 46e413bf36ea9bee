"""What `debug` asks a debugger about a stopped program, and how it tells the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent
from whole.harness.code import PlannedAdapter, stopped
from whole.harness.project import Project

AT = {"path": "./main.fake"}


@pytest.fixture
def adapter(project: Project) -> PlannedAdapter:
    """Return a planned adapter with a program that has just been launched."""
    made = PlannedAdapter(project, subagents={"coder": agent("debug", cage="disabled")})
    made.launched()
    return made


def sent(adapter: PlannedAdapter, command: str) -> list[Any]:
    """Return the last list of breakpoints that the adapter was sent."""
    return list(adapter.received(command)[-1]["arguments"]["breakpoints"])


@whole("AT-DAP-28", "AT-DAP-29", "AT-DAP-32")
def test_breakpoints_of_a_file_are_sent_whole_and_keep_their_numbers(
    adapter: PlannedAdapter,
) -> None:
    assert adapter.do("set_breakpoint", line=1, **AT) == {
        "breakpoint_id": 1,
        "verified": True,
        "actual_line": 1,
        "path": "./main.fake",
    }
    assert sent(adapter, "setBreakpoints") == [{"line": 1}]
    second = adapter.do("set_breakpoint", line=3, condition="x > 1", hit_count=3, **AT)
    assert second["breakpoint_id"] == 2
    assert sent(adapter, "setBreakpoints") == [
        {"line": 1},
        {"line": 3, "condition": "x > 1", "hitCondition": "3"},
    ]
    again = adapter.do("set_breakpoint", line=1, log_message="x is {x}", **AT)
    assert again["breakpoint_id"] == 1
    first, other = adapter.do("list_breakpoints")["breakpoints"]
    assert first == {
        "id": 1,
        "path": "./main.fake",
        "line": 1,
        "condition": None,
        "verified": True,
        "log_message": "x is {x}",
    }
    assert other == {
        "id": 2,
        "path": "./main.fake",
        "line": 3,
        "condition": "x > 1",
        "verified": True,
        "hit_count": 3,
    }
    for wrong in ({"line": 0}, {}, {"line": 1, "hit_count": "3"}):
        assert adapter.refusal("set_breakpoint", **AT, **wrong)["code"] == "invalid_params"


@whole("AT-DAP-30", "AT-DAP-31")
def test_a_breakpoints_number_is_its_own_among_all_kinds_and_never_used_again(
    adapter: PlannedAdapter,
) -> None:
    numbers = [
        adapter.do("set_breakpoint", line=1, **AT)["breakpoint_id"],
        adapter.do("set_instruction_breakpoint", instruction_reference="0x10")["breakpoint_id"],
        adapter.do("set_data_breakpoint", data_id="d1")["breakpoint_id"],
        adapter.do("set_breakpoint", line=2, **AT)["breakpoint_id"],
        adapter.do("set_data_breakpoint", data_id="d2")["breakpoint_id"],
    ]
    assert numbers == [1, 2, 3, 4, 5]
    gone = adapter.do("remove_breakpoint", line=1, **AT)
    assert gone == {"removed": True, "path": "./main.fake", "line": 1}
    assert adapter.do("remove_breakpoint", line=1, **AT)["removed"] is False
    assert sent(adapter, "setBreakpoints") == [{"line": 2}]
    assert adapter.do("set_breakpoint", line=1, **AT)["breakpoint_id"] == 6
    shown = adapter.do("list_breakpoints")["breakpoints"]
    assert [one["id"] for one in shown if one.get("path")] == [4, 6]
    again = adapter.do("set_instruction_breakpoint", instruction_reference="0x10", condition="a")
    assert again["breakpoint_id"] == 2
    assert adapter.do("set_data_breakpoint", data_id="d1")["breakpoint_id"] == 3
    adapter.do("remove_data_breakpoint", data_id="d2")
    assert adapter.do("set_data_breakpoint", data_id="d3")["breakpoint_id"] == 7


@whole("AT-DAP-33", "AT-DAP-34")
def test_breakpoints_on_instructions_are_kept_as_a_list(adapter: PlannedAdapter) -> None:
    first = adapter.do("set_instruction_breakpoint", instruction_reference="0x10")
    assert first == {
        "breakpoint_id": 1,
        "verified": True,
        "instruction_reference": "0x10",
        "offset": 0,
    }
    more = {"offset": 4, "condition": "a", "hit_count": 2}
    adapter.do("set_instruction_breakpoint", instruction_reference="0x20", **more)
    assert sent(adapter, "setInstructionBreakpoints") == [
        {"instructionReference": "0x10", "offset": 0},
        {
            "instructionReference": "0x20",
            "offset": 4,
            "condition": "a",
            "hitCondition": "2",
        },
    ]
    removed = adapter.do("remove_instruction_breakpoint", instruction_reference="0x10")
    assert removed == {"removed": True}
    left = sent(adapter, "setInstructionBreakpoints")
    assert [one["instructionReference"] for one in left] == ["0x20"]
    gone = {"instruction_reference": "0x20"}
    assert adapter.do("remove_instruction_breakpoint", **gone) == {"removed": False}
    assert adapter.do("remove_instruction_breakpoint", offset=4, **gone) == {"removed": True}
    assert adapter.refusal("set_instruction_breakpoint")["code"] == "invalid_params"


@whole("AT-DAP-35", "AT-DAP-36", "AT-DAP-37")
def test_breakpoints_on_data(adapter: PlannedAdapter) -> None:
    info = {"dataId": "d1", "description": "x", "accessTypes": ["write"], "canPersist": True}
    adapter.answer("dataBreakpointInfo", {"body": info})
    said = adapter.do("data_breakpoint_info", name="x", variables_reference=4)
    assert said == {
        "data_id": "d1",
        "description": "x",
        "access_types": ["write"],
        "can_persist": True,
    }
    asked = adapter.received("dataBreakpointInfo")[0]["arguments"]
    assert asked == {"name": "x", "variablesReference": 4}
    adapter.answer("dataBreakpointInfo", {"body": {"dataId": None, "description": "no"}})
    assert adapter.do("data_breakpoint_info", name="y")["data_id"] is None
    made = adapter.do("set_data_breakpoint", data_id="d1", hit_count=2)
    assert made == {"breakpoint_id": 1, "verified": True, "data_id": "d1"}
    adapter.do("set_data_breakpoint", data_id="d2", access_type="readWrite", condition="c")
    assert sent(adapter, "setDataBreakpoints") == [
        {"dataId": "d1", "accessType": "write", "hitCondition": "2"},
        {"dataId": "d2", "accessType": "readWrite", "condition": "c"},
    ]
    assert adapter.do("remove_data_breakpoint", data_id="d1") == {"removed": True}
    assert [one["dataId"] for one in sent(adapter, "setDataBreakpoints")] == ["d2"]
    assert adapter.do("remove_data_breakpoint", data_id="d1") == {"removed": False}
    wrong = adapter.refusal("set_data_breakpoint", data_id="d3", access_type="execute")
    assert wrong["code"] == "invalid_params"


@whole("AT-DAP-38", "AT-DAP-43")
@pytest.mark.parametrize(
    ("action", "command"),
    [("step_into", "stepIn"), ("step_over", "next"), ("step_out", "stepOut")],
)
def test_a_step_gives_where_it_ended(adapter: PlannedAdapter, action: str, command: str) -> None:
    adapter.project.write("main.fake", "line one\n  line two  \nline three\n")
    adapter.stack(adapter.frame(0, "main", 2))
    adapter.after(command, stopped("step"))
    assert adapter.do(action) == {
        "status": "stopped",
        "stopped_reason": "step",
        "location": {
            "path": "./main.fake",
            "line": 2,
            "column": 4,
            "source_preview": "  line two",
        },
    }
    assert adapter.received(command)[0]["arguments"] == {"threadId": 7}
    adapter.do(action, thread_id=9)
    assert adapter.received(command)[1]["arguments"] == {"threadId": 9}
    outside = adapter.project.root.with_name("library.py")
    outside.write_text("canary-3\n", encoding="utf-8")
    adapter.stack({**adapter.frame(0, "f", 1), "source": {"path": str(outside)}})
    place = adapter.do(action)["location"]
    assert (place["line"], "source_preview" in place) == (1, False)


@whole("AT-DAP-39", "AT-DAP-42")
@pytest.mark.parametrize(
    ("action", "reason"),
    [("continue", "breakpoint"), ("step_over", "breakpoint"), ("step_over", "step")],
)
def test_a_stop_at_a_breakpoint_names_it(adapter: PlannedAdapter, action: str, reason: str) -> None:
    adapter.do("set_breakpoint", line=1, **AT)
    adapter.do("set_breakpoint", line=3, **AT)
    adapter.stack(adapter.frame(0, "main", 3))
    command = "continue" if action == "continue" else "next"
    adapter.after(command, stopped(reason, hitBreakpointIds=[101]))
    said = adapter.do(action)
    assert (said["status"], said["stopped_reason"]) == ("stopped", "breakpoint")
    assert (said["breakpoint_id"], said["location"]["line"]) == (2, 3)


@whole("AT-DAP-64")
def test_output_comes_with_the_next_answer_and_is_bounded(adapter: PlannedAdapter) -> None:
    printed = {"event": "output", "body": {"category": "stdout", "output": "hello\n"}}
    flood = {"event": "output", "body": {"category": "stdout", "output": "x" * 200_000}}
    adapter.after("continue", printed, flood, stopped("pause"))
    said = adapter.do("continue")
    assert said["output"].startswith("hello\nxxx")
    assert len(said["output"]) == 64 * 1024


@whole("AT-DAP-44", "AT-DAP-45", "AT-DAP-46", "AT-AMB-37")
def test_frames_are_numbered_from_the_top(adapter: PlannedAdapter) -> None:
    threads = [{"id": 7, "name": "main"}, {"id": 8, "name": "worker"}]
    adapter.answer("threads", {"body": {"threads": threads}})
    assert adapter.do("threads") == {"threads": threads}
    adapter.stack(*(adapter.frame(number, f"f{number}", number + 1) for number in range(3)))
    shown = adapter.do("stack_trace")
    assert [(one["id"], one["name"], one["line"]) for one in shown["frames"]] == [
        (0, "f0", 1),
        (1, "f1", 2),
        (2, "f2", 3),
    ]
    assert {(one["path"], one["column"]) for one in shown["frames"]} == {("./main.fake", 4)}
    one = adapter.do("stack_trace", levels=1)
    assert (len(one["frames"]), one["total_frames"]) == (1, 3)
    assert adapter.refusal("stack_trace", levels=0)["code"] == "invalid_params"
    adapter.answer("evaluate", {"body": {"result": "42", "type": "int"}})
    said = adapter.do("evaluate", expression="x", frame_id=1)
    assert said == {"result": "42", "type": "int"}
    asked = adapter.received("evaluate")[0]["arguments"]
    assert asked == {"expression": "x", "frameId": 9001, "context": "watch"}
    before = len(adapter.received("stackTrace"))
    adapter.after("next", stopped("step"))
    adapter.do("step_over")
    adapter.stack({**adapter.frame(0, "g", 1), "id": 4_000_000})
    adapter.do("evaluate", expression="x", context="repl")
    assert len(adapter.received("stackTrace")) > before
    assert adapter.received("evaluate")[-1]["arguments"]["context"] == "repl"
    assert "frame" in adapter.refusal("evaluate", expression="x", frame_id=50)["message"]


def with_scopes(adapter: PlannedAdapter) -> None:
    """Let the program stand in one frame with locals and globals."""
    adapter.stack(adapter.frame(0, "f", 1), adapter.frame(1, "g", 2))
    scopes = [
        {"name": "Locals", "variablesReference": 11, "expensive": False},
        {"name": "Globals", "variablesReference": 12, "expensive": True},
    ]
    adapter.answer("scopes", {"body": {"scopes": scopes}})


@whole("AT-DAP-47", "AT-DAP-48")
def test_variables_of_a_scope(adapter: PlannedAdapter) -> None:
    with_scopes(adapter)
    assert adapter.do("scopes")["scopes"] == [
        {"name": "Locals", "variables_reference": 11, "expensive": False},
        {"name": "Globals", "variables_reference": 12, "expensive": True},
    ]
    adapter.do("scopes", frame_id=1)
    frames = [one["arguments"]["frameId"] for one in adapter.received("scopes")]
    assert frames == [9000, 9001]
    listed = [
        {"name": "count", "value": "3", "type": "int", "variablesReference": 0},
        {"name": "user", "value": "<User>", "type": "User", "variablesReference": 20},
    ]
    adapter.answer("variables", {"body": {"variables": listed}})
    assert adapter.do("variables")["variables"] == [
        {"name": "count", "value": "3", "type": "int"},
        {"name": "user", "value": "<User>", "type": "User", "expandable": True},
    ]
    assert adapter.received("variables")[0]["arguments"] == {"variablesReference": 11}
    filtered = adapter.do("variables", scope="global", filter="coun")
    assert [one["name"] for one in filtered["variables"]] == ["count"]
    assert adapter.received("variables")[-1]["arguments"] == {"variablesReference": 12}
    assert adapter.do("variables", scope="closure")["variables"] == []
    assert adapter.refusal("variables", scope="galaxy")["code"] == "invalid_params"


@whole("AT-DAP-49", "AT-DAP-50")
def test_an_unknown_name_is_refused_and_the_session_lives_on(adapter: PlannedAdapter) -> None:
    with_scopes(adapter)
    listed = [
        {"name": "user", "value": "<User>", "type": "User", "variablesReference": 20},
        {"name": "plain", "value": "1", "type": "int", "variablesReference": 0},
    ]
    adapter.answer("variables", {"body": {"variables": listed}})
    expanded = adapter.do("variables", expand="user.user")
    assert [one["name"] for one in expanded["variables"]] == ["user.user.user", "user.user.plain"]
    for name in ("nobody", "plain", "user.nobody", ".".join(["user"] * 40)):
        assert adapter.refusal("variables", expand=name)["code"] == "invalid_params"
    adapter.answer("evaluate", {"error": "NameError: zzz"})
    assert "NameError: zzz" in adapter.refusal("evaluate", expression="zzz")["message"]
    assert adapter.refusal("evaluate")["code"] == "invalid_params"
    assert adapter.do("threads")["threads"]


@whole("AT-DAP-52", "AT-DAP-53", "AT-DAP-54")
def test_code_and_memory(adapter: PlannedAdapter) -> None:
    source = {"path": str(adapter.project.root / "main.fake")}
    code = [
        {"address": "0x1", "instruction": "nop"},
        {"address": "0x2", "instruction": "ret", "symbol": "f", "location": source, "line": 4},
    ]
    adapter.answer("disassemble", {"body": {"instructions": code}})
    said = adapter.do("disassemble", memory_reference="0x1")
    ret = {"address": "0x2", "instruction": "ret", "symbol": "f", "path": "./main.fake", "line": 4}
    assert said["instructions"] == [{"address": "0x1", "instruction": "nop"}, ret]
    assert adapter.received("disassemble")[0]["arguments"] == {
        "memoryReference": "0x1",
        "offset": 0,
        "instructionOffset": 0,
        "instructionCount": 32,
        "resolveSymbols": True,
    }
    body = {"address": "0x1", "data": "aGk=", "unreadableBytes": 2}
    adapter.answer("readMemory", {"body": body})
    adapter.answer("writeMemory", {"body": {"bytesWritten": 2, "offset": 1}})
    assert adapter.do("read_memory", memory_reference="m", count=4) == {
        "address": "0x1",
        "data": "aGk=",
        "unreadable_bytes": 2,
    }
    assert adapter.received("readMemory")[0]["arguments"] == {
        "memoryReference": "m",
        "offset": 0,
        "count": 4,
    }
    written = adapter.do("write_memory", memory_reference="m", offset=1, data="aGk=")
    assert written == {"bytes_written": 2, "offset": 1}
    assert adapter.received("writeMemory")[0]["arguments"] == {
        "memoryReference": "m",
        "offset": 1,
        "data": "aGk=",
        "allowPartial": False,
    }
    before = adapter.commands()
    for action, wrong in (
        ("disassemble", {}),
        ("disassemble", {"memory_reference": "m", "instruction_count": 0}),
        ("read_memory", {"memory_reference": "m"}),
        ("read_memory", {"memory_reference": "m", "count": 0}),
        ("read_memory", {"memory_reference": "m", "count": 65537}),
        ("write_memory", {"memory_reference": "m", "data": "***"}),
        ("write_memory", {"memory_reference": "m"}),
    ):
        assert adapter.refusal(action, **wrong)["code"] == "invalid_params", (action, wrong)
    assert adapter.commands() == before


@whole("AT-DAP-55", "AT-DAP-56")
def test_modules_and_sources(adapter: PlannedAdapter) -> None:
    listed = [{"id": 1, "name": "m", "path": "/usr/lib/m.so", "version": "2"}, {"id": 2}]
    adapter.answer("modules", {"body": {"modules": listed, "totalModules": 9}})
    assert adapter.do("modules") == {
        "modules": [
            {"id": 1, "name": "m", "path": "/usr/lib/m.so", "version": "2"},
            {"id": 2, "name": ""},
        ],
        "total": 9,
    }
    adapter.do("modules", start_module=3, module_count=2)
    asked = [one.get("arguments", {}) for one in adapter.received("modules")]
    assert asked[0].get("startModule", 0) == 0
    assert (asked[1]["startModule"], asked[1]["moduleCount"]) == (3, 2)
    outside = str(adapter.project.root.with_name("lib.py"))
    own = str(adapter.project.root / "main.fake")
    sources = [{"name": "main", "path": own}, {"name": "lib", "path": outside}]
    adapter.answer("loadedSources", {"body": {"sources": sources}})
    assert adapter.do("loaded_sources") == {
        "sources": [
            {"name": "main", "path": "./main.fake"},
            {"name": "lib", "path": outside, "outside_project": True},
        ],
        "count": 2,
    }


@whole("AT-DAP-57")
def test_requests_of_an_adapters_own(adapter: PlannedAdapter) -> None:
    adapter.answer("vendor/ping", {"body": {"pong": 1}})
    said = adapter.do("custom_request", command="vendor/ping", arguments={"a": 1})
    assert said == {"command": "vendor/ping", "body": {"pong": 1}}
    assert adapter.received("vendor/ping")[0]["arguments"] == {"a": 1}
    before = adapter.commands()
    for command in (
        *("initialize", "launch", "attach", "configurationDone"),
        *("disconnect", "terminate", "restart"),
    ):
        refused = adapter.refusal("custom_request", command=command)
        assert refused["code"] == "invalid_params", command
    assert adapter.refusal("custom_request")["code"] == "invalid_params"
    assert adapter.commands() == before
    assert adapter.do("threads")["threads"]


@whole("AT-DAP-58")
def test_what_the_adapter_cannot_do_is_not_asked(adapter: PlannedAdapter) -> None:
    adapter.do("disconnect")
    adapter.plan(capabilities={"supportsConfigurationDoneRequest": True})
    adapter.launched()
    before = adapter.commands()
    at: dict[str, Any] = {"path": "./main.fake", "line": 1}
    wanted: list[tuple[str, dict[str, Any], str]] = [
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
    ]
    for action, given, capability in wanted:
        refused = adapter.refusal(action, **given)
        assert (refused["code"], refused["data"]["number"]) == ("dap_unsupported", -32000), action
        assert capability in json.dumps(refused["data"]["detail"])
    assert adapter.commands() == before
