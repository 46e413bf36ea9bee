"""Extras of the tools in a running daemon: several edits at once, hints, undo, and what broke."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh, tool_answers

TOOLS = Path(__file__).parents[3] / "build" / "tools" / "node_modules" / ".bin"
FAKE = Path(__file__).parents[2] / "guests" / "fake_lsp_server.py"


@pytest.fixture(scope="module")
def plan(module_path: Path) -> Path:
    """Return the plan of a language server that answers nothing it is asked about words."""
    file = module_path / "plan.json"
    wanted = {"capabilities": {"hoverProvider": True, "textDocumentSync": 1}}
    answers = {"answers": {"textDocument/hover": "hang"}}
    file.write_text(json.dumps({**wanted, **answers}), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def extra(module_path: Path, model: ModelServer, plan: Path) -> Iterator[Daemon]:
    """Yield a daemon that tells what edits broke, and whose Python server is slow."""
    command = [sys.executable, str(FAKE), str(plan), str(module_path / "heard.jsonl")]
    made = Daemon(
        module_path / "x",
        config=(
            "[tools]\ndiagnose_edits = true\n"
            f"[lsp.servers.python]\ncommand = {json.dumps(command)}\n"
        ),
        local=model.local_toml(),
        env={"PATH": f"{TOOLS}:{os.environ['PATH']}"},
    )
    made.start()
    yield made
    made.close()


def loaded(daemon: Daemon, root: Path, **files: str) -> Project:
    project = Project(root, cage="disabled")
    for name, text in files.items():
        project.write(name.replace("__", "."), text)
    return daemon.load(project)


@whole("AT-BEY-12")
def test_several_edits_of_a_file_happen_together_or_not_at_all(
    extra: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = loaded(extra, tmp_path / "p", a__txt="one\ntwo\nthree\n")
    first = {"path": "a.txt", "old_string": "one", "new_string": "1"}
    talk = Talk(project, model)
    _, failed = talk.use(
        ("file.read", {"path": "a.txt"}),
        ("edit.text", {**first, "more_edits": [{"old_string": "four", "new_string": "4"}]}),
    )
    assert failed["error"]["code"] == "old_string_not_found"
    assert project.read("a.txt") == "one\ntwo\nthree\n"
    more = [
        {"old_string": "two", "new_string": "2"},
        # Each sees what the one before it made.
        {"old_string": "1\n2", "new_string": "12"},
    ]
    (made,) = talk.use(("edit.text", {**first, "more_edits": more}))
    assert made["status"] == "completed", made
    assert project.read("a.txt") == "12\nthree\n"
    assert len(extra.audit("file.edited", project_id=project.id)) == 1


@whole("AT-BEY-13")
def test_a_near_miss_is_pointed_out(extra: Daemon, tmp_path: Path) -> None:
    text = "def f():\n\tif x:\n\t\treturn 1\n\n\ndef g():\n    pass\n"
    project = loaded(extra, tmp_path / "p", a__txt=text)
    project.call("file.read", path="a.txt")
    spaces = "    if x:\n        return 1\n"
    refused = project.fail("edit.text", path="a.txt", old_string=spaces, new_string="y")
    assert refused["code"] == "old_string_not_found"
    closest = refused["data"]["detail"]["closest"]
    assert (closest["start_line"], closest["cause"]) == (2, "whitespace")
    assert closest["text"].startswith("\tif x:\n\t\treturn 1")
    assert 0 < closest["similarity"] <= 1
    far = project.fail("edit.text", path="a.txt", old_string="@@@@ zzzz", new_string="y")
    assert not (far["data"]["detail"] or {}).get("closest")


@whole("AT-BEY-14")
def test_what_a_run_did_to_files_is_taken_back_as_a_whole(
    extra: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = loaded(extra, tmp_path / "p")
    original = b"original\r\n\xff\n"
    (project.root / "a.txt").write_bytes(original)
    (project.root / "a.txt").chmod(0o750)
    talk = Talk(project, model)
    run = talk.hear(
        call("file.read", path="a.txt"),
        call("file.write", path="a.txt", content="first\n"),
        call("edit.text", path="a.txt", old_string="first", new_string="second"),
        call("file.create", path="new/b.txt", content="x"),
        say("Done."),
    )
    assert project.read("a.txt") == "second\n"
    kept = talk.hear(call("file.create", path="kept.txt", content="stays"), say("Done."))
    assert len(project.get(f"/undo?run_id={run['id']}")["steps"]) == 3
    extra.cli("undo", "run", run["id"], "-p", project.id)
    assert (project.root / "a.txt").read_bytes() == original
    assert (project.root / "a.txt").stat().st_mode & 0o777 == 0o750
    assert not (project.root / "new" / "b.txt").exists()
    assert project.read("kept.txt") == "stays"
    rows = extra.audit("file.reverted", project_id=project.id)
    assert {one["data"]["path"] for one in rows} == {"./a.txt", "./new/b.txt"}
    assert {one["data"]["run_id"] for one in rows} == {run["id"]}
    # Once; and not over what somebody else has written since.
    again = extra.error("POST", f"/projects/{project.id}/undo", {"run_id": run["id"]})
    assert again["code"] == "undo_not_found"
    project.write("kept.txt", "by hand")
    late = extra.error("POST", f"/projects/{project.id}/undo", {"run_id": kept["id"]})
    assert late["code"] == "undo_conflict"
    assert project.read("kept.txt") == "by hand"


@whole("AT-BEY-16", "AT-AMB-46")
def test_an_edit_tells_which_errors_are_new_where_a_server_runs_already(
    extra: Daemon, tmp_path: Path
) -> None:
    project = loaded(
        extra,
        tmp_path / "p",
        tsconfig__json='{"compilerOptions": {"strict": true}, "include": ["*.ts"]}',
        a__ts="export const a: number = 1;\n",
    )
    project.call("file.read", path="a.ts")
    change = {"path": "a.ts", "old_string": "= 1", "new_string": "= 2"}
    assert "diagnostics" not in project.call("edit.text", **change), "no server is started for it"
    assert project.call("code.lsp", action="diagnostics", path="a.ts")["count"] == 0
    broken = project.call("edit.text", path="a.ts", old_string="= 2", new_string='= "two"')
    (new,) = broken["diagnostics"]
    assert (new["path"], new["line"], new["severity"]) == ("./a.ts", 1, "error")
    written = project.call("file.write", path="a.ts", content="export const a: number = 3;\n")
    assert written["diagnostics"] == []
    rewritten = project.call(
        "edit.ast",
        rewrites={"const a: number = 3": 'const a: number = "x"'},
        lang="typescript",
        dry_run=False,
    )
    assert [one["line"] for one in rewritten["diagnostics"]] == [1]
    # The server was told of each change, and so was the trail.
    rows = extra.audit("file.*", project_id=project.id)
    assert [(one["event"], one["data"]["path"]) for one in rows] == [
        (event, "./a.ts") for event in ("file.edited", "file.edited", "file.written", "file.edited")
    ]


@whole("AT-BEY-05")
def test_a_question_to_a_server_is_taken_back_when_the_run_is_cancelled(
    extra: Daemon, model: ModelServer, module_path: Path, tmp_path: Path
) -> None:
    project = loaded(extra, tmp_path / "p", a__py="x = 1\n")
    log = module_path / "heard.jsonl"

    def heard(method: str) -> list[dict[str, Any]]:
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [one for one in map(json.loads, lines) if one.get("method") == method]

    talk, word = Talk(project, model), fresh()
    model.play(word, call("code.lsp", action="hover", path="a.py", line=1, character=0))
    run_id = talk.tell(word)
    (question,) = wait_for(lambda: heard("textDocument/hover"))
    assert heard("$/cancelRequest") == []
    talk.post("/cancel")
    assert talk.end(run_id)["status"] == "cancelled"
    (taken_back,) = exactly(1, lambda: heard("$/cancelRequest"))
    assert taken_back["params"] == {"id": question["id"]}
    assert [one["status"] for one in talk.calls()] == ["cancelled"]


@whole("AT-BEY-06")
def test_a_logpoint_is_advised_and_observes_without_stopping(
    extra: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    text = "total = 0\nfor x in range(3):\n    total += x\nprint(total)\n"
    project = loaded(extra, tmp_path / "p", a__py=text)
    (described,) = [one for one in project.get("/tools")["tools"] if one["name"] == "debug"]
    assert "log_message breakpoints observe without stopping" in described["description"]
    talk = Talk(project, model)
    run = talk.hear(
        call("debug", action="launch", runtime="python", script="a.py"),
        call("debug", action="set_breakpoint", path="a.py", line=3, log_message="x is {x}"),
        call("debug", action="continue"),
        say("Done."),
    )
    made = talk.calls()
    ended = made[2]["result"]
    assert ended["status"] == "exited", made
    told = tool_answers(asked(model, run["word"])[-1])  # the agent itself, by the later call
    assert len(told) == 3
    for number in range(3):
        assert f"x is {number}" in ended["output"]
        assert f"x is {number}" in told[2]
    assert extra.audit("debug.breakpoint_hit", project_id=project.id) == []
