"""`RebaseTodos`: the commands that git runs when somebody goes on with a rebase.

A rebase that has stopped is a list of steps in a file, and an `exec` among them is a command. Who
types `git rebase --continue` runs it, whoever wrote the file. So the commands of guests are taken
out; the other steps stay, and the rebase goes on with them.
"""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable, Iterable
from typing import Final

from kaged.cage.protected.files import Content, put_content, read_content
from kaged.cage.protected.findings import Findings, Sweep, TakenBack, could_not
from kaged.cage.protected.tree import Parts, ProtectedTree, shown_path
from kaged.kernel.protected_paths import REBASE_DIR, REBASE_TODO

REBASE_PATIENCE_NS: Final = 300_000_000_000
"""So long the steps of a rebase have to stand still before they count as left behind."""
MAX_SHOWN: Final = 20

_EXEC: Final = re.compile(rb"[ \t]*(?:exec|x)(?=[ \t\r\0]|\Z)")
_WHY: Final = "git runs it when the rebase goes on"


def commands_in(data: bytes) -> tuple[bytes, ...]:
    """Return the steps of a rebase that run a command, as git reads them."""
    return tuple(line for line in data.split(b"\n") if _EXEC.match(line))


def without_commands(data: bytes, keep: Iterable[bytes]) -> bytes:
    """Return the steps without their commands, but for those to keep."""
    kept = frozenset(keep)
    lines = data.split(b"\n")
    return b"\n".join(line for line in lines if line in kept or not _EXEC.match(line))


class RebaseTodos:
    """The rebases under way in the repositories of a tree. Blocks on the disk."""

    def __init__(self, tree: ProtectedTree, move_away: Callable[[Parts, int], str | None]) -> None:
        self._tree = tree
        self._move_away = move_away
        self.contents: dict[Parts, Content] = {}
        """The operator's, from before the guests began."""

    def rebase(self, dirs: Iterable[Parts]) -> None:
        """Take what lies there now for the operator's."""
        self.contents.clear()
        for parts in self._todos(dirs):
            now = self._read(parts)
            if now is not None and now.data is not None:
                self.contents[parts] = now

    def sweep(self, dirs: Iterable[Parts], findings: Findings, how: Sweep) -> None:
        """Take out commands that a guest put in, once its git has left them behind."""
        if how.quick:
            return
        for parts in self._todos(dirs):
            now = None if self._tree.rules.allows(parts) else self._read(parts)
            if now is None:
                continue
            old = self.contents.get(parts)
            mine = commands_in(old.data or b"") if old is not None else ()
            new = [one for one in commands_in(now.data or b"") if one not in mine]
            if now.data is not None and not new:
                continue
            if not how.final and not self._stands_still(parts):
                continue
            if how.by_operator():
                self.contents[parts] = now
                findings.adopted += 1
                continue
            findings.taken_back.append(self._take_out(parts, now, mine, new))

    def _todos(self, dirs: Iterable[Parts]) -> list[Parts]:
        return [(*one, REBASE_DIR, REBASE_TODO) for one in sorted(dirs)]

    def _read(self, parts: Parts) -> Content | None:
        """Return what git would read there; a link that leads there has no content of its own."""
        folder = self._tree.signature(parts[:-1])
        if folder is None:
            return None
        if not stat.S_ISDIR(folder[0]):
            return Content(None, folder[0])
        try:
            return read_content(self._tree.root, parts)
        except OSError:
            return None

    def _stands_still(self, parts: Parts) -> bool:
        signature = self._tree.signature(parts)
        return signature is None or signature[-1] < time.time_ns() - REBASE_PATIENCE_NS

    def _take_out(
        self, parts: Parts, now: Content, mine: Iterable[bytes], new: list[bytes]
    ) -> TakenBack:
        root, path = self._tree.root, shown_path(parts)
        try:
            if now.data is not None:
                put_content(root, parts, without_commands(now.data, mine), now.mode)
                shown = (one.decode("utf-8", "replace").strip()[:200] for one in new[:MAX_SHOWN])
                return TakenBack(path, f"commands were put in: {'; '.join(shown)}; {_WHY}")
            folder = self._tree.signature(parts[:-1])
            odd = parts if folder is not None and stat.S_ISDIR(folder[0]) else parts[:-1]
            moved = self._move_away(odd, len(odd) - 1)
        except OSError as error:
            return could_not(path, error)
        return TakenBack(path, f"it is no list of steps that can be read; {_WHY}", moved_to=moved)
