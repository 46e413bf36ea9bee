"""`ReadLog`: which agent has seen which content of which file. Kept in memory, per session."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final, TypeAlias

from kaged.workspace.errors import FileChangedSinceRead, FileNotRead
from kaged.workspace.path import ProjectPath

MAX_RECORDS: Final = 100_000
"""Beyond this the oldest records of the agent idle longest go; it has to read those files again."""

_Reader: TypeAlias = tuple[str, str]


class ReadLog:
    """The reads of one project, by session and caller; one agent's reads count for no other."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._max_records = max_records
        self._count = 0
        self._readers: OrderedDict[_Reader, OrderedDict[str, str]] = OrderedDict()

    def note(self, session_id: str, caller: str, resolved: str, sha256: str) -> None:
        """Remember that this agent knows this content of the file, by reading or writing it."""
        reader = (session_id, caller)
        seen = self._readers.get(reader)
        if seen is None:
            seen = self._readers[reader] = OrderedDict()
        else:
            self._readers.move_to_end(reader)
        if resolved not in seen:
            self._count += 1
        seen[resolved] = sha256
        seen.move_to_end(resolved)
        while self._count > self._max_records:
            self._drop_oldest()

    def sha_of(self, session_id: str, caller: str, resolved: str) -> str | None:
        """Return the hash of what this agent knows the file to be, None if it never saw it."""
        seen = self._readers.get((session_id, caller))
        return None if seen is None else seen.get(resolved)

    def newest(self, session_id: str, caller: str, limit: int) -> list[tuple[str, str]]:
        """Return the files that this agent knows and their hashes, last read or written first."""
        seen = self._readers.get((session_id, caller))
        return [] if seen is None else list(islice(reversed(seen.items()), limit))

    def forget(self, session_id: str, caller: str, resolved: str) -> None:
        """Drop one file of an agent: it is gone, and the agent knows."""
        seen = self._readers.get((session_id, caller))
        if seen is not None and seen.pop(resolved, None) is not None:
            self._count -= 1
            if not seen:
                del self._readers[session_id, caller]

    def require(self, session_id: str, caller: str, path: ProjectPath, sha256: str) -> None:
        """Raise unless the agent knows the file as it is now.

        Raises:
            FileNotRead: it never saw the file in this session.
            FileChangedSinceRead: it saw another content.
        """
        known = self.sha_of(session_id, caller, path.resolved)
        if known is None:
            raise FileNotRead(path.relative)
        if known != sha256:
            raise FileChangedSinceRead(path.relative)

    def forget_session(self, session_id: str) -> None:
        """Drop everything that was read in a session that has ended."""
        for reader in [one for one in self._readers if one[0] == session_id]:
            self._count -= len(self._readers.pop(reader))

    def __len__(self) -> int:
        return self._count

    def _drop_oldest(self) -> None:
        reader, seen = next(iter(self._readers.items()))
        seen.popitem(last=False)
        self._count -= 1
        if not seen:
            del self._readers[reader]
