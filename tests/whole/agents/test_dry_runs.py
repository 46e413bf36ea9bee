"""Agents that only report what their tools would do, and those below them."""

from __future__ import annotations

from collections.abc import Callable

from requirements.marker import whole
from whole.harness.agents import Talk, agent, caged, path_of, rows_of
from whole.harness.model import ModelServer, call, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project

KID = path_of("kid")


@whole("AT-BEY-17")
def test_nothing_that_a_dry_run_agent_does_changes_anything(
    project: Project, plugin: Callable[..., PluginFolder]
) -> None:
    one = plugin()
    retain = {"name": "retain", "description": "Keeps it.", "parameters_schema": {"type": "object"}}
    one.write({"on": {f"{one.name}.retain": [{"echo": True}]}}, name=one.name, tools=[retain])
    one.run()
    kid = agent(
        "file.*",
        "edit.*",
        "shell.*",
        "search.*",
        cage=caged("rw:.", capabilities=["shell"]),
        dry_run=False,
    )
    project.describe(
        dry_run=True,
        cage=caged("rw:.", capabilities=["shell"]),
        subagents={"kid": kid},
        plugins={one.name: {"package": one.name}},
    )
    project.reload()
    project.write("a.txt", "before\n")
    project.call("file.read", path="./a.txt")
    assert project.get("/tools")["dry_run"] is True
    calls = {
        "file.write": {"path": "./new/b.txt", "content": "x"},
        "file.create": {"path": "./c.txt", "content": "x"},
        "edit.text": {"path": "./a.txt", "old_string": "before", "new_string": "after"},
        "shell.bash": {"command": "touch d.txt"},
        "edit.ast": {"path": ".", "lang": "python", "dry_run": False, "rewrites": {"a": "b"}},
        f"{one.name}.retain": {"content": "x"},
    }  # fmt: skip
    for who in ("primary", KID):  # the subagent cannot do for its parent what that may not
        for tool, params in calls.items():
            if who == KID and tool.startswith(one.name):
                continue  # not one of its tools
            said = project.call(tool, who, **params)
            assert said["dry_run"] is True, (who, tool, said)
            assert (said["tool"], said["would"]["arguments"]) == (
                tool,
                {**said["would"]["arguments"], **params},
            )
    assert project.call("file.write", path="./b.txt", content="x")["would"]["paths"] == ["./b.txt"]
    assert sorted(each.name for each in project.root.iterdir()) == [".kaged", "a.txt"]
    assert project.read("a.txt") == "before\n"
    assert one.audit("plugin.tool_called") == []
    # Reading goes on, gates are as they were, and the trail tells what was not done.
    assert "a.txt" in str(project.call("search.grep", pattern="before", path="."))
    assert project.fail("file.write", path="../e.txt", content="x")["code"] == "invalid_params"
    ends = rows_of(project, "tool.completed")
    assert {row["data"]["tool_name"] for row in ends if row["data"].get("dry_run")} == set(calls)


@whole("AT-BEY-17")
def test_the_mode_ends_with_the_word_and_counts_in_runs(
    project: Project, model: ModelServer
) -> None:
    project.describe(dry_run=True)
    project.reload()
    write = {"path": "./made.txt", "content": "x"}
    talk = Talk(project)
    model.play("dry-run-7", call("file.write", **write), say("done"))
    assert talk.say("write it, dry-run-7")["status"] == "completed"
    assert not (project.root / "made.txt").exists()
    [made] = talk.calls()
    assert made["result"]["dry_run"] is True
    assert "only reports what it would do" in str(model.asked("dry-run-7")[-1])
    project.describe()
    project.reload()
    assert "dry_run" not in project.call("file.write", **write)
    assert project.read("made.txt") == "x"
