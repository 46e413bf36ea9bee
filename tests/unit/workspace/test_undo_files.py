"""Undo outlives the daemon: steps are on disk, and a file that is not whole is never used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kaged.base import ManualClock
from kaged.workspace import Author, PlannedWrite, UndoJournal, Workspace
from kaged.workspace.content import sha256_of
from kaged.workspace.errors import UndoConflict, UndoNotFound
from kaged.workspace.journal_files import JournalFiles

ME = Author("ses_1", "run_1", "primary", "edit.text")


class Daemon:
    """Opens the same project and the same folder of steps again and again."""

    def __init__(self, tmp_path: Path, clock: ManualClock) -> None:
        self.project = tmp_path / "project"
        self.folder = tmp_path / "home" / "undo" / "prj_1"
        self.project.mkdir()
        self._clock = clock

    def open(self) -> Workspace:
        return Workspace(self.project, clock=self._clock, undo=JournalFiles(self.folder, _now))

    @property
    def kept(self) -> list[str]:
        return sorted(one.name for one in self.folder.iterdir())


def _now(work: Callable[[], None]) -> None:
    work()


@pytest.fixture
def daemon(tmp_path: Path, clock: ManualClock) -> Daemon:
    return Daemon(tmp_path, clock)


def change(workspace: Workspace, **files: bytes | None) -> None:
    plans: list[PlannedWrite] = []
    for name, data in files.items():
        path = workspace.resolve(name)
        there = Path(path.resolved)
        sha = sha256_of(there.read_bytes()) if there.exists() else None
        plans.append(PlannedWrite(path, data, sha, create_only=sha is None))
    workspace.settle(ME, workspace.write_all(plans))


async def test_the_next_daemon_takes_back_what_this_one_did(daemon: Daemon) -> None:
    (daemon.project / "a").write_bytes(b"old\r\n\xff\n{}")
    (daemon.project / "a").chmod(0o750)
    (daemon.project / "gone").write_bytes(b"was here")
    first = daemon.open()
    change(first, a=b"1", new=b"x")
    change(first, a=b"2", gone=None)
    second = daemon.open()
    assert [one.as_json() for one in second.journal.steps()] == [
        one.as_json() for one in first.journal.steps()
    ]
    change(second, a=b"3")
    third = daemon.open()
    assert [one.number for one in third.journal.steps()] == [3, 2, 1]
    await third.undo(session_id="ses_1")
    assert (daemon.project / "a").read_bytes() == b"old\r\n\xff\n{}"
    assert (daemon.project / "a").stat().st_mode & 0o777 == 0o750
    assert (daemon.project / "gone").read_bytes() == b"was here"
    assert not (daemon.project / "new").exists()
    assert daemon.kept == []
    with pytest.raises(UndoNotFound):
        await daemon.open().undo()


async def test_a_file_that_changed_while_no_daemon_ran_is_not_touched(daemon: Daemon) -> None:
    change(daemon.open(), a=b"agent")
    (daemon.project / "a").write_bytes(b"somebody")
    with pytest.raises(UndoConflict):
        await daemon.open().undo()
    assert (daemon.project / "a").read_bytes() == b"somebody"


def test_old_contents_are_for_the_operator_only(daemon: Daemon) -> None:
    change(daemon.open(), a=b"x")
    assert daemon.folder.stat().st_mode & 0o777 == 0o700
    assert [one.stat().st_mode & 0o777 for one in daemon.folder.iterdir()] == [0o600]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: text + b"x",
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: b"{}\n",
        lambda text: b"[" * 100_000,
        lambda text: text.replace(b"./a", b"./../a"),
        lambda text: text.replace(b"./a", b"/etc/a"),
        lambda text: text.replace(b"./a", b".//a"),
        lambda text: text.replace(b'"kept":3', b'"kept":-3'),
        lambda text: text.replace(b'"created"', b'"made"'),
    ],
    ids=[
        "cut", "longer", "half", "empty", "other", "deep", "climbs", "absolute", "slashes",
        "negative", "renamed",
    ],
)  # fmt: skip
def test_a_step_that_is_not_whole_is_left_out_and_removed(
    daemon: Daemon, damage: Callable[[bytes], bytes]
) -> None:
    (daemon.project / "a").write_bytes(b"old")
    first = daemon.open()
    change(first, a=b"new")
    change(first, b=b"fine")
    (step, other) = sorted(daemon.folder.iterdir())
    whole = step.read_bytes()
    assert damage(whole) != whole
    step.write_bytes(damage(whole))
    (daemon.folder / "000000000009.new").write_bytes(b"half of a step")
    (daemon.folder / "notes.step").write_bytes(whole)
    assert [one.number for one in daemon.open().journal.steps()] == [2]
    assert daemon.kept == [other.name]


def test_the_newest_steps_within_the_limits_are_loaded(
    daemon: Daemon, clock: ManualClock, tmp_path: Path
) -> None:
    workspace = daemon.open()
    for number in range(5):
        change(workspace, a=b"%d" % number * 10)
    files = JournalFiles(daemon.folder, _now)

    def numbers(max_bytes: int, max_steps: int) -> list[int]:
        journal = UndoJournal(clock, max_bytes, max_steps, files=files, root=str(daemon.project))
        return [one.number for one in journal.steps()]

    assert numbers(1000, 4) == [5, 4, 3, 2]
    assert numbers(25, 10) == [5, 4]
    assert len(daemon.kept) == 2  # what is too much is removed, not kept for ever


def test_a_folder_that_cannot_be_written_costs_the_next_daemons_undo_only(
    daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "home").write_bytes(b"in the way")
    workspace = daemon.open()
    change(workspace, a=b"x")
    assert len(workspace.journal.steps()) == 1
    assert daemon.open().journal.steps() == ()
