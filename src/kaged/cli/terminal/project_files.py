"""`ProjectFiles`: the names of a project's files for completion, without what git ignores.

They are listed in a thread, once in a while, and never more than a limit: typing does not wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kaged.base import Clock, KagedError, SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.search.globs import PathGlob, compile_glob

MAX_FILES: Final = 100_000
MAX_FOUND: Final = 50
MAX_IGNORE_BYTES: Final = 256 * 1024
FRESH_S: Final = 10.0
PATIENCE_S: Final = 2.0
NEVER: Final = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"})
"""What is left out even where no ignore file says so: nobody means a file in there."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of a `.gitignore`."""

    glob: PathGlob
    base: str
    folders_only: bool
    keeps: bool
    here_only: bool

    def decides(self, path: str, *, folder: bool) -> bool:
        """Return whether the line speaks of this path."""
        if self.folders_only and not folder:
            return False
        below = path[len(self.base) :]
        return not (self.here_only and "/" in below) and self.glob.matches(below)


class ProjectFiles:
    """The files below a folder."""

    def __init__(self, root: str, clock: Clock | None = None) -> None:
        self._root = root
        self._clock = clock or SystemClock()
        self._known: tuple[str, ...] = ()
        self._listed_s: float | None = None
        self._listing: threading.Thread | None = None

    def find(self, typed: str) -> list[str]:
        """Return the files that fit what was typed, the best first."""
        self._renew()
        if not self._known:
            self.wait()
        wanted = typed.casefold()
        scored = ((_score(path, wanted), path) for path in self._known)
        fitting = sorted((score, len(path), path) for score, path in scored if score is not None)
        return [path for _, _, path in fitting[:MAX_FOUND]]

    def wait(self) -> None:
        """Return when the listing that is under way is done, or after a moment."""
        if self._listing is not None:
            self._listing.join(PATIENCE_S)

    def _renew(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._listing is not None and self._listing.is_alive():
            return
        if self._listed_s is not None and now_s - self._listed_s < FRESH_S:
            return
        self._listed_s = now_s
        self._listing = threading.Thread(target=self._list, name="project files", daemon=True)
        self._listing.start()

    def _list(self) -> None:
        self._known = tuple(path for path, _ in zip(walk(self._root), range(MAX_FILES)))  # noqa: B905


def walk(root: str) -> Iterator[str]:
    """Yield the files below a folder, breadth first, relative to it; links are not followed."""
    waiting: list[tuple[str, tuple[_Rule, ...]]] = [("", ())]
    for below, above in waiting:
        rules = (*above, *_rules(root, below))
        try:
            with os.scandir(f"{root}/{below}") as entries:
                found = sorted(entries, key=lambda one: one.name)
        except OSError:
            continue
        for entry in found:
            path = below + entry.name
            folder = entry.is_dir(follow_symlinks=False)
            if entry.name in NEVER or _ignored(path, rules, folder=folder):
                continue
            if folder:
                waiting.append((f"{path}/", rules))
            else:
                yield path


def _rules(root: str, below: str) -> Iterator[_Rule]:
    try:
        file = Path(root, below, ".gitignore")
        with file.open(encoding="utf-8", errors="replace") as lines:
            text = lines.read(MAX_IGNORE_BYTES)
    except OSError:
        return
    for line in text.splitlines():
        rule = _rule(line.rstrip(), below)
        if rule is not None:
            yield rule


def _rule(line: str, base: str) -> _Rule | None:
    if not line or line.startswith("#"):
        return None
    keeps = line.startswith("!")
    pattern = line[1:] if keeps else line
    folders_only = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    anchored = pattern.startswith("/")
    pattern = pattern.lstrip("/")
    if not pattern:
        return None
    try:
        here_only = anchored and "/" not in pattern
        return _Rule(compile_glob(pattern), base, folders_only, keeps, here_only)
    except KagedError:
        return None  # a pattern that this does not know hides nothing


def _ignored(path: str, rules: Sequence[_Rule], *, folder: bool) -> bool:
    """Return what the last rule that speaks of a path says."""
    for rule in reversed(rules):
        if rule.decides(path, folder=folder):
            return not rule.keeps
    return False


def _score(path: str, wanted: str) -> int | None:
    """Return how well a path fits, lower is better; None if it does not."""
    plain = path.casefold()
    name = plain.rpartition("/")[2]
    if name.startswith(wanted) or plain.startswith(wanted):
        return 0
    if wanted in name:
        return 1
    if wanted in plain:
        return 2
    letters = iter(plain)
    return 3 if all(letter in letters for letter in wanted) else None
