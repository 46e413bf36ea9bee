"""`did_you_mean`: files that a missing path may have meant, of those that the caller may read.

Looks only at places that are readable for the caller, so that a guess never tells what is outside
its cage, and at a bounded number of names. Blocks on the disk.
"""

from __future__ import annotations

import difflib
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from kaged.workspace import PathRefused, ProjectPath, Workspace
from kaged.workspace.errors import FileMissing, FileUnreadable, WrongKind
from kaged.workspace.path import relative_form
from kaged.workspace.text import sendable

MAX_SUGGESTIONS: Final = 3
MAX_LOOKED_AT: Final = 4000
_SKIPPED: Final = frozenset({".git", "node_modules", ".venv", "__pycache__"})


def did_you_mean(
    workspace: Workspace, path: ProjectPath, readable: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return a few `./` paths: the same name elsewhere, or a similar name in the same directory."""
    parent, _, name = path.resolved.rpartition("/")
    near: list[str] = []
    if readable(parent or "/") and parent.startswith(workspace.root):
        names = [entry.name for entry in _entries(workspace, parent)]
        folded = {one.casefold(): one for one in names}
        close = difflib.get_close_matches(name.casefold(), list(folded)[:1000], MAX_SUGGESTIONS)
        near = [f"{parent}/{folded[one]}" for one in close]
    for found in _same_name(workspace, path, readable):
        if found not in near:
            near.append(found)
        if len(near) >= MAX_SUGGESTIONS:
            break
    return tuple(
        sendable(relative_form(workspace.root, one))
        for one in near[:MAX_SUGGESTIONS]
        if readable(one)
    )


def _same_name(
    workspace: Workspace, path: ProjectPath, readable: Callable[[str], bool]
) -> Iterator[str]:
    top = path.resolved.rpartition("/")[0]
    if not readable(top):
        return
    while top != workspace.root and readable(top.rpartition("/")[0]):
        top = top.rpartition("/")[0]
    name = path.resolved.rpartition("/")[2]
    waiting = deque([top])
    looked = 0
    while waiting:
        directory = waiting.popleft()
        for entry in _entries(workspace, directory):
            looked += 1
            if looked > MAX_LOOKED_AT:
                return
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _SKIPPED:
                    waiting.append(f"{directory}/{entry.name}")
            elif entry.name == name and entry.is_file(follow_symlinks=False):
                yield f"{directory}/{entry.name}"


def _entries(workspace: Workspace, directory: str) -> list[os.DirEntry[str]]:
    try:
        handle = workspace.open_read(ProjectPath(directory, directory, directory))
    except (FileMissing, FileUnreadable, WrongKind, PathRefused):
        return []  # a guess is a courtesy; without a directory there is none
    try:
        with os.scandir(handle) as entries:
            return list(entries)
    except NotADirectoryError:
        return []
    finally:
        os.close(handle)
