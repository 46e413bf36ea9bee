"""`JournalFiles`: the steps of one project's undo journal on disk, so that undo outlives a daemon.

A file per step: one line of JSON, then the old contents one after the other. It appears whole, by
rename, or not at all. It is not waited for and not synced: a killed daemon loses the steps of its
last milliseconds at most, a power cut those that the system had not written yet.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from kaged.base.log import get_logger
from kaged.workspace.batch import Written
from kaged.workspace.path import ProjectPath
from kaged.workspace.undo_step import Author, UndoStep

MAX_HEAD_BYTES: Final = 4 * 1024 * 1024
_SUFFIX: Final = ".step"
_DRAFT: Final = ".new"

_log = get_logger(__name__)


class _JournaledFile(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    size: int
    sha256: str | None
    created: bool
    kept: int | None
    before_sha: str | None
    before_mode: int | None


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    author: Author
    ts_ms: int
    files: list[_JournaledFile]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Head).decode


class JournalFiles:
    """The folder of one project. `later` runs work in a thread, one after the other."""

    def __init__(self, folder: Path, later: Callable[[Callable[[], None]], object]) -> None:
        self._folder = folder
        self._later = later

    def load(self, root: str, max_bytes: int, max_steps: int) -> list[UndoStep]:
        """Return the newest steps, oldest of them first; what is beyond the limits is removed.

        A file that is not whole is left out and removed: undo never guesses.
        """
        try:
            names = sorted((one for one in os.listdir(self._folder)), reverse=True)  # noqa: PTH208 - names only
        except OSError:
            return []
        steps: list[UndoStep] = []
        left = max_bytes
        for name in names:
            step = None
            if name.endswith(_SUFFIX) and len(steps) < max_steps and left > 0:
                step = _read(self._folder / name, root, left)
            if step is None:
                self._remove(self._folder / name)
            else:
                left -= step.kept_bytes
                steps.append(step)
        return steps[::-1]

    def keep(self, step: UndoStep) -> None:
        """Write a step, soon."""
        self._later(lambda: self._write(step))

    def drop(self, number: int) -> None:
        """Remove a step, soon."""
        self._later(lambda: self._remove(self._place(number)))

    def _place(self, number: int) -> Path:
        return self._folder / f"{number:012d}{_SUFFIX}"

    def _write(self, step: UndoStep) -> None:
        place = self._place(step.number)
        draft = place.with_suffix(_DRAFT)
        contents = [one.before for one in step.files if one.before is not None]
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(_encode(_head(step)) + b"\n")
                file.writelines(contents)
            draft.rename(place)
        except OSError as error:
            # The change itself is made and on record; only taking it back after a restart is not.
            _log.warning("undo.not_kept", step=step.number, error=error.strerror or str(error))

    def _remove(self, place: Path) -> None:
        with contextlib.suppress(OSError):
            place.unlink()


def _head(step: UndoStep) -> _Head:
    return _Head(
        step.author,
        step.ts_ms,
        [
            _JournaledFile(
                one.path.relative,
                one.size,
                one.sha256,
                one.created,
                None if one.before is None else len(one.before),
                one.before_sha,
                one.before_mode,
            )
            for one in step.files
        ],
    )


def _read(place: Path, root: str, limit: int) -> UndoStep | None:
    try:
        number = int(place.stem)
        with place.open("rb") as file:
            head = _decode(file.readline(MAX_HEAD_BYTES))
            if sum(one.kept or 0 for one in head.files) > limit:
                return None
            files = tuple(_written(one, root, file.read(one.kept or 0)) for one in head.files)
            whole = not file.read(1)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        _log.warning("undo.step_unreadable", file=place.name, error=type(error).__name__)
        return None
    return UndoStep(number, head.author, head.ts_ms, files) if whole else None


def _written(one: _JournaledFile, root: str, content: bytes) -> Written:
    parts = one.path.removeprefix("./").split("/")
    if not one.path.startswith("./") or {"", ".", ".."} & set(parts) or "\0" in one.path:
        raise ValueError("it names no file of the project")
    if len(content) != (one.kept or 0):
        raise ValueError("it breaks off")
    resolved = f"{root.rstrip('/')}/{'/'.join(parts)}"
    path = ProjectPath(one.path, resolved, one.path)
    before = None if one.kept is None else content
    return Written(path, one.size, one.sha256, one.created, before, one.before_sha, one.before_mode)
