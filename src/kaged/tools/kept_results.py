"""`KeptResults`: results that were too long for a window, kept on disk for whoever made the call.

They lie in the daemon's own folder, by session, and below that by who made the call: the person,
the chat and the agent. A reader looks below its own facts only, so nobody else's result can be
named, known or guessed. They go with the session, and the oldest go when there are too many.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.ownership import ownership_of
from kaged.tools.context import ToolCallContext
from kaged.tools.definition import PathParam, PathReader, RequirementReader, ToolDefinition
from kaged.tools.errors import ToolError

SCHEME: Final = "result:/"
MAX_RESULT_BYTES: Final = 8 * 1024 * 1024
MAX_RESULTS: Final = 200
"""How many results of one session are kept."""

ULID_CHARS: Final = 26
MAX_SESSION_BYTES: Final = 64 * 1024 * 1024
MAX_TOTAL_BYTES: Final = 1024 * 1024 * 1024

_ID: Final = re.compile(r"res_[0-9A-Za-z]{16,40}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,119}")
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENDING: Final = ".txt"
_log = get_logger(__name__)


def is_handle(path: str) -> bool:
    """Return whether a path names a kept result."""
    return path.startswith(SCHEME)


def path_or_result(*, search: bool = False) -> PathReader:
    """Return the reader of the one path that a tool takes; a kept result is no path."""

    def paths(args: JsonObject) -> tuple[PathParam, ...]:
        path = str(args["path"])
        return () if is_handle(path) else (PathParam("path", path, search=search),)

    return paths


def requires_unless_result(definition: ToolDefinition) -> RequirementReader:
    """Return what such a tool needs of the cage: for a result of the caller's own nothing."""
    return lambda args: () if is_handle(str(args.get("path"))) else definition.requires


@dataclass(eq=False)
class KeptResults:
    """The kept results of all sessions, below one folder. Everything here blocks on the disk.

    `new_id` makes names that sort by time and cannot be guessed.
    """

    folder: Path
    new_id: Callable[[], str]
    max_total_bytes: int = MAX_TOTAL_BYTES

    def __post_init__(self) -> None:
        self._total: int | None = None

    def keep(self, context: ToolCallContext, text: str) -> str | None:
        """Keep a text and return its handle; None when the disk does not take it."""
        place = self._place(context)
        if place is None:
            return None
        # A search takes what holds a NUL for no text.
        data = text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace")
        data = data[:MAX_RESULT_BYTES]
        name = self.new_id()
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(place / f"{name}{_ENDING}", _NEW, 0o600), "wb") as file:  # noqa: PTH123 - of a descriptor, which Path cannot
                file.write(data)
            os.utime(place.parent)
            self._tidy(place.parent, len(data))
        except OSError as error:
            # What is shown of the result is shown all the same.
            _log.error("tools.result_not_kept", error=repr(error))
            return None
        return f"{SCHEME}{name}"

    def open(self, context: ToolCallContext, handle: str) -> int:
        """Open a kept result for reading; returns a descriptor.

        Raises:
            ToolError: `result_not_found`; there is none of that name for this caller.
        """
        return os.open(self.path(context, handle), _FILE)

    def path(self, context: ToolCallContext, handle: str) -> Path:
        """Return where a kept result lies. Raises ToolError like `open`."""
        name, place = handle.removeprefix(SCHEME), self._place(context)
        if place is None or not is_handle(handle) or _ID.fullmatch(name) is None:
            raise _not_found(handle)
        found = place / f"{name}{_ENDING}"
        if not found.is_file() or found.is_symlink():
            raise _not_found(handle)
        return found

    def share(self, session_id: str, fork_id: str, at: str) -> None:
        """Let a fork read what its parent had kept when it made the entry `at`.

        Its window speaks of these handles. Of what came later it has neither words nor labels.
        """
        source, target = self._session(session_id), self._session(fork_id)
        if source is None or target is None or not source.is_dir():
            return
        try:
            shutil.copytree(
                source,
                target,
                copy_function=os.link,
                ignore=lambda _, names: [one for one in names if _made_after(one, at)],
                dirs_exist_ok=True,
            )
        except (OSError, shutil.Error) as error:
            _log.error("tools.results_not_shared", error=repr(error))

    def forget(self, session_id: str) -> None:
        """Take away what was kept of a session."""
        place = self._session(session_id)
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
            self._total = None

    # -- own -----------------------------------------------------------------------------------

    def _session(self, session_id: str) -> Path | None:
        return self.folder / session_id if _PLAIN.fullmatch(session_id) else None

    def _place(self, context: ToolCallContext) -> Path | None:
        session = self._session(context.session_id)
        return None if session is None else session / _scope(context)

    def _tidy(self, session: Path, added: int) -> None:
        """Take away the oldest of a session, and of all sessions, beyond the limits."""
        kept = sorted(session.glob(f"*/*{_ENDING}"), key=lambda one: one.name)
        sizes = [one.stat().st_size for one in kept]
        size = sum(sizes)
        while kept and (len(kept) > MAX_RESULTS or size > MAX_SESSION_BYTES):
            kept.pop(0).unlink(missing_ok=True)
            size -= sizes.pop(0)
        self._total = _size_below(self.folder) if self._total is None else self._total + added
        if self._total > self.max_total_bytes:
            self._total = self._thinned(session)

    def _thinned(self, spared: Path) -> int:
        """Take away the sessions that kept nothing for longest, until half of the room is free."""
        sessions = sorted(
            (one for one in self.folder.iterdir() if one != spared),
            key=lambda one: one.stat().st_mtime_ns,
        )
        total = _size_below(self.folder)
        for one in sessions:
            if total <= self.max_total_bytes // 2:
                break
            total -= _size_below(one)
            shutil.rmtree(one, ignore_errors=True)
        return total


def _made_after(name: str, entry_id: str) -> bool:
    """Return whether a kept result is younger than an entry; both have their time in their ids."""
    found = name.removesuffix(_ENDING)
    return _ID.fullmatch(found) is not None and found[-ULID_CHARS:] > entry_id[-ULID_CHARS:]


def _scope(context: ToolCallContext) -> str:
    """Return the folder of one agent that works for one person in one chat, in one session."""
    identity = context.identity
    owner, chat = "", ""
    if identity is not None:
        whose = ownership_of(identity)
        owner = "" if whose.owner is None else f"person {whose.owner}"
        chat = whose.chat_id or ""
    text = json.dumps([owner, chat, context.caller])
    return hashlib.sha256(text.encode()).hexdigest()


def _size_below(folder: Path) -> int:
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += (Path(place) / name).lstat().st_size
    return size


def _not_found(handle: str) -> ToolError:
    return ToolError(
        f"there is no kept result {handle[:80]!r}",
        code="result_not_found",
        fix="use the handle as the result had it; results go after a while, then call the tool "
        "again",
    )
