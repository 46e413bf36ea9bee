"""`UndoJournal`: what tools did to files, with the old contents, so that it can be taken back.

Bounded; the oldest steps go first. A step is one tool call, which may have changed several files.
With `JournalFiles` the steps are there again after a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kaged.base import Clock, JsonObject, JsonValue
from kaged.workspace.batch import PlannedWrite, Written
from kaged.workspace.errors import UndoConflict, UndoNotFound
from kaged.workspace.journal_files import JournalFiles
from kaged.workspace.path import ProjectPath
from kaged.workspace.undo_step import Author, UndoStep, was_kept

MAX_JOURNAL_BYTES: Final = 64 * 1024 * 1024
MAX_JOURNAL_STEPS: Final = 2000


class UndoJournal:
    """The steps of one project, newest last."""

    def __init__(
        self,
        clock: Clock,
        max_bytes: int = MAX_JOURNAL_BYTES,
        max_steps: int = MAX_JOURNAL_STEPS,
        *,
        files: JournalFiles | None = None,
        root: str = "",
    ) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_steps = max_steps
        self._files = files
        before = [] if files is None else files.load(root, max_bytes, max_steps)
        self._steps = {step.number: step for step in before}
        self._bytes = sum(step.kept_bytes for step in before)
        self._last = before[-1].number if before else 0

    def record(self, author: Author, written: Sequence[Written]) -> UndoStep:
        """Remember one tool call; the oldest steps are dropped when there are too many."""
        self._last += 1
        step = UndoStep(self._last, author, self._clock.now_ms(), tuple(written))
        self._steps[step.number] = step
        self._bytes += step.kept_bytes
        if self._files is not None:
            self._files.keep(step)
        while self._bytes > self._max_bytes or len(self._steps) > self._max_steps:
            self._forget(next(iter(self._steps)))
        return step

    def steps(
        self,
        *,
        session_id: str | None = None,
        run_id: str | None = None,
        sessions: Collection[str] | None = None,
    ) -> tuple[UndoStep, ...]:
        """Return the steps, newest first, of everybody or of one session or run.

        With `sessions` only what was done in these.
        """
        return tuple(
            step
            for step in reversed(self._steps.values())
            if session_id in {None, step.author.session_id}
            and run_id in {None, step.author.run_id}
            and (sessions is None or step.author.session_id in sessions)
        )

    def forget(self, steps: Iterable[UndoStep]) -> None:
        """Drop steps that were undone."""
        for step in steps:
            if step.number in self._steps:
                self._forget(step.number)

    def _forget(self, number: int) -> None:
        self._bytes -= self._steps.pop(number).kept_bytes
        if self._files is not None:
            self._files.drop(number)


def plan_undo(steps: Sequence[UndoStep]) -> list[PlannedWrite]:
    """Return what has to be written to take back these steps, given newest first.

    Raises:
        UndoNotFound: there are none.
        UndoConflict: somebody else changed a file between two of them, or its old content was not
            kept. Whether files were changed since is found out when the plan is carried out.
    """
    if not steps:
        raise UndoNotFound("there is nothing to undo", fix="list the steps first")
    plans: dict[str, PlannedWrite] = {}
    reached: dict[str, str | None] = {}
    problems: list[JsonValue] = []
    for step in steps:
        for one in step.files:
            key = one.path.resolved
            if key in reached and reached[key] != one.sha256:
                problems.append(_problem(one.path, "changed in between by another program"))
            elif not was_kept(one):
                problems.append(_problem(one.path, "its old content was not kept"))
            now = plans[key].expect_sha if key in plans else one.sha256
            plans[key] = PlannedWrite(
                one.path, one.before, now, create_only=now is None, mode=one.before_mode
            )
            reached[key] = one.before_sha
    if problems:
        raise UndoConflict(
            "this cannot be undone as a whole; nothing was changed",
            fix="undo fewer steps, or put the files back by hand",
            files=problems,
        )
    # A file that was made and removed again within these steps needs nothing.
    return [plan for plan in plans.values() if not (plan.data is None and plan.create_only)]


def _problem(path: ProjectPath, reason: str) -> JsonObject:
    return {"path": path.relative, "reason": reason}
