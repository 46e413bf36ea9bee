"""`ShownTexts`: texts of files that answers point into, kept as long as the files stay the same."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from kaged.base.file_stamp import Stamp, stamp_of
from kaged.toolbox.lsp.positions import SourceText
from kaged.workspace import ProjectPath, Workspace
from kaged.workspace.errors import FileMissing

MAX_KEPT_CHARS: Final = 32 * 1024 * 1024


class ShownTexts:
    """Reads files for previews; an answer may point into hundreds, and the next into the same."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._kept: OrderedDict[str, tuple[Stamp, SourceText]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def read(self, paths: Sequence[ProjectPath]) -> dict[str, SourceText | None]:
        """Return the texts by resolved path; None for what cannot be read. Runs in a thread."""
        return {path.resolved: self._read(path) for path in paths}

    def _read(self, path: ProjectPath) -> SourceText | None:
        try:
            info = os.stat(path.resolved, follow_symlinks=False)  # noqa: PTH116 - already resolved
            stamp = stamp_of(info)
            with self._lock:
                known = self._kept.get(path.resolved)
                if known is not None and stamp is not None and known[0] == stamp:
                    self._kept.move_to_end(path.resolved)
                    return known[1]
            content = self._workspace.read_bytes(path)
        except (FileMissing, OSError):
            return None
        text = SourceText(content.data.decode("utf-8-sig", errors="replace"))
        if content.stamp is not None:
            self._keep(path.resolved, content.stamp, text)
        return text

    def _keep(self, path: str, stamp: Stamp, text: SourceText) -> None:
        with self._lock:
            before = self._kept.pop(path, None)
            if before is not None:
                self._chars -= len(before[1].text)
            self._kept[path] = stamp, text
            self._chars += len(text.text)
            while self._chars > MAX_KEPT_CHARS:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._chars -= len(dropped.text)
