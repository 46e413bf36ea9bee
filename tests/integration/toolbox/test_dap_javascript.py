"""Real Node and Bun programs under the debugger, without a cage and inside a default one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes import runtimes
from fakes.dap_lab import DapLab
from fakes.tool_lab import ToolLab, cage
from kaged.config.serverchoice import AdapterChoice
from requirements import requirement

PROGRAM = """// A comment that Bun's translation drops,

// as it drops this one.
class User {
  constructor() {
    this.name = "ada";
    this.address = { city: "London" };
    this.self = this;
  }
}

function double(x) {
  let y = x * 2;
  return y;
}

const user = new User();
let total = 0;
for (let i = 0; i < 6; i++) {
  total += double(i);
}
console.log("total", total, process.env.FOO, process.argv.slice(2).join(), process.cwd());
process.exit(3);
"""
BODY, RETURN, LOOP = 13, 14, 20


def with_runtimes(folder: Path, wait_s: float = 30.0) -> DapLab:
    chosen = {
        "node": AdapterChoice("pwa-node", (str(runtimes.node()),), None, False),
        "bun": AdapterChoice("bun", (str(runtimes.bun()),), None, False),
    }
    return DapLab(folder, adapters=chosen, wait_s=wait_s)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    made = with_runtimes(tmp_path)
    made.write("src/main.js", PROGRAM)
    (made.root / "src").chmod(0o755)
    (made.root / "src/main.js").chmod(0o644)
    yield made
    await made.close()
    assert made.adapters_running() == 0


@pytest.fixture(params=["node", "bun"])
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["uncaged", "default cage"])
def tool_lab(request: pytest.FixtureRequest, lab: DapLab) -> ToolLab:
    if request.param == "uncaged":
        return lab.tool_lab
    return lab.tool_lab_for(cage("ro ./", root=lab.root, capabilities=["exec"]))


async def debug(tool_lab: ToolLab, action: str, **given: Any) -> Any:
    return await tool_lab.call("debug", action=action, **given)


@requirement("AT-DAP-12", "AT-DAP-20")
async def test_a_program_is_debugged_from_entry_to_exit(
    lab: DapLab, tool_lab: ToolLab, runtime: str
) -> None:
    given: dict[str, Any] = {
        "runtime": runtime,
        "script": "./src/main.js",
        "args": ["one", "two"],
        "env": {"FOO": "bar"},
        "cwd": "./src",
    }
    begun = await debug(tool_lab, "launch", **given)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    assert begun["location"]["path"] == "./src/main.js"
    assert begun["threads"] == [{"id": 1, "name": "main"}]
    at = {"path": "./src/main.js"}
    made = await debug(tool_lab, "set_breakpoint", line=BODY, condition="x == 4", **at)
    assert (made["verified"], made["actual_line"]) == (True, BODY)

    hit = await debug(tool_lab, "continue")
    assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
    assert hit["location"]["line"] == BODY
    assert hit["location"]["source_preview"] == "  let y = x * 2;"
    shown = await debug(tool_lab, "variables")
    assert {"name": "x", "value": "4", "type": "number"} in shown["variables"]
    assert await debug(tool_lab, "evaluate", expression="x + 1") == {
        "result": "5",
        "type": "number",
    }
    assert (await debug(tool_lab, "evaluate", expression="i", frame_id=1))["result"] == "4"
    pid = await debug(tool_lab, "evaluate", expression="process.pid")
    assert int(pid["result"]) != os.getpid()
    refusal = await tool_lab.refusal("debug", action="evaluate", expression="nobody")
    assert "nobody is not defined" in refusal.message
    frames = await debug(tool_lab, "stack_trace", levels=1)
    assert frames["frames"][0]["name"] == "double"
    assert frames["total_frames"] >= 2

    stepped = await debug(tool_lab, "step_over")
    assert (stepped["stopped_reason"], stepped["location"]["line"]) == ("step", RETURN)
    out = await debug(tool_lab, "step_out")
    assert out["location"]["line"] in (LOOP - 1, LOOP)  # in the loop: V8 is at its `i++` already
    members = (await debug(tool_lab, "variables", expand="user"))["variables"]
    assert {"name": "user.name", "value": '"ada"', "type": "string"} in members
    deeper = (await debug(tool_lab, "variables", expand="user.self.self.address"))["variables"]
    assert deeper[0]["name"] == "user.self.self.address.city"
    assert deeper[0]["value"] == '"London"'

    ended = await debug(tool_lab, "continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 3)
    assert "total 30 bar one,two" in ended["output"]
    assert "/src" in ended["output"]
    assert "Inspector" not in ended["output"]
    assert "Debugger" not in ended["output"]
    assert (await debug(tool_lab, "disconnect"))["disconnected"] is True
    assert lab.adapters_running() == 0


@requirement("AT-DAP-28", "AT-DAP-31")
async def test_hit_counts_and_logpoints(lab: DapLab, runtime: str) -> None:
    at = {"path": "./src/main.js"}
    await lab.debug("launch", runtime=runtime, script="./src/main.js")
    await lab.debug("set_breakpoint", line=BODY, hit_count=3, **at)
    await lab.debug("set_breakpoint", line=RETURN, log_message="y is {y}: 100%", **at)
    hit = await lab.debug("continue")
    assert hit["breakpoint_id"] == 1
    assert (await lab.debug("evaluate", expression="x"))["result"] == "2"
    assert (await lab.debug("remove_breakpoint", line=BODY, **at))["removed"] is True
    ended = await lab.debug("continue")
    assert ended["status"] == "exited"
    said = hit.get("output", "") + ended["output"]
    assert "y is 0: 100%" in said
    assert "y is 10: 100%" in said


@requirement("AT-DAP-38", "AT-DAP-42")
async def test_stepping_into_a_call_and_over_one_with_a_breakpoint(
    lab: DapLab, runtime: str
) -> None:
    at = {"path": "./src/main.js"}
    await lab.debug("launch", runtime=runtime, script="./src/main.js")
    await lab.debug("set_breakpoint", line=LOOP, **at)
    assert (await lab.debug("continue"))["location"]["line"] == LOOP
    inside = await lab.debug("step_into")
    assert inside["location"]["line"] in (BODY - 1, BODY)
    frames = await lab.debug("stack_trace", levels=2)
    assert frames["frames"][0]["name"] == "double"
    assert (await lab.debug("continue"))["location"]["line"] == LOOP
    await lab.debug("set_breakpoint", line=RETURN, **at)
    stopped = await lab.debug("step_over")
    assert (stopped["stopped_reason"], stopped["breakpoint_id"]) == ("breakpoint", 2)


@requirement("AT-DAP-40", "AT-DAP-41", "AT-DAP-59")
async def test_an_endless_loop_is_paused(tmp_path: Path, runtime: str) -> None:
    lab = with_runtimes(tmp_path, wait_s=1.0)
    # Bun hears its inspector only between tasks.
    loops = {
        "node": "let n = 0;\nwhile (true) {\n  n += 1;\n}\n",
        "bun": "let n = 0;\nsetInterval(() => {\n  n += 1;\n}, 1);\n",
    }
    lab.write("loop.js", loops[runtime])
    begun = await lab.debug("launch", runtime=runtime, script="./loop.js", stop_on_entry=False)
    assert begun["status"] == "running"
    assert (await lab.debug("continue"))["status"] == "running"
    assert (await lab.tool_lab.refusal("debug", action="variables")).code == "dap_not_stopped"
    said = await lab.debug("pause")
    assert (said["status"], said["stopped_reason"]) == ("stopped", "pause")
    assert int((await lab.debug("evaluate", expression="n"))["result"]) > 0
    await lab.close()
    assert lab.adapters_running() == 0


@requirement("AT-DAP-23")
async def test_without_stop_on_entry_a_short_program_runs_to_its_end(
    lab: DapLab, runtime: str
) -> None:
    lab.write("short.js", "console.log('hi');\n")
    await lab.debug("launch", runtime=runtime, script="./short.js", stop_on_entry=False)
    ended = await lab.debug("continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 0)


async def test_a_breakpoint_waits_for_its_file_to_be_loaded(lab: DapLab, runtime: str) -> None:
    lab.write("part.cjs", "// dropped\nmodule.exports = (x) => {\n  return x + 1;\n};\n")
    lab.write(
        "start.cjs",
        # Bun goes on while it tells of a file that it has loaded; a busy machine needs its time.
        "const part = require('./part.cjs');\n"
        "setTimeout(() => console.log('got', part(1)), 1000);\n",
    )
    await lab.debug("launch", runtime=runtime, script="./start.cjs")
    made = await lab.debug("set_breakpoint", path="./part.cjs", line=3)
    hit = await lab.debug("continue")
    assert (hit["status"], hit["breakpoint_id"]) == ("stopped", made["breakpoint_id"])
    assert (hit["location"]["path"], hit["location"]["line"]) == ("./part.cjs", 3)
    (shown,) = (await lab.debug("list_breakpoints"))["breakpoints"]
    assert shown["verified"] is True
    sources = await lab.debug("loaded_sources")
    assert {"name": "part.cjs", "path": "./part.cjs"} in sources["sources"]


async def test_typescript_is_debugged_by_its_own_lines(lab: DapLab) -> None:
    lab.write(
        "a.ts",
        "interface A {\n  x: number;\n}\n\nfunction f(a: A): number {\n"
        "  return a.x * 2;\n}\nconsole.log(f({ x: 4 }));\n",
    )
    await lab.debug("launch", runtime="bun", script="./a.ts")
    made = await lab.debug("set_breakpoint", path="./a.ts", line=6)
    assert (made["verified"], made["actual_line"]) == (True, 6)
    hit = await lab.debug("continue")
    assert hit["location"]["source_preview"] == "  return a.x * 2;"
    assert (await lab.debug("evaluate", expression="a.x"))["result"] == "4"


async def test_values_much_larger_than_an_answer_are_cut(lab: DapLab, runtime: str) -> None:
    lab.write(
        "huge.js",
        "function f() {\n"
        "  const text = 'x'.repeat(3_000_000);\n"
        "  const list = Array.from({ length: 30_000 }, (_, i) => i);\n"
        "  const table = Object.fromEntries(list.map((i) => ['k' + i, i]));\n"
        "  return text.length + list.length + Object.keys(table).length;\n"
        "}\nconsole.log(f());\n",
    )
    await lab.debug("launch", runtime=runtime, script="./huge.js")
    await lab.debug("set_breakpoint", path="./huge.js", line=5)
    await lab.debug("continue")
    shown = {one["name"]: one for one in (await lab.debug("variables"))["variables"]}
    assert len(shown["text"]["value"]) <= 4000
    for name, first in (("list", "list.0"), ("table", "table.k0")):
        members = await lab.debug("variables", expand=name)
        assert members["variables"][0]["name"] == first
        assert len(members["variables"]) == 500
        assert members["truncated"] is True
    said = await lab.debug("evaluate", expression="text")
    assert len(said["result"]) <= 4000
    assert (await lab.debug("continue"))["exit_code"] == 0


# -- ending ----------------------------------------------------------------------------------------


STUBBORN = """const { spawn } = require("node:child_process");
const child = spawn("sleep", ["1000"], { stdio: "inherit", detached: process.argv[2] === "away" });
process.on("SIGTERM", () => {});
process.on("SIGINT", () => {});
console.log(process.pid, child.pid);
setInterval(() => {}, 1000);
"""


@requirement("AT-DAP-05", "AT-DAP-60")
@pytest.mark.parametrize("how", ["disconnect", "run ends"])
async def test_a_program_that_forks_and_ignores_signals_is_ended_with_its_children(
    tmp_path: Path, runtime: str, how: str
) -> None:
    others = _descendants()  # a model server of other tests, which stays
    lab = with_runtimes(tmp_path, wait_s=0.5)
    lab.write("stubborn.cjs", STUBBORN)
    policy = cage("ro ./", root=lab.root, capabilities=["exec"])
    # Inside a cage even what has left its process group.
    for tool_lab, args in ((lab.tool_lab, []), (lab.tool_lab_for(policy), ["away"])):
        given: dict[str, Any] = {"runtime": runtime, "script": "./stubborn.cjs", "args": args}
        said = await debug(tool_lab, "launch", stop_on_entry=False, **given)
        while not said.get("output"):
            said = await debug(tool_lab, "continue")
        own = ("sleep", "node", "bun")  # the rest are helpers of the spawner's, which stay
        before = {
            pid: one
            for pid, one in _descendants().items()
            if one.startswith(own) and pid not in others
        }
        assert "sleep" in before.values()
        assert len(before) >= 3
        if how == "disconnect":
            assert (await debug(tool_lab, "disconnect"))["debuggee_terminated"] is True
        else:
            await lab.bridge.end_run("run_1")
        assert lab.adapters_running() == 0
        await lab.until(lambda known=before: not known.keys() & _descendants().keys())
    await lab.close()


@requirement("AT-FAIL-06")
async def test_a_program_killed_from_outside_is_reported_as_exited(
    lab: DapLab, runtime: str
) -> None:
    await lab.debug("launch", runtime=runtime, script="./src/main.js")
    pid = await lab.debug("evaluate", expression="process.pid")
    os.kill(int(pid["result"]), 9)
    said = await _settled(lab, "exited")
    assert said == {"status": "exited", "exit_code": 137}


@requirement("AT-FAIL-05")
async def test_a_relay_that_dies_while_stopped_ends_the_session_as_a_crash(
    lab: DapLab, runtime: str
) -> None:
    await lab.debug("launch", runtime=runtime, script="./src/main.js")
    pid = await lab.debug("evaluate", expression="process.pid")
    parent = await lab.debug("evaluate", expression="process.ppid")
    os.kill(int(parent["result"]), 9)
    await lab.until(lambda: len(lab.events) == 2)
    assert lab.events[-1][1]["reason"] == "crash"
    assert (await lab.tool_lab.refusal("debug", action="continue")).code == "dap_session_ended"
    await lab.until(lambda: not Path(f"/proc/{pid['result']}").exists())
    again = await lab.debug("launch", runtime=runtime, script="./src/main.js")
    assert again["status"] == "stopped"


@requirement("AT-DAP-27")
async def test_a_script_that_does_not_parse_leaves_nothing_behind(
    lab: DapLab, runtime: str
) -> None:
    lab.write("broken.js", "let = = 1;\n")
    begun = await lab.debug("launch", runtime=runtime, script="./broken.js", stop_on_entry=False)
    ended = await lab.debug("continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 1)
    assert "rror" in begun.get("output", "") + ended.get("output", "")
    await lab.debug("disconnect")
    assert lab.adapters_running() == 0


async def test_a_running_node_program_is_attached_to_and_left_running(lab: DapLab) -> None:
    script = lab.write("server.js", "let n = 0;\nsetInterval(() => {\n  n += 1;\n}, 5);\n")
    foreign = await asyncio.create_subprocess_exec(  # noqa: TID251 - not ours: a foreign program
        runtimes.node(), "--inspect=127.0.0.1:0", script, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert foreign.stderr is not None
        line = (await foreign.stderr.readline()).decode()
        port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
        said = await lab.debug("attach", runtime="node", port=port, host="127.0.0.1")
        assert said["status"] == "running"
        await lab.debug("set_breakpoint", path="./server.js", line=3)
        assert (await lab.debug("continue"))["location"]["line"] == 3
        ended = await lab.debug("disconnect", terminate_debuggee=False)
        assert ended == {"disconnected": True, "debuggee_terminated": False}
        assert foreign.returncode is None
        await lab.debug("attach", runtime="node", port=port, host="127.0.0.1")
    finally:
        if foreign.returncode is None:
            foreign.kill()
        await foreign.communicate()


async def test_what_is_no_inspector_is_not_attached_to(lab: DapLab) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    refusal = await lab.tool_lab.refusal(
        "debug", action="attach", runtime="node", port=port, host="127.0.0.1"
    )
    assert (refusal.code, "not an inspector" in refusal.message) == ("dap_request_failed", True)
    assert lab.adapters_running() == 0
    server.close()
    await server.wait_closed()


def _descendants() -> dict[int, str]:
    """Return the processes below this one, with their names; ended ones do not count."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        head, _, tail = text.rpartition(")")
        if tail.split()[0] != "Z":
            pid = int(folder.name)
            parents[pid], names[pid] = int(tail.split()[1]), head.partition("(")[2]
    found: dict[int, str] = {}
    for pid in parents:
        at = pid
        while at in parents and at != os.getpid():
            at = parents[at]
        if at == os.getpid() and pid != at:
            found[pid] = names[pid]
    return found


async def _settled(lab: DapLab, status: str) -> Any:
    session = lab.session()
    await lab.until(lambda: session.state.value == status)
    return await lab.debug("continue")
