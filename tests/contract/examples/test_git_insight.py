"""git-insight on a real repository."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.example_plugins import load_example
from kaged.sdk import RpcError
from kaged.sdk.testing import PluginDriver


def git(root: Path, *args: str) -> None:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    subprocess.run(["git", *who, *args], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    for n in range(3):
        (tmp_path / "hot.py").write_text("first\n" + "x\n" * n, encoding="utf-8")
        (tmp_path / f"cold{n}.py").write_text("y\n", encoding="utf-8")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", f"change {n}")
    return tmp_path


@pytest.fixture
async def host(repository: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PluginDriver]:
    monkeypatch.setenv("KAGED_PROJECT_ROOT", str(repository))
    async with PluginDriver(load_example("git-insight").plugin) as driver:
        yield driver


async def ask(host: PluginDriver, tool: str, **params: Any) -> dict[str, Any]:
    return await host.call(f"git-insight.{tool}", params)


async def test_history_lists_commits_of_the_project_and_of_a_path(host: PluginDriver) -> None:
    commits = (await ask(host, "history"))["commits"]
    assert [commit["subject"] for commit in commits] == ["change 2", "change 1", "change 0"]
    assert commits[0]["author"] == "Ann"
    assert len((await ask(host, "history", path="cold1.py"))["commits"]) == 1
    assert len((await ask(host, "history", limit=2))["commits"]) == 2


async def test_blame_joins_neighbouring_lines_of_one_commit(host: PluginDriver) -> None:
    ranges = (await ask(host, "blame", path="hot.py"))["ranges"]
    assert [(r["subject"], r["start"], r["end"]) for r in ranges] == [
        ("change 0", 1, 1),
        ("change 1", 2, 2),
        ("change 2", 3, 3),
    ]
    part = (await ask(host, "blame", path="hot.py", start=2, end=2))["ranges"]
    assert [(r["start"], r["end"]) for r in part] == [(2, 2)]


async def test_hot_spots_counts_commits_per_file(host: PluginDriver) -> None:
    files = (await ask(host, "hot_spots", limit=2))["files"]
    assert files[0] == {"path": "hot.py", "commits": 3}
    assert len(files) == 2


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\0b"])
async def test_paths_outside_the_project_are_refused(host: PluginDriver, path: str) -> None:
    with pytest.raises(RpcError) as caught:
        await ask(host, "blame", path=path)
    assert caught.value.number == -32602


async def test_gits_own_complaint_reaches_the_caller(host: PluginDriver) -> None:
    with pytest.raises(RpcError, match="git: fatal: no such path"):
        await ask(host, "blame", path="nothing.py")


async def test_an_option_as_path_stays_a_path(host: PluginDriver) -> None:
    with pytest.raises(RpcError, match="git: fatal"):
        await ask(host, "blame", path="--contents=/etc/passwd")


async def test_without_a_project_the_question_does_not_apply(
    host: PluginDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAGED_PROJECT_ROOT")
    with pytest.raises(RpcError) as caught:
        await ask(host, "history")
    assert caught.value.number == -32006
