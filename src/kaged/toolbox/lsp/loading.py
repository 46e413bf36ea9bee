"""`Loading`: whether a server has read the project yet.

Right after its start a server may answer from the few files it knows. A rename on such an answer
would break the rest of the code, so project-wide questions wait for the signs of each kind of
server that it is done.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from kaged.base import JsonValue

_PYRIGHT: Final = re.compile(r"(?:based)?pyright", re.IGNORECASE)
_PYRIGHT_DONE: Final = re.compile(r"found \d+ source file|no source files found", re.IGNORECASE)
_CLANGD: Final = "clangd"
CLANGD_GRACE_S: Final = 2.0
"""clangd reads a project only after its first file, and nothing if it finds no list of files."""
_NO_INDEX: Final = re.compile(r"--?background-index=(?:0|false)", re.IGNORECASE)
_GOPLS: Final = "gopls"
_CHECKING: Final = "diagnosing "
"""How gopls calls a look for problems, when it was asked to tell of its work."""
_LASTING_ERROR: Final = "Error loading workspace"
"""A progress of gopls that is none: it stands until somebody mends the project."""

MAX_TOKENS: Final = 1000
_FIRST_QUESTIONS: Final = 6


class Loading:
    """Follows a server's signs of work: progress tokens, its log, its status messages."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._checks: set[str] = set()
        self.may_tell_of_checks = False
        self.tells_of_checks = False
        self._waits_for_log = False
        self._quiescent = True
        self._ended = False
        self._begun = False
        self._waits_for_begin = False
        self._begins_surely = False
        self._changed = asyncio.Event()
        self.was_ready = False
        self._asked = 0

    @property
    def settled_long_ago(self) -> bool:
        """Whether enough was asked since the start that a short answer is no sign of loading."""
        self._asked += 1
        return self._asked > _FIRST_QUESTIONS

    def server_named(self, name: str, command: Sequence[str] = ()) -> None:
        """Called with the server's name, which says what signs it gives, and how it was started.

        pyright does not always say its name; how it was started does.
        """
        named = any(map(_PYRIGHT.search, (name, *command)))
        self._waits_for_log = named and not self._seen_log
        self._waits_for_begin = name.lower() == _CLANGD and not any(map(_NO_INDEX.match, command))
        self.may_tell_of_checks = name.lower() == _GOPLS
        self._tell()

    @property
    def waits_for_begin(self) -> bool:
        """Whether the server may yet begin to read the project, long after its start."""
        return self._waits_for_begin and not self._begun

    def will_begin(self) -> None:
        """Called when there is a list of files, so that the server will surely begin."""
        self._begins_surely = True

    @property
    def busy(self) -> bool:
        """Whether the server says, or is known to mean by its silence, that it is not done."""
        return not self._ended and (bool(self._open) or self._waits_for_log or not self._quiescent)

    async def until_ready(self, limit_s: float) -> bool:
        """Wait until the server is done loading; False when the time is up before."""
        try:
            async with asyncio.timeout(limit_s):
                if self._waits_for_begin:
                    await self._until_begun()
                while self.busy:
                    await self._news()
        except TimeoutError:
            return False
        self.was_ready = True
        return True

    async def until_checked(self, limit_s: float) -> bool:
        """Wait until the server has looked for problems in all that it has heard of.

        Only for one that tells of these looks (`tells_of_checks`); False when the time is up.
        """
        try:
            async with asyncio.timeout(limit_s):
                while (self._checks or self.busy) and not self._ended:
                    await self._news()
        except TimeoutError:
            return False
        return not self._ended

    async def _until_begun(self) -> None:
        """Wait for a server that starts to read late to say so; once in its life."""
        surely, self._waits_for_begin = self._begins_surely, False
        try:
            async with asyncio.timeout(None if surely else CLANGD_GRACE_S):
                while not self._begun and not self._ended:
                    await self._news()
        except TimeoutError:
            pass  # there is nothing that it would read

    async def _news(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # -- signs ---------------------------------------------------------------------------------

    _seen_log = False

    def created(self, params: JsonValue) -> None:
        """Called when a progress will begin."""
        self._begin(_token(params))

    def progressed(self, params: JsonValue) -> None:
        """Called when a progress begins, goes on or ends."""
        value = params.get("value") if isinstance(params, dict) else None
        kind = value.get("kind") if isinstance(value, dict) else None
        token = _token(params)
        if kind == "begin" and isinstance(value, dict):
            self._begin_titled(token, value.get("title"))
        elif kind == "end" and token is not None:
            self._open.discard(token)
            self._checks.discard(token)
            self._tell()

    def logged(self, text: str) -> None:
        """Called for each line of the server's log."""
        if _PYRIGHT_DONE.search(text):
            self._seen_log = True
            self._waits_for_log = False
            self._tell()

    def status(self, params: JsonValue) -> None:
        """Called for rust-analyzer's own kind of status notification."""
        quiescent = params.get("quiescent") if isinstance(params, dict) else None
        if isinstance(quiescent, bool):
            self._quiescent = quiescent
            self._tell()

    def ended(self) -> None:
        """Called when the server is gone: waiters are released."""
        self._ended = True
        self._tell()

    def _begin_titled(self, token: str | None, title: JsonValue) -> None:
        checks = isinstance(title, str) and title.startswith(_CHECKING)
        if token is None or not (checks or title == _LASTING_ERROR):
            self._begin(token)
            return
        self._open.discard(token)
        self.tells_of_checks = self.tells_of_checks or checks
        if checks and len(self._checks) < MAX_TOKENS:
            self._checks.add(token)
        self._tell()

    def _begin(self, token: str | None) -> None:
        if token is not None and len(self._open) < MAX_TOKENS:
            self._open.add(token)
            self._begun = True
            self._tell()

    def _tell(self) -> None:
        self._changed.set()


def _token(params: JsonValue) -> str | None:
    token = params.get("token") if isinstance(params, dict) else None
    return f"{type(token).__name__}:{token}" if isinstance(token, str | int) else None
