"""An operator takes back what tools did: the last steps, or a whole run, or nothing at all."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kaged.base import JsonValue, ManualClock
from kaged.workspace import Author, ChangeKind, FileChange, PlannedWrite, UndoJournal, Workspace
from kaged.workspace.batch import Written
from kaged.workspace.content import sha256_of
from kaged.workspace.errors import UndoConflict, UndoNotFound
from kaged.workspace.path import ProjectPath
from kaged.workspace.threads import FileThreads
from requirements import requirement

ONE = Author("ses_1", "run_1", "primary", "edit.text")
TWO = Author("ses_1", "run_2", "primary.subagents.coder", "file.write")


@pytest.fixture
def workspace(tmp_path: Path, clock: ManualClock) -> Workspace:
    return Workspace(tmp_path, clock=clock)


def change(workspace: Workspace, author: Author, **files: bytes | None) -> None:
    """Change files as a tool does, in one step."""
    plans: list[PlannedWrite] = []
    for name, data in files.items():
        path = workspace.resolve(name)
        there = Path(path.resolved)
        sha = sha256_of(there.read_bytes()) if there.exists() else None
        plans.append(PlannedWrite(path, data, sha, create_only=sha is None))
    workspace.settle(author, workspace.write_all(plans))


def conflict(error: UndoConflict) -> JsonValue:
    return error.data["files"]


@requirement("AT-BEY-14")
async def test_a_whole_run_is_taken_back_to_the_very_bytes(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"original\r\n\xff")
    (tmp_path / "a").chmod(0o750)
    (tmp_path / "gone").write_bytes(b"was here")
    (tmp_path / "gone").chmod(0o750)
    change(workspace, ONE, a=b"first", new=b"x")
    change(workspace, ONE, a=b"second", gone=None)
    change(workspace, TWO, other=b"stays")
    heard: list[FileChange] = []
    workspace.changes.subscribe(heard.append)

    undone = await workspace.undo(run_id="run_1")

    assert (tmp_path / "a").read_bytes() == b"original\r\n\xff"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "gone").read_bytes() == b"was here"
    assert (tmp_path / "gone").stat().st_mode & 0o777 == 0o750
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "other").read_bytes() == b"stays"
    assert len(undone.steps) == 2
    assert {(one.path.relative, one.kind) for one in heard} == {
        ("./a", ChangeKind.CHANGED),
        ("./gone", ChangeKind.CREATED),
        ("./new", ChangeKind.DELETED),
    }
    with pytest.raises(UndoNotFound):
        await workspace.undo(run_id="run_1")


async def test_the_last_steps_alone_can_be_taken_back(workspace: Workspace, tmp_path: Path) -> None:
    for content in (b"1", b"2", b"3"):
        change(workspace, ONE, a=content)
    await workspace.undo(session_id="ses_1", count=1)
    assert (tmp_path / "a").read_bytes() == b"2"
    await workspace.undo(session_id="ses_1", count=2)
    assert not (tmp_path / "a").exists()


async def test_a_file_changed_since_stops_the_whole_undo(
    workspace: Workspace, tmp_path: Path
) -> None:
    change(workspace, ONE, a=b"1", b=b"1", c=b"1")
    (tmp_path / "b").write_bytes(b"edited by hand")
    (tmp_path / "c").unlink()
    with pytest.raises(UndoConflict) as caught:
        await workspace.undo(run_id="run_1")
    assert conflict(caught.value) == [
        {"path": "./b", "reason": "changed since"},
        {"path": "./c", "reason": "changed since"},
    ]
    assert (tmp_path / "a").read_bytes() == b"1"
    assert len(workspace.journal.steps()) == 1, "the step is still there to be undone later"


async def test_another_runs_change_in_between_is_a_conflict(
    workspace: Workspace, tmp_path: Path
) -> None:
    change(workspace, ONE, a=b"1")
    change(workspace, TWO, a=b"2")
    change(workspace, ONE, a=b"3")
    with pytest.raises(UndoConflict) as caught:
        await workspace.undo(run_id="run_1")
    assert conflict(caught.value) == [
        {"path": "./a", "reason": "changed in between by another program"}
    ]
    assert (tmp_path / "a").read_bytes() == b"3"
    await workspace.undo(session_id="ses_1")
    assert not (tmp_path / "a").exists()


async def test_what_was_made_and_removed_again_needs_nothing(
    workspace: Workspace, tmp_path: Path
) -> None:
    change(workspace, ONE, a=b"1")
    change(workspace, ONE, a=None)
    undone = await workspace.undo(run_id="run_1")
    assert undone.files == ()
    assert not (tmp_path / "a").exists()


async def test_an_agent_has_to_read_again_after_an_undo(workspace: Workspace) -> None:
    change(workspace, ONE, a=b"1")
    change(workspace, ONE, a=b"2")
    await workspace.undo(run_id="run_1", count=1)
    known = workspace.reads.sha_of("ses_1", "primary", workspace.resolve("a").resolved)
    assert known == sha256_of(b"2")


def written(name: str, before: bytes | None, *, kept: bool = True) -> Written:
    path = ProjectPath(f"./{name}", f"/p/{name}", name)
    return Written(
        path, 1, "after", created=False, before=before if kept else None, before_sha="before"
    )


def test_the_journal_is_bounded_by_bytes_and_steps(clock: ManualClock) -> None:
    journal = UndoJournal(clock, max_bytes=10, max_steps=3)
    for number in range(5):
        journal.record(ONE, [written(f"f{number}", b"x")])
    assert [step.files[0].path.relative for step in journal.steps()] == ["./f4", "./f3", "./f2"]
    journal.record(ONE, [written("big", b"x" * 9)])
    assert [step.files[0].path.relative for step in journal.steps()] == ["./big", "./f4"]
    journal.record(ONE, [written("huge", b"x" * 11)])
    assert journal.steps() == ()


def test_steps_are_listed_for_people_without_contents(clock: ManualClock) -> None:
    journal = UndoJournal(clock)
    journal.record(ONE, [written("a", b"secret"), written("b", b"secret", kept=False)])
    journal.record(TWO, [written("c", b"")])
    listed = [step.as_json() for step in journal.steps(run_id="run_1")]
    assert listed == [
        {
            "step": 1,
            "time": "2026-01-01T00:00:00.000Z",
            "session_id": "ses_1",
            "run_id": "run_1",
            "caller": "primary",
            "tool_name": "edit.text",
            "files": [
                {"path": "./a", "change": "changed", "undoable": True},
                {"path": "./b", "change": "changed", "undoable": False},
            ],
        }
    ]
    assert [step.author for step in journal.steps(session_id="ses_1")] == [TWO, ONE]
    assert journal.steps(session_id="ses_2") == ()


async def test_an_old_content_that_was_not_kept_is_a_conflict(workspace: Workspace) -> None:
    workspace.journal.record(ONE, [written("a", b"x", kept=False)])
    with pytest.raises(UndoConflict) as caught:
        await workspace.undo(run_id="run_1")
    assert conflict(caught.value) == [{"path": "./a", "reason": "its old content was not kept"}]


# -- threads -------------------------------------------------------------------------------------


async def test_a_cancelled_change_is_finished_and_recorded_first() -> None:
    threads = FileThreads(1)
    started, go = threading.Event(), threading.Event()
    recorded: list[str] = []

    def work() -> str:
        started.set()
        go.wait(5)
        return "changed"

    task = asyncio.get_running_loop().create_task(threads.finish(work, recorded.append))
    await asyncio.get_running_loop().run_in_executor(None, started.wait, 5)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorded == ["changed"]
    threads.close()


async def test_a_cancelled_change_that_fails_is_still_cancelled() -> None:
    threads = FileThreads(1)
    started, go = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait(5)
        raise RuntimeError("the disk")

    task = asyncio.get_running_loop().create_task(threads.finish(work, lambda _: None))
    await asyncio.get_running_loop().run_in_executor(None, started.wait, 5)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(RuntimeError, match="again"):
        await threads.finish(lambda: (_ for _ in ()).throw(RuntimeError("again")), lambda _: None)
    threads.close()
