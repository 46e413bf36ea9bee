"""`Workspace`: one project's files, with everything that keeps agents from stepping on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from kaged.base import Clock, JsonValue, SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.protected_paths import ProtectedRules
from kaged.workspace.batch import PlannedWrite, Written, write_all
from kaged.workspace.changed_reads import ChangedReads
from kaged.workspace.changes import ChangeFeed, ChangeKind, FileChange
from kaged.workspace.content import MAX_TEXT_BYTES, FileContent, read_content
from kaged.workspace.errors import (
    FileChangedSinceRead,
    FileExists,
    FileMissing,
    PathSealed,
    UndoConflict,
)
from kaged.workspace.guard import PathGuard
from kaged.workspace.journal import UndoJournal, plan_undo
from kaged.workspace.journal_files import JournalFiles
from kaged.workspace.locks import FileLocks
from kaged.workspace.path import ProjectPath
from kaged.workspace.protected_writes import ProtectedWrites
from kaged.workspace.readlog import ReadLog
from kaged.workspace.threads import FileThreads
from kaged.workspace.undo_step import Author, UndoStep


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo did."""

    steps: tuple[UndoStep, ...]
    files: tuple[Written, ...]


OperatorHad: TypeAlias = Callable[[str, str, bytes], bool]
"""Tells of a root, a protected path below it and a content whether the operator had it there."""


class Workspace:
    """The files of one loaded project.

    `locks` and `threads` are the daemon's, shared by all projects; the rest belongs to the project.
    Methods that are not coroutines and touch contents block on the disk: run them in a thread.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        locks: FileLocks | None = None,
        clock: Clock | None = None,
        threads: FileThreads | None = None,
        sealed: str | None = None,
        undo: JournalFiles | None = None,
        rules: ProtectedRules | None = None,
        on_reviewed: Callable[[Author, ProjectPath, str], None] | None = None,
    ) -> None:
        """Open a project. `sealed` names a folder in its root that nothing is written to.

        `undo` is where the steps are that can be taken back, and where new ones are kept. `rules`
        say what the operator took out of the protected paths; `on_reviewed` hears of each file
        that was written and that a person should look at, and why.

        Raises:
            ProjectRootInvalid: there is no such directory.
        """
        self.clock: Clock = SystemClock() if clock is None else clock
        self.guard = PathGuard(root)
        self.root = self.guard.root
        self.locks = FileLocks(self.clock) if locks is None else locks
        self.threads = FileThreads() if threads is None else threads
        self.reads = ReadLog()
        self.changed_reads = ChangedReads(self.guard)
        self.changes = ChangeFeed()
        self.journal = UndoJournal(self.clock, files=undo, root=self.root)
        self.resolve: Callable[[str], ProjectPath] = self.guard.resolve
        """Turn an agent's text into a path inside the project; see `PathGuard.resolve`."""
        self._sealed = None if sealed is None else f"{self.root.rstrip('/')}/{sealed}".casefold()
        self.protected = ProtectedWrites(self.root, rules or ProtectedRules())
        self._on_reviewed = on_reviewed

    def require_open(self, path: ProjectPath) -> None:
        """Refuse to change the sealed folder, and what a program of the host would run.

        Raises:
            PathSealed: it lies in the sealed folder, whatever case it is spelled in.
            PathProtected: it is a protected path.
        """
        self._require_unsealed(path)
        self.protected.require(path)

    def _require_unsealed(self, path: ProjectPath) -> None:
        sealed, asked = self._sealed, path.resolved.casefold()
        if sealed is not None and (asked == sealed or asked.startswith(f"{sealed}/")):
            raise PathSealed(path.relative)

    def relative_of(self, resolved: str) -> str:
        """Return the `./` form of a resolved path; raises PathRefused for one outside."""
        return self.guard.relative_of(resolved)

    def open_read(self, path: ProjectPath) -> int:
        """Open a file or directory for reading, following no link; the caller closes it.

        Raises:
            FileMissing, PathRefused, FileUnreadable, WrongKind: see `PathGuard.open_read`.
        """
        return self.guard.open_read(path)

    def read_bytes(self, path: ProjectPath, limit: int = MAX_TEXT_BYTES) -> FileContent:
        """Read a regular file whole.

        Raises:
            FileTooLarge: it has more than `limit` bytes.
            FileMissing, PathRefused, FileUnreadable, WrongKind: see `PathGuard.open_read`.
        """
        return read_content(self.guard, path, limit)

    def write_bytes(
        self,
        path: ProjectPath,
        data: bytes,
        *,
        create_only: bool = False,
        expect_sha: str | None = None,
    ) -> Written:
        """Put a content in place of a file in one step, keeping mode and owner; see `write_all`."""
        return self.write_all([PlannedWrite(path, data, expect_sha, create_only)])[0]

    def write_all(self, plans: Iterable[PlannedWrite]) -> tuple[Written, ...]:
        """Change several files, all or none; see `kaged.workspace.batch.write_all`.

        The caller holds the locks of all of them. Raises PathSealed and PathProtected besides.
        """
        return write_all(self.guard, self._open(plans))

    def _open(
        self, plans: Iterable[PlannedWrite], operator_had: OperatorHad | None = None
    ) -> Iterable[PlannedWrite]:
        for plan in plans:
            self._require_unsealed(plan.path)
            below = plan.path.resolved.removeprefix(f"{self.root.rstrip('/')}/")
            if (
                operator_had is None
                or plan.data is None
                or not operator_had(self.root, below, plan.data)
            ):
                self.protected.require_content(plan.path, plan.data)
            yield (
                replace(plan, in_place=True) if self.protected.keeps_its_place(plan.path) else plan
            )

    def settle(
        self, author: Author, written: Sequence[Written], contents: Sequence[bytes | None] = ()
    ) -> None:
        """Record what a tool wrote: its agent knows the contents, undo and listeners learn of them.

        Call it on the event loop, while the locks are still held. `contents` are the new contents
        in the order of `written`, where they are at hand.
        """
        for index, one in enumerate(written):
            if one.sha256 is not None:
                self.reads.note(author.session_id, author.caller, one.path.resolved, one.sha256)
            else:
                self.reads.forget(author.session_id, author.caller, one.path.resolved)
            self._announce(one, contents[index] if index < len(contents) else None)
            if self._on_reviewed is not None:
                entry = self.protected.reviewed(one.path)
                if entry is not None:
                    self._on_reviewed(author, one.path, entry.why)
        self.journal.record(author, written)

    async def undo(
        self,
        *,
        session_id: str | None = None,
        run_id: str | None = None,
        count: int | None = None,
        sessions: Collection[str] | None = None,
        operator_had: OperatorHad | None = None,
    ) -> Undone:
        """Take back the last steps of a session or run: all of them, or the last `count`.

        With `sessions` nothing but what was done in these is taken back. To a protected path
        nothing comes back but what the operator had there.

        Either every file is as it was before the first of these steps, or nothing has changed.
        Agents that knew the undone contents have to read the files again.

        Raises:
            UndoNotFound: there is nothing to undo.
            UndoConflict: a file was changed since by somebody else.
            FileBusy, FileWriteFailed: as for every change.
        """
        found = self.journal.steps(session_id=session_id, run_id=run_id, sessions=sessions)
        steps = found[:count]
        plans = plan_undo(steps)
        async with self.locks.mutating([plan.path for plan in plans]):
            return await self.threads.finish(
                lambda: self._write_back(plans, operator_had),
                lambda written: self._undone(steps, written),
            )

    def _write_back(
        self, plans: list[PlannedWrite], operator_had: OperatorHad | None
    ) -> tuple[Written, ...]:
        changed: list[JsonValue] = [
            {"path": plan.path.relative, "reason": "changed since"}
            for plan in plans
            if not self._is_as_left(plan)
        ]
        if changed:
            raise UndoConflict(
                "files were changed since; nothing was undone",
                fix="undo the later changes first, or put the files back by hand",
                files=changed,
            )
        try:
            return write_all(self.guard, self._open(plans, operator_had))
        except (FileChangedSinceRead, FileExists, FileMissing) as error:
            raise UndoConflict(
                "a file was changed just now; nothing was undone", fix="try again"
            ) from error

    def _is_as_left(self, plan: PlannedWrite) -> bool:
        try:
            return self.read_bytes(plan.path).sha256 == plan.expect_sha
        except FileMissing:
            return plan.create_only

    def _undone(self, steps: tuple[UndoStep, ...], written: tuple[Written, ...]) -> Undone:
        self.journal.forget(steps)
        for one in written:
            self._announce(one, None)
        return Undone(steps, written)

    def _announce(self, one: Written, content: bytes | None) -> None:
        if one.sha256 is None:
            kind = ChangeKind.DELETED
        else:
            kind = ChangeKind.CREATED if one.created else ChangeKind.CHANGED
        self.changes.publish(FileChange(kind, one.path, one.sha256, content))
