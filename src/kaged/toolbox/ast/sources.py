"""`Sources`: the files of a call, found by name and text, read through the path guard."""

from __future__ import annotations

import os
import stat
from typing import Protocol

from kaged.base import KagedError
from kaged.tools import ToolInvocation
from kaged.workspace import ProjectPath
from kaged.workspace.text import sendable


class FileFinder(Protocol):
    """Lists files as the text search does: no ignored ones, nothing of `.git`, no links."""

    async def find_files(
        self,
        root: str,
        paths: tuple[str, ...],
        *,
        names: tuple[str, ...],
        globs: tuple[str, ...],
        literal: str | None,
        time_s: float,
    ) -> tuple[list[bytes], bool]:
        """List files whose name fits one of `names`, that pass `globs` and hold `literal`.

        A leading `!` in a glob leaves out what fits. The second value says whether these are all.
        Raises KagedError when a glob cannot be read (`invalid_pattern`).
        """
        ...


class Sources:
    """Files in the order of their paths. `paths` are raw `./` paths below the project root."""

    def __init__(self, call: ToolInvocation, paths: list[bytes]) -> None:
        self._call = call
        self._root = call.workspace.root.rstrip("/")
        self.paths = sorted(set(paths))

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """Return a path as it is shown."""
        return sendable(os.fsdecode(self.paths[index]))

    def project_path(self, index: int) -> ProjectPath:
        """Return a path in the form that the workspace opens; searches follow no links."""
        text = os.fsdecode(self.paths[index])
        return ProjectPath(text, f"{self._root}/{text.removeprefix('./')}", text)

    def readable(self, index: int) -> bool:
        """Return whether the caller may know what is in a file."""
        call = self._call
        return call.policy is None or call.readable(self.project_path(index).resolved)

    def read(self, index: int, limit: int) -> bytes | str:
        """Read a file, or say why it is none to be parsed. Blocks on the disk."""
        try:
            handle = self._call.workspace.open_read(self.project_path(index))
        except KagedError as error:
            return error.message
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                return "no regular file"
            if info.st_size > limit:
                return f"larger than {limit} bytes"
            data = _read_all(handle, limit)
        except OSError as error:
            return error.strerror or "it cannot be read"
        finally:
            os.close(handle)
        if len(data) > limit:
            return f"larger than {limit} bytes"
        return "binary" if b"\0" in data else data


def _read_all(handle: int, limit: int) -> bytes:
    data = os.read(handle, limit + 1)
    while len(data) <= limit and (more := os.read(handle, limit + 1 - len(data))):
        data += more
    return data
