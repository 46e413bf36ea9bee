"""A real Go program under delve, which has to be joined through a relay."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.dap_lab import DapLab
from fakes.runtimes import ROOT
from fakes.tool_lab import ToolLab, cage
from kaged.cage.orphan_processes import MARK, mark_value
from requirements import requirement

PROGRAM = """package main

import (
	"fmt"
	"os"
)

type User struct {
	Name string
	Age  int
}

func main() {
	user := User{"ada", 36}
	total := 0
	for i := 0; i < 6; i++ {
		total += double(i)
	}
	fmt.Println("total", total, user.Name, os.Getenv("FOO"), os.Args[1:])
	fmt.Fprintln(os.Stderr, "to stderr")
	os.Exit(3)
}
"""
PART = """package main

func double(x int) int {
	y := x * 2
	return y
}
"""


@pytest.fixture(scope="session")
def go_cache() -> str:
    """Return the build cache of all runs: the standard library is compiled once, not per test."""
    for program in ("dlv", "go"):
        assert shutil.which(program), f"{program} is missing: run scripts/setup --tests"
    made = ROOT / "build" / "go-cache"
    made.mkdir(parents=True, exist_ok=True)
    return str(made)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    made = DapLab(tmp_path, wait_s=60.0)
    made.write("go.mod", "module example.org/hello\n\ngo 1.19\n")
    made.write("cmd/hello/main.go", PROGRAM)
    made.write("cmd/hello/double.go", PART)
    for one in made.root.rglob("*"):
        one.chmod(0o755 if one.is_dir() else 0o644)
    yield made
    await made.close()


async def debug(tool_lab: ToolLab, action: str, **given: Any) -> Any:
    return await tool_lab.call("debug", action=action, **given)


@requirement("AT-DAP-16", "AT-DAP-19")
@pytest.mark.parametrize("caged", [False, True], ids=["source", "built, in a relaxed cage"])
async def test_a_go_program_is_debugged_from_entry_to_exit(
    lab: DapLab, go_cache: str, caged: bool
) -> None:
    tool_lab, script = lab.tool_lab, "./cmd/hello/main.go"
    given: dict[str, Any] = {"args": ["one"], "env": {"FOO": "bar", "GOCACHE": go_cache}}
    if caged:
        build(lab, go_cache)
        script = "./hello"
        tool_lab = lab.tool_lab_for(
            cage("ro ./", root=lab.root, capabilities=["exec"], relaxed=True)
        )
    before = sorted(map(str, lab.root.rglob("*")))
    begun = await debug(tool_lab, "launch", runtime="go", script=script, **given)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    made = await debug(
        tool_lab, "set_breakpoint", path="./cmd/hello/double.go", line=4, condition="x == 4"
    )
    assert (made["verified"], made["actual_line"]) == (True, 4)
    hit = await debug(tool_lab, "continue")
    assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
    assert hit["location"]["path"] == "./cmd/hello/double.go"
    shown = await debug(tool_lab, "variables")
    assert {"name": "x", "value": "4", "type": "int"} in shown["variables"]
    assert (await debug(tool_lab, "evaluate", expression="x + 1"))["result"] == "5"
    out = await debug(tool_lab, "step_out")
    assert out["location"]["path"] == "./cmd/hello/main.go"
    members = await debug(tool_lab, "variables", expand="user")
    assert {"name": "user.Name", "value": '"ada"', "type": "string"} in members["variables"]
    ended = await debug(tool_lab, "continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 3)
    assert "total 30 ada bar [one]" in ended["output"]
    assert "to stderr" in ended["output"]
    assert "DAP server" not in ended["output"]
    assert (await debug(tool_lab, "disconnect"))["disconnected"] is True
    assert lab.adapters_running() == 0
    assert sorted(map(str, lab.root.rglob("*"))) == before


async def test_a_program_that_does_not_build_leaves_nothing_behind(
    lab: DapLab, go_cache: str
) -> None:
    lab.write("cmd/hello/double.go", "package main\n\nfunc double(x int) int { return nobody }\n")
    given: dict[str, Any] = {"script": "./cmd/hello/main.go", "env": {"GOCACHE": go_cache}}
    refusal = await lab.tool_lab.refusal("debug", action="launch", runtime="go", **given)
    assert refusal.code == "dap_request_failed"
    assert "nobody" in refusal.message
    assert lab.adapters_running() == 0
    assert (await lab.tool_lab.refusal("debug", action="threads")).code == "dap_session_ended"


@requirement("AT-DAP-41")
async def test_an_endless_go_program_is_paused_and_ended_with_its_run(
    lab: DapLab, go_cache: str
) -> None:
    lab.bridge.wait_s = 1.0
    lab.write(
        "cmd/loop/main.go",
        "package main\n\nvar n int\n\nfunc main() {\n\tfor {\n\t\tn++\n\t}\n}\n",
    )
    given: dict[str, Any] = {"script": "./cmd/loop/main.go", "env": {"GOCACHE": go_cache}}
    begun = await lab.debug("launch", runtime="go", stop_on_entry=False, **given)
    assert begun["status"] == "running"
    lab.bridge.wait_s = 60.0
    paused = await lab.debug("pause")
    assert (paused["status"], paused["stopped_reason"]) == ("stopped", "pause")
    assert len(programs_of(begun["debug_session_id"])) == 1
    await lab.bridge.end_run("run_1")
    assert lab.adapters_running() == 0
    assert programs_of(begun["debug_session_id"]) == []


def programs_of(session_id: str) -> list[int]:
    """Find the debugged program of a session that has no cage."""
    mark = f"{MARK}={mark_value(session_id)}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "exe").readlink().name
                if name.startswith("kaged-") and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def build(lab: DapLab, cache: str) -> None:
    """Build the program as delve would."""
    subprocess.run(
        ["go", "build", "-gcflags=all=-N -l", "-o", str(lab.root / "hello"), "./cmd/hello"],
        cwd=lab.root,
        env={**os.environ, "GOCACHE": cache},
        check=True,
    )
    (lab.root / "hello").chmod(0o755)
