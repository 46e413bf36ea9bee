"""Programs that lie in a project and that the host starts outside every cage.

Their commands were agreed to, or are known; what lies behind them can change. Where an agent in a
cage may write the program, or a file that the command names, it would run outside its cage what it
wrote there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kaged.tools import ToolError

MAX_LINKS: Final = 40
Writable = Callable[[str], bool]
"""Returns whether an agent in a cage may write an absolute path."""


def require_out_of_reach(
    language: str, command: Sequence[str], root: str, writable: Writable
) -> None:
    """Raise `lsp_program_writable` when a guest may change what a project's command starts."""
    for word in command:
        for path in _files_of(word, root):
            if writable(path):
                shown = os.path.relpath(path, root)
                raise ToolError(
                    f"the language server for {language} is not started: it would run {shown} "
                    "outside every cage, and an agent in a cage may write that file",
                    code="lsp_program_writable",
                    fix=f"make it read-only in their cages ({{mode: ro, path: {shown}}}), keep it "
                    f"below .kaged or outside the project, or set [lsp.servers.{language}] in "
                    "config.toml",
                    detail={"language": language, "path": shown},
                )


def _files_of(word: str, root: str) -> Iterator[str]:
    """Return every place that decides which file of the project a word of a command means.

    That is the file, and each link on the way to it. A word that names no file means none.
    """
    for text in {word, word.partition("=")[2]}:
        path = os.path.normpath(os.path.join(root, text))  # noqa: PTH118 - texts of a command
        if not text or not os.path.lexists(path) or os.path.isdir(path):  # noqa: PTH112 - as above
            continue
        for _ in range(MAX_LINKS):
            yield path
            folder = os.path.realpath(os.path.dirname(path))  # noqa: PTH120 - as above
            path = os.path.join(folder, os.path.basename(path))  # noqa: PTH118, PTH119 - as above
            yield path
            if not os.path.islink(path):  # noqa: PTH114 - as above
                break
            path = os.path.normpath(os.path.join(folder, os.readlink(path)))  # noqa: PTH115, PTH118 - as above
