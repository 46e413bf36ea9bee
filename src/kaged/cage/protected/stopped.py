"""`StoppedOperations`: the commands that git runs when somebody goes on with a stopped operation.

A rebase or a row of picks that has stopped is described by files, and some of them name commands:
the `exec` lines of a rebase's steps, and a merge strategy, which git runs as a program of the work
tree when it is a path. Who types `git rebase --continue` runs them, whoever wrote the files. So the
commands of guests are taken out; the other steps stay, and the operation goes on with them.
"""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from kaged.cage.protected.files import Content, put_content, read_content
from kaged.cage.protected.findings import Findings, Sweep, TakenBack, could_not
from kaged.cage.protected.tree import Parts, ProtectedTree, shown_path
from kaged.kernel.git_config import MalformedGitConfig, parse_git_config
from kaged.kernel.protected_paths import REBASE_DIR, SEQUENCER_DIR

STOPPED_PATIENCE_NS: Final = 300_000_000_000
"""So long a stopped operation has to stand still before it counts as left behind."""
MAX_SHOWN: Final = 20

_EXEC: Final = re.compile(rb"[ \t]*(?:exec|x)(?=[ \t\r\0]|\Z)")
_NO_PROGRAM: Final = b"recursive\n"
"""A strategy that every version of git has, and the one that it takes by itself."""
_WHY: Final = "git runs it when the operation goes on"

Commands: TypeAlias = tuple[bytes, ...]


def steps_with_commands(data: bytes) -> Commands:
    """Return the steps of a rebase that run a command, as git reads them."""
    return tuple(line for line in data.split(b"\n") if _EXEC.match(line))


def without_steps(data: bytes, keep: Commands) -> bytes:
    """Return the steps without those that run a command, but for those to keep."""
    lines = data.split(b"\n")
    return b"\n".join(line for line in lines if line in keep or not _EXEC.match(line))


def strategy_program(data: bytes) -> Commands:
    """Return the strategy of a rebase when git would run a program by its path for it."""
    return (data.strip(),) if b"/" in data else ()


def known_strategy(_data: bytes, _keep: Commands) -> bytes:
    """Return a strategy that runs no program of the work tree."""
    return _NO_PROGRAM


def strategy_options(data: bytes) -> Commands:
    """Return the settings of a row of picks that name such a program; all when unreadable."""
    try:
        settings = parse_git_config(data)
    except MalformedGitConfig:
        return (data,)
    return tuple(
        data[one.start : one.end]
        for one in settings
        if one.key == "options.strategy" and "/" in (one.value or "")
    )


def without_options(data: bytes, _keep: Commands) -> bytes:
    """Return the settings without those that name a program."""
    for one in strategy_options(data):
        data = data.replace(one, b"")
    return data


class _File(NamedTuple):
    commands: Callable[[bytes], Commands]
    without: Callable[[bytes, Commands], bytes]


_FILES: Final[Mapping[Parts, _File]] = {
    (REBASE_DIR, "git-rebase-todo"): _File(steps_with_commands, without_steps),
    (REBASE_DIR, "strategy"): _File(strategy_program, known_strategy),
    (SEQUENCER_DIR, "opts"): _File(strategy_options, without_options),
}


def describes_stopped(parts: Sequence[str]) -> bool:
    """Return whether a path is one of the files that describe a stopped operation."""
    return tuple(parts[-2:]) in _FILES


class StoppedOperations:
    """The operations that have stopped in the repositories of a tree. Blocks on the disk."""

    def __init__(self, tree: ProtectedTree, move_away: Callable[[Parts, int], str | None]) -> None:
        self._tree = tree
        self._move_away = move_away
        self.contents: dict[Parts, Content] = {}
        """The operator's, from before the guests began."""

    def rebase(self, dirs: Iterable[Parts]) -> None:
        """Take what lies there now for the operator's."""
        self.contents.clear()
        for parts in _files(dirs):
            now = self._read(parts)
            if now is not None and now.data is not None:
                self.contents[parts] = now

    def sweep(self, dirs: Iterable[Parts], findings: Findings, how: Sweep) -> None:
        """Take out commands that a guest put in, once its git has left them behind."""
        if how.quick:
            return
        for parts in _files(dirs):
            now = None if self._tree.rules.allows(parts) else self._read(parts)
            if now is None:
                continue
            commands_in = _FILES[parts[-2:]].commands
            old = self.contents.get(parts)
            mine = commands_in(old.data or b"") if old is not None else ()
            new = tuple(one for one in commands_in(now.data or b"") if one not in mine)
            if now.data is not None and not new:
                continue
            if not how.final and not self._stands_still(parts):
                continue
            if how.by_operator():
                self.contents[parts] = now
                findings.adopted += 1
                continue
            findings.taken_back.append(self._take_out(parts, now, mine, new))

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
        return signature is None or signature[-1] < time.time_ns() - STOPPED_PATIENCE_NS

    def _take_out(self, parts: Parts, now: Content, mine: Commands, new: Commands) -> TakenBack:
        root, path = self._tree.root, shown_path(parts)
        try:
            if now.data is not None:
                put_content(root, parts, _FILES[parts[-2:]].without(now.data, mine), now.mode)
                shown = (one.decode("utf-8", "replace").strip()[:200] for one in new[:MAX_SHOWN])
                return TakenBack(path, f"commands were put in: {'; '.join(shown)}; {_WHY}")
            folder = self._tree.signature(parts[:-1])
            odd = parts if folder is not None and stat.S_ISDIR(folder[0]) else parts[:-1]
            moved = self._move_away(odd, len(odd) - 1)
        except OSError as error:
            return could_not(path, error)
        return TakenBack(path, f"it is no file that can be read; {_WHY}", moved_to=moved)


def _files(dirs: Iterable[Parts]) -> list[Parts]:
    return [(*one, *file) for one in sorted(dirs) for file in _FILES]
