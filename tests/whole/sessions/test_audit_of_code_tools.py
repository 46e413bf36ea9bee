"""The audit trail of language servers and debuggers, with servers and debuggers that are real."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import Talk

TOOLS = Path(__file__).parents[3] / "build" / "tools" / "node_modules" / ".bin"
LINES = "x = 1\ny = 2\nprint(x + y)\n"
SLOW = "import time\nopen('begun', 'w').close()\ntime.sleep(60)\n"


@pytest.fixture(scope="module")
def coder(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that finds the language servers which were installed for tests."""
    path = f"{TOOLS}:{os.environ['PATH']}"
    made = Daemon(module_path / "c", local=model.local_toml(), env={"PATH": path})
    made.start()
    yield made
    made.close()


def typescript(daemon: Daemon, root: Path, **primary: Any) -> Project:
    """Return a project of three files, of which two import the third."""
    project = Project(root, **{"cage": "disabled", **primary})
    project.write("tsconfig.json", '{"compilerOptions": {"strict": true}, "include": ["**/*.ts"]}')
    project.write("a.ts", "export function foo(): number { return 1 }\n")
    project.write("b.ts", 'import { foo } from "./a";\nexport const x = foo() + foo();\n')
    project.write("c.ts", 'import { foo } from "./a";\nexport const y = foo();\n')
    return daemon.load(project)


def data(project: Project, event: str) -> list[dict[str, Any]]:
    return [one["data"] for one in project.daemon.audit(event, project_id=project.id)]


def facts(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


@whole("AT-AUD-06", "AT-AUD-07", "AT-AUD-08")
def test_the_life_of_a_language_server_is_on_record(coder: Daemon, tmp_path: Path) -> None:
    project = typescript(coder, tmp_path / "p")

    def look() -> None:
        assert project.call("code.lsp", action="diagnostics", path="b.ts")["count"] == 0

    look()
    look()
    (spawned,) = data(project, "code.lsp.server_spawned")
    assert (spawned["language"], spawned["project_id"]) == ("typescript", project.id)
    assert spawned["command"] == ["typescript-language-server", "--stdio"]
    (server,) = [one for one in project.get("/lsp")["servers"] if one["pid"]]
    os.kill(server["pid"], signal.SIGKILL)
    (crashed,) = exactly(1, lambda: data(project, "code.lsp.server_crashed"))
    assert crashed["language"] == "typescript"
    assert crashed["exit_code"] in (-9, 137)
    assert type(crashed["restart_count"]) is int
    look()
    assert len(data(project, "code.lsp.server_spawned")) == 2
    project.call("code.lsp", action="reload", language="typescript")
    look()
    assert facts(data(project, "code.lsp.server_stopped"), "language", "reason") == [
        ("typescript", "reload")
    ]
    coder.ask("DELETE", f"/projects/{project.id}")
    wait_for(lambda: len(data(project, "code.lsp.server_stopped")) == 2)
    assert data(project, "code.lsp.server_stopped")[1]["reason"] == "project_unload"
    assert len(data(project, "code.lsp.server_crashed")) == 1


@whole("AT-AUD-08")
def test_an_idle_server_is_stopped_and_the_last_ones_end_with_the_daemon(
    module_path: Path, tmp_path: Path
) -> None:
    daemon = Daemon(
        module_path / "idle",
        config="[lsp]\nidle_timeout_seconds = 1\n",
        env={"PATH": f"{TOOLS}:{os.environ['PATH']}"},
    )
    try:
        daemon.start()
        project = typescript(daemon, tmp_path / "p")
        project.call("code.lsp", action="diagnostics", path="a.ts")
        (stopped,) = exactly(1, lambda: data(project, "code.lsp.server_stopped"))
        assert (stopped["language"], stopped["reason"]) == ("typescript", "idle_timeout")
        project.call("code.lsp", action="diagnostics", path="a.ts")
        daemon.restart()
        reasons = [one["reason"] for one in data(project, "code.lsp.server_stopped")]
        assert reasons == ["idle_timeout", "daemon_shutdown"]
        assert data(project, "code.lsp.server_crashed") == []
    finally:
        daemon.close()


@whole("AT-AUD-12", "AT-AUD-13", "AT-AUD-28")
def test_a_rename_is_on_record_for_every_file_that_it_changed(
    coder: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = typescript(coder, tmp_path / "p")
    talk = Talk(project, model)
    rename = {"action": "rename", "path": "a.ts", "line": 1, "symbol": "foo", "new_name": "bar"}
    move = {"action": "rename_file", "path": "a.ts", "new_path": "lib/z.ts"}
    renamed, moved, missing = talk.use(
        ("code.lsp", rename),
        ("code.lsp", move),
        ("code.lsp", {**move, "path": "nope.ts", "new_path": "lib/nope.ts"}),
    )
    assert (renamed["status"], moved["status"]) == ("completed", "completed")
    assert missing["error"]
    assert 'from "./lib/z"' in project.read("b.ts")
    assert 'from "./lib/z"' in project.read("c.ts")
    rows = coder.audit("file.*", project_id=project.id)
    edited = [one for one in rows if one["event"] == "file.edited"]
    assert facts([one["data"] for one in edited], "path", "replacements", "caller") == [
        ("./a.ts", 1, "primary"),
        ("./b.ts", 3, "primary"),
        ("./c.ts", 2, "primary"),
        # The two that import the file that was moved.
        ("./b.ts", 1, "primary"),
        ("./c.ts", 1, "primary"),
    ]
    assert [one["request_id"] for one in edited] == (
        [renamed["request_id"]] * 3 + [moved["request_id"]] * 2
    )
    (written,) = [one for one in rows if one["event"] == "file.written"]
    size = (project.root / "lib" / "z.ts").stat().st_size
    assert facts([written["data"]], "path", "bytes", "caller") == [("./lib/z.ts", size, "primary")]
    assert written["request_id"] == moved["request_id"]


@whole("AT-AUD-05", "AT-AUD-28")
def test_a_refusal_inside_a_tool_is_a_denial_and_changes_nothing(
    coder: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    cage = {
        "fs": [{"mode": "ro", "path": "."}, {"mode": "rw", "path": "./a.ts"}],
        "capabilities": ["exec"],
    }
    project = typescript(coder, tmp_path / "p", cage=cage)
    project.write("main.go", "package main\n\nfunc main() {}\n")
    before = {name: project.read(name) for name in ("a.ts", "b.ts", "c.ts")}
    talk = Talk(project, model)
    rename = {"action": "rename", "path": "a.ts", "line": 1, "symbol": "foo", "new_name": "bar"}
    rewrite = {"rewrites": {"foo()": "bar()"}, "lang": "typescript", "dry_run": False}
    made = talk.use(
        ("code.lsp", rename),
        ("edit.ast", {**rewrite, "path": "b.ts"}),
        ("debug", {"action": "launch", "runtime": "go", "script": "main.go"}),
    )
    assert [one["error"]["code"] for one in made] == [
        "rename_scope_exceeds_cage", "capability_denied", "dap_requires_relaxed_seccomp",
    ]  # fmt: skip
    denied = coder.audit("tool.denied", project_id=project.id)
    assert [one["request_id"] for one in denied] == [one["request_id"] for one in made]
    for row, tool in zip(denied, ("code.lsp", "edit.ast", "debug"), strict=True):
        assert (row["data"]["tool_name"], row["data"]["caller"]) == (tool, "primary")
        assert row["data"]["denied_capability"]
        assert row["data"]["cage_summary"]
    assert coder.audit("tool.completed", "file.*", "debug.*", project_id=project.id) == []
    assert {name: project.read(name) for name in before} == before


@whole("AT-AUD-09", "AT-AUD-10", "AT-AUD-11")
def test_debug_sessions_are_on_record_from_start_to_end(
    coder: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p", cage="disabled")
    project.write("a.py", LINES)
    coder.load(project)
    talk = Talk(project, model)
    launch = ("debug", {"action": "launch", "runtime": "python", "script": "a.py"})
    made = talk.use(
        launch,
        ("debug", {"action": "set_breakpoint", "path": "a.py", "line": 2}),
        ("debug", {"action": "continue"}),
        ("debug", {"action": "disconnect"}),
        launch,
        ("debug", {"action": "continue"}),
        launch,
    )
    assert [one["status"] for one in made] == ["completed"] * 7
    ids = [made[number]["result"]["debug_session_id"] for number in (0, 4, 6)]
    started = data(project, "debug.session_started")
    assert facts(started, "debug_session_id", "runtime", "script", "caller") == [
        (one, "python", "./a.py", "primary") for one in ids
    ]
    (hit,) = data(project, "debug.breakpoint_hit")
    assert facts([hit], "debug_session_id", "path", "line") == [(ids[0], "./a.py", 2)]
    assert hit["breakpoint_id"] == made[1]["result"]["breakpoint_id"]
    ended = exactly(3, lambda: data(project, "debug.session_ended"))
    # Told to go, gone by itself before the next launch, and cut off by the end of the run.
    assert facts(list(ended), "debug_session_id", "reason") == [
        (ids[0], "disconnect"), (ids[1], "disconnect"), (ids[2], "run_ended"),
    ]  # fmt: skip


@whole("AT-AUD-10", "AT-SESS-10", "AT-SESS-13")
def test_a_pause_and_a_dead_debugger_end_the_session_exactly_once(
    coder: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p", cage="disabled")
    project.write("a.py", LINES)
    project.write("slow.py", SLOW)
    coder.load(project)
    talk = Talk(project, model)
    paused = talk.hear(
        call("debug", action="launch", runtime="python", script="a.py"),
        call("kaged.checkpoint", message="Look."),
        say("Seen."),
    )
    assert paused["status"] == "paused"
    (first,) = exactly(1, lambda: data(project, "debug.session_ended"))
    assert first["reason"] == "run_ended"
    talk.answer(talk.waiting()["request_id"], decision="approve")
    other = Talk(project, model)
    begun = project.root / "begun"
    kill = (
        "while [ ! -e begun ]; do sleep 0.02; done;"
        f" for p in $(pgrep -f '[d]ebugpy.*adapter'); do"
        f" grep -qs {project.root} /proc/$p/environ /proc/$p/cmdline && kill -9 $p;"
        f" [ \"$(readlink /proc/$p/cwd)\" = '{project.root}' ] && kill -9 $p; done; true"
    )
    made = other.use(
        (
            "debug",
            {"action": "launch", "runtime": "python", "script": "slow.py", "stop_on_entry": False},
        ),
        ("shell.bash", {"command": kill}),
        ("debug", {"action": "threads"}),
    )
    assert begun.exists()
    assert made[2]["error"]["code"] == "dap_session_ended", made
    _, second = exactly(2, lambda: data(project, "debug.session_ended"))
    assert second["debug_session_id"] == made[0]["result"]["debug_session_id"]
    assert second["reason"] == "crash"
