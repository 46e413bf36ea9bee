"""`write_all`: change several files, all or none of them. `PlannedWrite`, `Written`.

First every new content is written beside its target (a full disk shows here, before anything has
changed), then the names are swapped one after the other; if one swap fails, all earlier ones are
swapped back. What a kill in the middle leaves is complete files, old or new, never half ones.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.workspace.content import (
    MAX_TEXT_BYTES,
    FileContent,
    FileIdentity,
    read_content,
    sha256_of,
)
from kaged.workspace.directory_handles import DirectoryHandles, name_of, refuse_place
from kaged.workspace.errors import (
    FileBusy,
    FileChangedSinceRead,
    FileExists,
    FileMissing,
    FileWriteFailed,
    RestoreFailed,
    WrongKind,
)
from kaged.workspace.guard import PathGuard, kind_of
from kaged.workspace.path import ProjectPath
from kaged.workspace.staging import Displaced, Locked, Staged, discard, put, stage, take_back
from kaged.workspace.syscalls import sync_filesystem

KEPT_BEFORE_BYTES: Final = 16 * 1024 * 1024
"""How much old content one change hands on for undo; beyond that it hands on none of it."""

FLUSHED_ONE_BY_ONE: Final = 32
"""So many files are flushed to the disk each for itself; the rest with their file system."""

_WRITE_BITS: Final = 0o222


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """What one file is to become. `data` None removes it.

    With `expect_sha` the file must exist with that very content; with `create_only` nothing may
    be there. With neither, whatever regular file is there is replaced. `mode` sets the permission
    bits instead of keeping those of the old file. With `in_place` the file that is there stays and
    gets the new content, under the lock that git takes.
    """

    path: ProjectPath
    data: bytes | None
    expect_sha: str | None = None
    create_only: bool = False
    mode: int | None = None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """What became of one file.

    `sha256` None means that it was removed. `before` is the old content where it was at hand and
    small enough to be kept for undo; `before_sha` None means that there was no file.
    """

    path: ProjectPath
    size: int
    sha256: str | None
    created: bool
    before: bytes | None = None
    before_sha: str | None = None
    before_mode: int | None = None


@dataclass(slots=True)
class _BatchItem:
    path: ProjectPath  # not the plan: its content need not stay in memory
    staged: Staged
    written: Written


def write_all(guard: PathGuard, plans: Iterable[PlannedWrite]) -> tuple[Written, ...]:
    """Change all files of `plans`, or none. Blocks on the disk; plans are taken one at a time.

    `plans` may be a generator: only one content is in memory at a time, besides what is kept for
    undo. Missing parent directories are made, and taken away again if the change fails.

    Raises:
        FileMissing, FileExists, FileChangedSinceRead: a file is not as the plan expects.
        WrongKind, PathRefused: it is no regular file, or a link was swapped in.
        FileTooLarge: the old content is too large to be compared.
        FileWriteFailed: the disk is full, permission is missing and the like.
        RestoreFailed: all of that, and then not everything could be put back.
    """
    places = DirectoryHandles(guard.root)
    items: list[_BatchItem] = []
    kept = 0
    try:
        for plan in plans:
            item = _prepare(guard, places, plan, flush=len(items) < FLUSHED_ONE_BY_ONE)
            items.append(item)
            kept += len(item.written.before or b"")
            if kept > KEPT_BEFORE_BYTES:
                _drop_before(items)
        if len(items) > FLUSHED_ONE_BY_ONE:
            sync_filesystem(guard.root)
        for item in items:
            _swap(places, item)
    except BaseException as error:
        _restore(places, items, error)
        places.unmake()
        raise
    else:
        _tidy(places, items)
    finally:
        places.close()
    return tuple(item.written for item in items)


def _prepare(
    guard: PathGuard, places: DirectoryHandles, plan: PlannedWrite, *, flush: bool
) -> _BatchItem:
    path = plan.path
    if path.resolved == guard.root:
        raise WrongKind(path.relative, "is a directory", fix="name a file")
    old = None if plan.expect_sha is None else read_content(guard, path, MAX_TEXT_BYTES)
    if old is not None and old.sha256 != plan.expect_sha:
        raise FileChangedSinceRead(path.relative)
    make = plan.data is not None and plan.expect_sha is None
    try:
        with places.parent_of(path, make=make) as directory:
            info = _present(directory, plan)
            name = name_of(path)
            temp = None
            if plan.data is not None:
                temp = stage(directory, name, plan.data, info, mode=plan.mode, flush=flush)
            expected = _expected(old, info)
            staged = Staged(name, temp, expected, exact=old is not None, in_place=plan.in_place)
    except OSError as error:
        refuse_place(path, error)
    return _BatchItem(path, staged, _written(plan, old, info))


def _present(directory: int, plan: PlannedWrite) -> os.stat_result | None:
    relative = plan.path.relative
    try:
        info = os.stat(name_of(plan.path), dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if plan.data is None or plan.expect_sha is not None:
            raise FileMissing(relative) from None
        return None
    if plan.create_only:
        raise FileExists(relative)
    if not stat.S_ISREG(info.st_mode):
        raise WrongKind(relative, kind_of(info.st_mode), fix="name a file")
    if not info.st_mode & _WRITE_BITS:
        # Replacing needs no right to the file itself; whoever took the bits away meant it.
        raise FileWriteFailed(relative, "it is read-only")
    return info


def _expected(old: FileContent | None, info: os.stat_result | None) -> FileIdentity | None:
    if old is not None:
        return old.identity
    return None if info is None else FileIdentity.of(info)


def _written(plan: PlannedWrite, old: FileContent | None, info: os.stat_result | None) -> Written:
    data = plan.data
    return Written(
        plan.path,
        size=0 if data is None else len(data),
        sha256=None if data is None else sha256_of(data),
        created=info is None,
        before=None if old is None else old.data,
        before_sha=None if old is None else old.sha256,
        before_mode=None if info is None else stat.S_IMODE(info.st_mode),
    )


def _swap(places: DirectoryHandles, item: _BatchItem) -> None:
    path = item.path
    try:
        with places.parent_of(path) as directory:
            put(directory, item.staged)
    except Displaced as error:
        if item.staged.expected is None:
            raise FileExists(path.relative) from error
        raise FileChangedSinceRead(path.relative) from error
    except Locked as error:
        raise FileBusy(path.relative) from error
    except OSError as error:
        refuse_place(path, error)


def _restore(places: DirectoryHandles, items: list[_BatchItem], cause: BaseException) -> None:
    left: list[JsonValue] = []
    for item in reversed(items):
        staged = item.staged
        try:
            with places.parent_of(item.path) as directory:
                if staged.done:
                    take_back(directory, staged)
                if staged.temp is not None:
                    discard(directory, staged.temp)
        # Boundary: one file that cannot be put back must not keep the others from it.
        except Exception:  # noqa: BLE001 - reported below, with the file's name
            if staged.done:
                left.append({"path": item.path.relative, "kept_as": staged.temp})
    if left:
        raise RestoreFailed(
            "a change of several files failed, and not all of them could be put back",
            fix="put the files listed in detail back by hand",
            left=left,
        ) from cause


def _tidy(places: DirectoryHandles, items: list[_BatchItem]) -> None:
    for item in items:
        if item.staged.temp is None:
            continue
        try:
            with places.parent_of(item.path) as directory:
                discard(directory, item.staged.temp)
        # Boundary: the change has happened; a leftover name is no reason to call it failed.
        except Exception:  # noqa: BLE001, S112 - the directory is gone or was swapped: not ours
            continue


def _drop_before(items: list[_BatchItem]) -> None:
    for item in items:
        if item.written.before is not None:
            item.written = replace(item.written, before=None)
