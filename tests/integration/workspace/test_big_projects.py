"""Many callers and large files: nothing is refused for being busy, and nothing grows with it."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from fakes.tool_lab import ToolLab
from kaged.toolbox.files import file_tools
from kaged.workspace import FileLocks, FileThreads, Workspace
from requirements import requirement
from thorough import THOROUGH

CALLERS = 50
MEMORY_KIB = 64 * 1024
"""How much more memory a call may take, however large its file is."""
LARGE = (1024 if THOROUGH else 192) * 1024**2


async def test_fifty_callers_work_on_one_project_without_waiting_in_vain(tmp_path: Path) -> None:
    """Every caller has files of its own and shares some with everybody else."""
    workspace = Workspace(tmp_path)
    for number in range(5):
        (tmp_path / f"shared{number}").write_text("0\n" * 200, encoding="utf-8")

    async def work(number: int) -> list[str]:
        lab = ToolLab(
            tmp_path,
            file_tools(),
            caller=f"primary.subagents.c{number}",
            workspace=workspace,
        )
        trouble: list[str] = []

        async def note(call: Awaitable[Any]) -> None:
            try:
                await call
            except Exception as error:  # noqa: BLE001 - what it was is looked at below
                trouble.append(getattr(error, "code", repr(error)))

        await lab.call("file.create", path=f"own/{number}.txt", content="start\n")
        for turn in range(6):
            shared = f"shared{(number + turn) % 5}"
            await lab.call("file.read", path=shared)
            await note(lab.call("file.write", path=shared, content=f"{number}.{turn}\n" * 200))
            await lab.call(
                "edit.text",
                path=f"own/{number}.txt",
                old_string="start\n",
                new_string=f"start\n{turn}\n",
            )
        return trouble

    async with asyncio.timeout(100):
        outcomes = await asyncio.gather(*(work(number) for number in range(CALLERS)))
    codes = {code for trouble in outcomes for code in trouble}
    assert codes <= {"file_changed_since_read"}, "never file_busy, never anything else"
    for number in range(CALLERS):
        lines = (tmp_path / "own" / f"{number}.txt").read_text(encoding="utf-8").split()
        assert lines == ["start", "5", "4", "3", "2", "1", "0"]
    for number in range(5):
        lines = (tmp_path / f"shared{number}").read_text(encoding="utf-8").split()
        assert len(lines) == 200
        assert len(set(lines)) == 1, "one writer's content, whole"
    assert workspace.locks.held() == 0
    assert list(tmp_path.rglob(".kaged-tmp-*")) == []


@requirement("AT-FAIL-12")
async def test_projects_share_the_locks_of_the_daemon(tmp_path: Path) -> None:
    """One folder opened twice, as two projects: the second writer waits for the first."""
    first = Workspace(tmp_path)
    locks, threads = first.locks, first.threads
    assert isinstance(locks, FileLocks)
    assert isinstance(threads, FileThreads)
    second = Workspace(tmp_path, locks=locks, threads=threads)
    lab = ToolLab(tmp_path, file_tools(), workspace=second)
    async with locks.mutating([first.resolve("a")]):
        task = asyncio.get_running_loop().create_task(lab.call("file.write", path="a", content="x"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
    async with asyncio.timeout(60):
        await task


@pytest.mark.thorough
async def test_a_file_much_larger_than_the_bound_is_read_in_bounded_memory(tmp_path: Path) -> None:
    lab = ToolLab(tmp_path, file_tools())
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(LARGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = await lab.call("file.read", path="sparse")
    assert answer == {
        "path": "./sparse",
        "type": "binary",
        "size": LARGE,
        "mime": "application/octet-stream",
    }
    for tool, more in (
        ("file.write", {"content": "x"}),
        ("edit.text", {"old_string": "a", "new_string": "b"}),
    ):
        error = await lab.refusal_with(tool, {"path": "sparse", **more})
        assert error.code == "file_too_large"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB


async def test_a_text_of_a_hundred_megabytes_is_paged(tmp_path: Path) -> None:
    lab = ToolLab(tmp_path, file_tools())
    block = b"".join(b"%07d %s\n" % (number, b"x" * 91) for number in range(10_000))
    with (tmp_path / "log").open("wb") as file:
        for _ in range(100):
            file.write(block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = await lab.call("file.read", path="log", offset=999_999, limit=1)
    assert answer["content"].startswith("999999: 0009998 x")
    assert (answer["total_lines"], answer["truncated"]) == (1_000_000, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB


async def test_a_directory_with_more_entries_than_a_page_is_paged(tmp_path: Path) -> None:
    lab = ToolLab(tmp_path, file_tools())
    (tmp_path / "d").mkdir()
    for number in range(2_500):
        (tmp_path / "d" / f"{number:05}").touch()
    answer = await lab.call("file.read", path="d", offset=2_499)
    assert (answer["content"], answer["total_lines"]) == ("02498\n02499", 2_500)
