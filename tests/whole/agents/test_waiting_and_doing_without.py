"""Files that somebody works on, searches that take too long, and hosts that lack something."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.agents import OFF, ON, Talk, agent, caged, names_of, path_of, rows_of
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project

CODER = path_of("coder")


def slow_edit(rounds: int) -> dict[str, Any]:
    """Return an edit of `big.txt` that takes a while, the longer the more rounds it has."""
    back = {"old_string": "yo", "new_string": "key", "replace_all": True}
    forth = {"old_string": "key", "new_string": "yo", "replace_all": True}
    return {"path": "big.txt", **forth, "more_edits": [back, forth] * rounds}


def start(project: Project, tool: str, **params: Any) -> tuple[threading.Thread, list[Any]]:
    """Make a call in another thread; its answer will be in the list."""
    answers: list[Any] = []
    body = {"agent": "primary", "tool": tool, "params": params}
    url = f"/api/v1/projects/{project.id}/tools/call"
    socket = project.daemon.get("/status")["socket"]

    def send() -> None:
        transport = httpx.HTTPTransport(uds=socket)
        with httpx.Client(transport=transport, base_url="http://kaged", timeout=120) as client:
            answers.append(client.post(url, json=body))

    thread = threading.Thread(target=send)
    thread.start()
    return thread, answers


def with_big_file(project: Project) -> Project:
    """Write a file that is long to edit, read by both agents, and a short one."""
    coder = agent("file.*", "edit.*", cage="disabled")
    project.describe(cage="disabled", subagents={"coder": coder})
    project.reload()
    lines = "".join(f"key{n:05d} {'x' * 60}\n" for n in range(60_000))
    project.write("big.txt", f"head\n{lines}")
    (project.root / "alias.txt").symlink_to("big.txt")
    project.write("small.txt", "head\n")
    for who in ("primary", CODER):
        for name in ("big.txt", "small.txt"):
            project.call("file.read", who, path=name, limit=1)
    return project


@whole("AT-FAIL-12", "AT-FAIL-14", "AT-AMB-51")
def test_a_file_that_is_worked_on_is_busy_for_everybody_else_when_their_patience_ends(
    own: Callable[..., Daemon],
) -> None:
    daemon = own(config="[tools.limits]\nfile_wait_seconds = 0.2\n")
    daemon.start()
    project = with_big_file(daemon.load(Project(daemon.home.parent / "p")))
    thread, answers = start(project, "edit.text", **slow_edit(24))
    nothing = {"old_string": "no such text", "new_string": "x"}
    seen: list[dict[str, Any]] = []

    def busy() -> bool:
        seen.append(project.fail("edit.text", CODER, path="alias.txt", **nothing))
        return seen[-1]["code"] == "file_busy"

    wait_for(busy)
    assert seen[-1]["data"]["number"] == -32000
    assert project.fail("file.read", path="big.txt", limit=1)["code"] == "file_busy"
    edit = {"path": "small.txt", "old_string": "head", "new_string": "changed"}
    project.call("edit.text", CODER, **edit)
    assert not answers, "the first edit is still at work"
    thread.join()
    assert answers[0].is_success, answers[0].text[:300]
    assert project.call("file.read", path="big.txt", limit=1)["content"] == "1: head"
    assert project.fail("edit.text", path="big.txt", **nothing)["code"] == "old_string_not_found"


@whole("AT-FAIL-12")
def test_a_second_edit_waits_for_the_first_and_both_are_made(project: Project) -> None:
    with_big_file(project)
    thread, answers = start(project, "edit.text", **slow_edit(8))
    wait_for(lambda: "more_edits" in json.dumps(rows_of(project, "tool.called")))
    edit = {"path": "alias.txt", "old_string": "head\n", "new_string": "first\n"}
    project.call("edit.text", **edit)
    thread.join()
    assert answers[0].is_success, answers[0].text[:300]
    first, second, *_ = project.read("big.txt").splitlines()
    assert (first, second[:7]) == ("first", "yo00000")


@whole("AT-FAIL-09")
def test_a_search_that_takes_too_long_is_stopped_and_tells_what_it_has(
    own: Callable[..., Daemon],
) -> None:
    daemon = own(config="[tools.limits]\nsearch_seconds = 2\n")
    daemon.start()
    project = daemon.load(Project(daemon.home.parent / "p"))
    chosen = random.Random(1)
    line = "".join(chosen.choice("abcdefgh") for _ in range(400))
    project.write("quick.txt", "zz here\n")
    project.write("slow.txt", f"{line}\n" * 200_000)
    slow = {"pattern": r"(\w+).*\1.*Q|zz", "output_mode": "content"}
    got = project.call("search.grep", **slow)
    assert got["truncated"] is True
    assert [one["file"] for one in got["matches"]] == ["./quick.txt"]
    again = project.call("search.grep", pattern="zz", output_mode="content")
    assert (again["truncated"], again["total_matches"]) == (False, 1)


@whole("AT-FAIL-01", "AT-AMB-45")
def test_a_daemon_without_its_engine_says_so_and_does_not_listen(
    own: Callable[..., Daemon],
) -> None:
    daemon = own()
    package = daemon.home / "blocked" / "ast_grep_py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise ImportError("blocked")\n', encoding="utf-8")
    daemon.env["PYTHONPATH"] = str(package.parent)
    done = daemon.cli("daemon", "run", code=1)
    assert "engine_unavailable" in done.err
    assert "ast-grep-py" in done.err
    assert not (daemon.home / "run" / "kaged.sock").exists()
    del daemon.env["PYTHONPATH"]
    daemon.start()
    assert daemon.get("/status")["pid"] == daemon.pid


@whole("AT-CTX-06", "AT-DAP-17", "AT-AMB-40")
def test_without_a_sandbox_permissions_are_the_same_and_nothing_caged_is_run(
    own: Callable[..., Daemon],
) -> None:
    daemon = own(config='[sandbox]\nbwrap = "/nonexistent/bwrap"\n')
    daemon.start()
    cage = caged("rw:./src", "ro:./lib", capabilities=["shell", "exec"])
    coder = agent("file.*", "search.*", "edit.*", "shell.*", "debug", cage=cage)
    project = Project(daemon.home.parent / "p", cage="disabled", subagents={"coder": coder})
    daemon.load(project)
    for name in ("src/a.py", "lib/a.py", "data/a.py"):
        project.write(name, "open('ran', 'w')\n")
    for tool, path, code in (
        ("file.read", "src/a.py", None),
        ("file.read", "lib/a.py", None),
        ("file.read", "data/a.py", "capability_denied"),
        ("file.create", "src/new", None),
        ("file.create", "lib/new", "capability_denied"),
        ("file.create", "data/new", "capability_denied"),
    ):
        more = {"content": "x"} if tool == "file.create" else {}
        if code is None:
            project.call(tool, CODER, path=path, **more)
        else:
            assert project.fail(tool, CODER, path=path, **more)["code"] == code
    launch = {"action": "launch", "runtime": "python", "script": "src/a.py", "cwd": "./src"}
    for tool, params in (
        ("shell.bash", {"command": "touch ran", "cwd": "./src"}),
        ("debug", {**launch, "stop_on_entry": False}),
    ):
        refused = project.fail(tool, CODER, **params)
        assert refused["code"] in ("shell_spawn_failed", "dap_adapter_not_found"), refused
    assert not (project.root / "src" / "ran").exists()
    project.call("shell.bash", command="touch ran", cwd="./src")
    assert (project.root / "src" / "ran").exists()


@whole("AT-RES-03")
def test_what_an_agent_has_follows_from_the_registry_its_role_its_map_and_not_its_cage(
    project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    free = {"type": "object", "properties": {}}
    made = plugin(
        tools=[
            {"name": name, "description": "Does it.", "parameters_schema": free}
            for name in ("keep", "drop")
        ]
    )
    keep, drop = f"{made.name}.keep", f"{made.name}.drop"
    declared = {"it": {"package": f"@test/{made.name}"}}
    tools = {"kaged.*": OFF, "kaged.issue": ON, "file.read": ON, drop: OFF}
    scribe = agent(cage=caged(), plugins=declared, tools={"file.*": ON, drop: OFF, "kaged.*": OFF})
    project.describe(cage=caged(), plugins=declared, tools=tools, subagents={"scribe": scribe})
    project.reload()
    files = ["file.create", "file.read", "file.write"]
    assert names_of(project) == ["agent-scribe", "file.read", "kaged.issue"]
    assert names_of(project, path_of("scribe")) == files
    made.run()
    assert names_of(project) == sorted(["agent-scribe", "file.read", "kaged.issue", keep])
    assert names_of(project, path_of("scribe")) == sorted([*files, keep])
    for who in ("primary", path_of("scribe")):
        assert project.fail("file.read", who, path="x")["code"] == "capability_denied"
        assert project.fail(drop, who)["code"] == "tool_not_found"
    assert project.fail("kaged.issue", path_of("scribe"), action="list")["code"] == (
        "principal_scope_violation"
    )


@whole("AT-AMB-03", "AT-AMB-04")
@pytest.mark.parametrize("begun", ["triaged", "assigned", "in_progress"])
def test_an_open_issue_is_resolved_at_once_and_a_begun_one_moves_freely(
    project: Project, begun: str
) -> None:
    for title in ("One", "Two", "Three"):
        project.call("kaged.issue", action="create", title=title, body="b")

    def move(number: int, to: str, **more: str) -> None:
        project.call("kaged.issue", action="transition", number=number, to=to, **more)
        assert project.get(f"/issues/{number}")["status"] == to

    for to in ("resolved", "rejected"):
        refused = project.fail("kaged.issue", action="transition", number=1, to=to)
        assert refused["code"] == "invalid_params", refused
    move(1, "resolved", comment="Done.")
    others = [one for one in ("triaged", "assigned", "in_progress") if one != begun]
    move(2, begun)
    for to in others:
        move(2, to)
        move(2, begun)
    move(2, "rejected", comment="No.")
    move(3, begun)
    move(3, "resolved", comment="Done.")


@whole("AT-AMB-12")
def test_the_modes_of_a_search_have_shapes_of_their_own(project: Project) -> None:
    project.write("src/a.txt", "word\nword\nother\n")
    project.write("src/b.txt", "word\n")
    ask = {"pattern": "^word$", "path": "src"}
    files = project.call("search.grep", output_mode="files_with_matches", **ask)["matches"]
    assert files == [{"file": "./src/a.txt"}, {"file": "./src/b.txt"}]
    counts = project.call("search.grep", output_mode="count", **ask)["matches"]
    assert counts == [{"file": "./src/a.txt", "count": 2}, {"file": "./src/b.txt", "count": 1}]
    assert project.fail("search.grep", pattern="((")["code"] == "invalid_pattern"


@whole("AT-AMB-39", "AT-AMB-47", "AT-AMB-38")
def test_structure_is_rewritten_unread_and_files_of_unknown_languages_are_passed_over(
    project: Project,
) -> None:
    project.write("src/README", "f(1, 2)\n")
    project.write("src/a.ts", "f(1, 2)\n")
    rewrite: dict[str, Any] = {"rewrites": {"f($$$ARGS)": "g($$$ARGS)"}}
    found = project.call("search.ast", pattern="f($$$ARGS)", lang="typescript", paths=["src"])
    assert [one["meta_variables"] for one in found["matches"]] == [{"ARGS": "1, 2"}]
    assert project.call("edit.ast", path="src", **rewrite)["total_replacements"] == 1
    refused = project.fail("edit.ast", path="src/README", **rewrite)
    assert refused["code"] == "invalid_params"
    project.call("edit.ast", path="src", dry_run=False, **rewrite)
    assert project.read("src/a.ts") == "g(1, 2)\n"
    assert project.read("src/README") == "f(1, 2)\n"
    project.write("long.txt", "one\ntwo\nthree\n")
    edit = {"path": "long.txt", "old_string": "three", "new_string": "four"}
    project.describe(subagents={"coder": agent("file.*", "edit.*", cage=caged("rw:."))})
    project.reload()
    assert project.fail("edit.text", **edit)["code"] == "file_not_read"
    project.call("file.read", path="long.txt", limit=1)
    assert project.fail("edit.text", CODER, **edit)["code"] == "file_not_read"
    project.call("edit.text", **edit)
    assert project.read("long.txt") == "one\ntwo\nfour\n"


@whole("AT-AMB-41", "AT-AMB-13")
def test_a_shell_sees_the_daemons_environment_only_without_a_cage(
    own: Callable[..., Daemon],
) -> None:
    daemon = own(config='[tools]\nscrub_env = ["*_SECRET"]\n')
    daemon.env["FROM_THE_DAEMON"] = "seen-by-some"
    daemon.env["MY_SECRET"] = "seen-by-none"
    daemon.start()
    coder = agent("shell.*", cage=caged("rw:.", capabilities=["shell"], env={"OWN": "given"}))
    project = Project(daemon.home.parent / "p", cage="disabled", subagents={"coder": coder})
    daemon.load(project)
    free = project.call("shell.bash", command="env", env={"EXTRA": "asked-for"})["stdout"]
    inside = project.call("shell.bash", CODER, command="env", env={"EXTRA": "asked-for"})["stdout"]
    assert ("seen-by-some" in free, "seen-by-some" in inside) == (True, False)
    assert "seen-by-none" not in free + inside
    assert ("OWN=given" in free, "OWN=given" in inside) == (False, True)
    assert "EXTRA=asked-for" in free
    assert "EXTRA=asked-for" in inside
    project.write("a.txt", "exactly this\n")
    project.call("file.read", path="a.txt")
    wrong = {"path": "a.txt", "old_string": "Exactly  this", "new_string": "that"}
    assert project.fail("edit.text", **wrong)["code"] == "old_string_not_found"
    project.call("edit.text", **{**wrong, "old_string": "exactly this"})
    assert project.read("a.txt") == "that\n"


@whole("AT-AMB-26", "AT-AMB-27", "AT-AMB-29")
def test_a_todo_list_keeps_criteria_finds_by_a_part_and_hides_what_was_dropped(
    project: Project, model: ModelServer
) -> None:
    project.post("/issues", {"title": "First", "body": "b"})
    talk = Talk(project)
    project.daemon.ask("PUT", f"/projects/{project.id}/sessions/{talk.id}/issue", {"number": 1})
    todo = "kaged.todo"
    model.play(
        "okapi-plans",
        call(todo, action="set", items=["Tests pass"], kind="criterion"),
        call(todo, action="add", items=["Read the code", "Write the code", "Old step"]),
        call(todo, action="add", items=["From below"], origin_agent="primary.subagents.coder"),
        call(todo, action="start", content="  READ the code "),
        call(todo, action="done", content="read"),
        call(todo, action="start", content="the code"),
        call(todo, action="drop", content="old STEP"),
        call(todo, action="view"),
        call(todo, action="set", items=["New plan"]),
        say("Planned."),
    )
    assert talk.say("okapi-plans")["status"] == "completed"
    rows = talk.calls()
    failed = {n: one["error"]["code"] for n, one in enumerate(rows) if one["error"]}
    assert set(failed) == {5}, failed
    view = json.dumps(rows[7]["result"])
    assert "Old step" not in view
    for text in ("Tests pass", "Read the code", "Write the code", "From below"):
        assert text in view
    after = json.dumps(rows[8]["result"])
    assert ("Tests pass" in after, "New plan" in after) == (True, True)
    assert "Write the code" not in after
