"""`Mount`: a resolved fs entry of a cage; `MountTable`: which mount decides about a path.

A path is judged by the most specific mount that covers it, as bind mounts in a cage would have it:
the one with the most components. In a pattern `**` counts for none; at equal count an exact name
beats a pattern, and between two patterns the read-only one decides.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.paths import AbsPath, is_normal, parents
from kaged.kernel.policy import FsMode

_MAGIC = re.compile(r"[*?\[]")
_RO = FsMode.RO  # an attribute of an enum costs more than a look into a dict


@dataclass(frozen=True, slots=True)
class Mount:
    """One fs entry with the facts of the disk: where it really is, and what is there.

    A directory grants itself and everything below; a `file` itself alone; a `pattern` every path
    it matches, with everything below. In a pattern `*`, `?` and `[…]` stay within one component,
    `**` spans any number, and neither matches a leading dot.
    """

    path: str
    mode: FsMode
    file: bool = False
    pattern: bool = False


def has_magic(path: str) -> bool:
    """Return whether a mount path contains glob characters."""
    return _MAGIC.search(path) is not None


class MountGlob:
    """A compiled mount pattern. Matching walks components, so `*` never crosses a slash."""

    __slots__ = ("_parts", "specificity")

    def __init__(self, pattern: str) -> None:
        self._parts = tuple(map(_component, _parts(pattern)))
        self.specificity = sum(part is not None for part in self._parts)

    def covers(self, parts: Iterable[str]) -> bool:
        """Return whether the path, or a directory above it, is matched."""
        return self._walk(parts)[0]

    def may_hold(self, parts: Iterable[str]) -> bool:
        """Return whether the path, or something below it, can be matched."""
        covered, open_ended = self._walk(parts)
        return covered or open_ended

    def _walk(self, parts: Iterable[str]) -> tuple[bool, bool]:
        # The set of pattern positions that the components so far can have led to.
        end = len(self._parts)
        states = self._spread({0})
        for part in parts:
            if end in states:
                return True, True
            after: set[int] = set()
            for state in states:
                test = self._parts[state]
                if test is None:
                    if part[0] != ".":
                        after.add(state)
                elif test(part):
                    after.add(state + 1)
            states = self._spread(after)
        return end in states, bool(states)

    def _spread(self, states: set[int]) -> set[int]:
        # `**` may stand for nothing at all.
        for state in sorted(states):
            at = state
            while at < len(self._parts) and self._parts[at] is None:
                at += 1
                states.add(at)
        return states


class MountTable:
    """All mounts of one cage, compiled once so that a question costs about a microsecond."""

    __slots__ = ("_above", "_files", "_globs", "_lengths", "_modes")

    def __init__(self, mounts: Iterable[Mount]) -> None:
        """Compile the mounts. Raises ValueError when a path is not normalised and absolute."""
        modes: dict[str, FsMode] = {}
        files: dict[str, FsMode] = {}
        globs: dict[str, FsMode] = {}
        for mount in mounts:
            if not is_normal(mount.path):
                raise ValueError(f"mount path is not absolute and normalised: {mount.path!r}")
            kind = globs if mount.pattern else files if mount.file else modes
            # Read plus write on one path is write.
            kind[mount.path] = _wider(kind.get(mount.path), FsMode(mount.mode))
        exact = [AbsPath(path) for path in (*modes, *files)]
        self._above = frozenset(exact).union(*map(parents, exact))
        self._files = files
        self._globs = tuple((MountGlob(path), mode) for path, mode in globs.items())
        # Without the slash at the end, so that the root is the empty text and all are alike.
        self._modes = {path.rstrip("/"): mode for path, mode in modes.items()}
        self._lengths = tuple(sorted({len(path) for path in self._modes}, reverse=True))

    def mode_at(self, path: str) -> FsMode | None:
        """Return how a resolved path is mounted; None when it is not, or is no resolved path."""
        if not _is_resolved(path):
            return None
        best, end = self._files.get(path), len(path)
        if best is None:
            # A mount can only end where a component of the path ends: try those, longest first.
            probe = path + "/" if end > 1 else path
            for length in self._lengths:
                if length <= end and probe[length] == "/":
                    best = self._modes.get(probe[:length])
                    if best is not None:
                        end = length
                        break
        return self._mode_with_globs(path, best, end) if self._globs else best

    def holds_below(self, path: str) -> bool:
        """Return whether some mount lies, or can lie, at or below a resolved path."""
        if not _is_resolved(path):
            return False
        parts = _parts(path)
        return path in self._above or any(glob.may_hold(parts) for glob, _ in self._globs)

    def _mode_with_globs(self, path: str, best: FsMode | None, end: int) -> FsMode | None:
        parts = _parts(path)
        exact = best is not None
        depth = path.count("/", 0, end) if exact else 0
        for glob, mode in self._globs:
            beaten = exact and glob.specificity <= depth
            if beaten or glob.specificity < depth or not glob.covers(parts):
                continue
            if glob.specificity > depth or best is None:
                best, depth, exact = mode, glob.specificity, False
            elif mode is _RO:
                best = mode
        return best


def _component(text: str) -> Callable[[str], object] | None:
    if text == "**":
        return None
    if not has_magic(text):
        return text.__eq__
    match = re.compile(fnmatch.translate(text)).match
    if text[0] == ".":
        return match
    return lambda part: part[0] != "." and match(part)


def _wider(one: FsMode | None, other: FsMode) -> FsMode:
    return FsMode.RW if FsMode.RW in (one, other) else other


def _parts(path: str) -> list[str]:
    return path[1:].split("/") if path != "/" else []


def _is_resolved(path: str) -> bool:
    # What `is_normal` would say, but for lengths and encodings, which grant nothing; spelled out
    # because it is asked for every path of every call.
    if "//" in path or "\0" in path or path[:1] != "/" or (path[-1] == "/" and path != "/"):
        return False
    if "/." not in path:
        return True
    return "/./" not in path and "/../" not in path and not path.endswith(("/.", "/.."))
