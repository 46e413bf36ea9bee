"""The operator takes back what agents did to files, over HTTP and with commands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.commands import load_project
from fakes.running_daemon import (
    DaemonProcess,
    InProcess,
    daemon_in_process,
    kaged,
    make_project,
    require_error_shape,
)

PROJECT = """\
version: 1
project: sample
primary:
  model: default
  system_prompt: You help.
  tools: {'file.*': {enabled: true}, 'edit.*': {enabled: true}}
"""


class Stage:
    """A daemon with one project, and calls as its primary agent."""

    def __init__(self, inside: InProcess, root: Path) -> None:
        self.inside = inside
        self.root = root
        self.base = ""

    async def call(self, tool: str, **params: Any) -> None:
        answer = await self.inside.client.post(
            f"{self.base}/tools/call", json={"tool": tool, "params": params}
        )
        assert answer.status_code == 200, answer.text

    async def steps(self, **params: Any) -> Any:
        answer = await self.inside.client.get(f"{self.base}/undo", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def undo(self, status: int = 200, **body: Any) -> Any:
        answer = await self.inside.client.post(f"{self.base}/undo", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def text(self, name: str) -> str:
        return (self.root / name).read_text("utf-8")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    root = make_project(tmp_path / "project", PROJECT)
    (root / "a.txt").write_text("one\n", "utf-8")
    async with daemon_in_process(tmp_path / "home") as inside:
        made = Stage(inside, root)
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        made.base = f"/api/v1/projects/{answer.json()['id']}"
        await made.call("file.read", path="./a.txt")
        await made.call("edit.text", path="./a.txt", old_string="one", new_string="two")
        await made.call("file.create", path="./b.txt", content="new\n")
        yield made


async def test_undo_outlives_the_daemon(tmp_path: Path) -> None:
    root = make_project(tmp_path / "project", PROJECT)
    async with daemon_in_process(tmp_path / "home") as inside:
        stage = Stage(inside, root)
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        stage.base = f"/api/v1/projects/{answer.json()['id']}"
        await stage.call("file.create", path="./b.txt", content="new\n")
        base = stage.base
    async with daemon_in_process(tmp_path / "home") as inside:
        stage = Stage(inside, root)
        stage.base = base
        assert (await stage.steps())["total"] == 1
        await stage.undo()
        assert not (root / "b.txt").exists()


async def test_the_steps_are_listed_newest_first(stage: Stage) -> None:
    found = await stage.steps()
    assert found["total"] == 2
    assert [one["tool_name"] for one in found["steps"]] == ["file.create", "edit.text"]
    assert found["steps"][0]["files"] == [
        {"path": "./b.txt", "change": "created", "undoable": True}
    ]
    assert {one["caller"] for one in found["steps"]} == {"primary"}
    assert len((await stage.steps(limit=1))["steps"]) == 1
    assert (await stage.steps(run_id="run_of_nobody"))["steps"] == []


async def test_without_more_words_the_last_step_is_taken_back(stage: Stage) -> None:
    said = await stage.undo()
    assert said["files"] == [{"path": "./b.txt", "change": "removed"}]
    assert not (stage.root / "b.txt").exists()
    assert stage.text("a.txt") == "two\n"


async def test_a_whole_run_is_taken_back_and_each_file_is_on_record(stage: Stage) -> None:
    step = (await stage.steps())["steps"][0]
    said = await stage.undo(run_id=step["run_id"])
    assert stage.text("a.txt") == "one\n"
    assert not (stage.root / "b.txt").exists()
    assert {(one["path"], one["change"]) for one in said["files"]} == {
        ("./a.txt", "restored"),
        ("./b.txt", "removed"),
    }
    rows = (
        await stage.inside.client.get("/api/v1/audit", params={"event": "file.reverted"})
    ).json()["items"]
    assert {row["data"]["path"] for row in rows} == {"./a.txt", "./b.txt"}
    for row in rows:
        assert row["data"]["run_id"] == step["run_id"]
        assert row["data"]["session_id"] == step["session_id"]
        assert row["data"]["caller"]
    require_error_shape(await stage.undo(404, run_id=step["run_id"]), "undo_not_found")


async def test_a_file_that_somebody_else_changed_is_left_alone(stage: Stage) -> None:
    (stage.root / "a.txt").write_text("mine\n", "utf-8")
    run_id = (await stage.steps())["steps"][0]["run_id"]
    error = require_error_shape(await stage.undo(409, run_id=run_id), "undo_conflict")
    assert error["data"]["files"] == [{"path": "./a.txt", "reason": "changed since"}]
    assert (stage.text("a.txt"), stage.text("b.txt")) == ("mine\n", "new\n")


async def test_an_unknown_project_has_no_steps(stage: Stage) -> None:
    url = "/api/v1/projects/prj_00000000000000000000000000/undo"
    for answer in (
        await stage.inside.client.get(url),
        await stage.inside.client.post(url, json={}),
        await stage.inside.client.get(url.replace("/undo", "/lsp")),
    ):
        assert answer.status_code == 404
        require_error_shape(answer.json(), "project_not_found")


def test_the_commands_list_and_take_back(shared: DaemonProcess, tmp_path: Path) -> None:
    commands = load_project(shared, tmp_path / "project", PROJECT.replace("sample", "SLUG"))
    home, root = commands.home, commands.root
    for name in ("x", "y", "z"):
        made = kaged(home, "tool", "call", "file.create", f"path=./{name}", "content=1", cwd=root)
        assert made.returncode == 0, made.stderr
    listed = json.loads(kaged(home, "undo", "list", "--json", cwd=root).stdout)
    assert [one["files"][0]["path"] for one in listed["steps"]] == ["./z", "./y", "./x"]
    assert "file.create" in kaged(home, "undo", "list", "-n", "1", cwd=root).stdout
    last = kaged(home, "undo", "last", cwd=root)
    assert (last.returncode, last.stdout) == (0, "removed ./z\n")
    assert "Undid 1 step." in last.stderr
    run = kaged(home, "undo", "run", listed["steps"][0]["run_id"], cwd=root)
    assert run.returncode == 0
    assert not list(root.glob("[xyz]"))
    again = kaged(home, "undo", "last", cwd=root)
    assert again.returncode != 0
    assert "nothing to undo" in again.stderr


def test_the_servers_of_a_project_are_shown(
    start: Callable[..., DaemonProcess], home: Path, tmp_path: Path
) -> None:
    start(env={"PATH": "/usr/bin:/bin"}, forked=True)
    root = make_project(tmp_path / "project", PROJECT)
    assert kaged(home, "project", "load", "--trust", str(root)).returncode == 0
    shown = kaged(home, "lsp", "status", cwd=root)
    assert shown.returncode == 0, shown.stderr
    assert "rust-analyzer" in shown.stdout
    assert "built in" in shown.stdout
    assert "rustup component add rust-analyzer" in shown.stderr
    data = json.loads(kaged(home, "lsp", "status", "--json", cwd=root).stdout)
    assert {one["language"] for one in data["servers"]} == {
        "go", "javascript", "python", "rust", "typescript",
    }  # fmt: skip
    assert {one["state"] for one in data["servers"]} == {"not_started"}
