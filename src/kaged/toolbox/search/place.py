"""Where a search starts, and which of its files the caller may look into."""

from __future__ import annotations

import os

from kaged.base.lazy_dataclass import dataclass
from kaged.tools import ToolInvocation
from kaged.workspace import ProjectPath
from kaged.workspace.text import sendable


@dataclass(frozen=True, slots=True)
class SearchRoot:
    """A directory or a single file below the root, as `./` path without links in it."""

    start: str
    is_file: bool

    @property
    def below(self) -> str:
        """What every path found from here begins with."""
        return "./" if self.start == "./" else f"{self.start}/"


class Sight:
    """What a caller sees of the files that a search found. Asked by raw `./` path, answers kept."""

    def __init__(self, call: ToolInvocation) -> None:
        self._call = call
        self._root = call.workspace.root.rstrip("/")
        self._known: dict[bytes, bool] = {}
        self.limited = call.policy is not None

    def resolved(self, path: bytes) -> str:
        """Return the absolute path of a file found; searches follow no links, so there are none."""
        return f"{self._root}/{os.fsdecode(path.removeprefix(b'./'))}"

    def readable(self, path: bytes) -> bool:
        """Return whether the caller may know what is in the file."""
        if not self.limited:
            return True
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._call.readable(self.resolved(path))
        return known

    def reaches(self, resolved: str) -> bool:
        """Return whether the caller may read what lies at an absolute path."""
        return not self.limited or self._call.readable(resolved)

    def project_path(self, path: bytes) -> ProjectPath:
        """Return the path in the form that the workspace opens."""
        text = os.fsdecode(path)
        return ProjectPath(text, self.resolved(path), text)


def shown(path: bytes) -> str:
    """Return a path as text that can be sent."""
    return sendable(os.fsdecode(path))
