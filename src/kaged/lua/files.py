"""`kage.fs`, and the one check of places that it shares with `kage.exec`.

A place is given by text, relative to the workdir. It is found by the workspace's guard and opened
without following links, so what was checked is what is read or written.
"""

from __future__ import annotations

from typing import Final

from kaged.base import KagedError
from kaged.lua.errors import PlaceRefused, ScriptCallRefused
from kaged.lua.limits import MAX_READ_BYTES, MAX_WRITE_BYTES
from kaged.lua.values import from_bytes, shown, to_bytes
from kaged.workspace import ProjectPath, Workspace
from kaged.workspace.errors import PathProtected, PathRefused
from kaged.workspace.undo_step import Author

_GIT: Final = ".git"


def place_in_workdir(workspace: Workspace, text: str) -> ProjectPath:
    """Find a place in the workdir; the check of `kage.fs` and of the cwd of `kage.exec`.

    Raises:
        ScriptCallRefused: it is absolute, contains `..`, or leads out of the workdir.
    """
    parts = text.split("/")
    if text.startswith("/") or "~" in parts[0][:1]:
        raise PlaceRefused(f"{shown(text)}: must be relative to the workdir")
    if ".." in parts:
        raise PlaceRefused(f"{shown(text)}: must not contain ..")
    try:
        return workspace.resolve(text)
    except PathRefused as error:
        raise PlaceRefused(f"{shown(text)}: leads out of the workdir") from error


async def read_file(workspace: Workspace, text: str) -> str:
    """Return the content of a file. Raises ScriptCallRefused."""
    path = _place("kage.fs.read", workspace, text)
    try:
        content = await workspace.threads.run(lambda: workspace.read_bytes(path, MAX_READ_BYTES))
    except KagedError as error:
        raise ScriptCallRefused(f"kage.fs.read: read {shown(text)}: {error.message}") from error
    return from_bytes(content.data)


async def write_file(workspace: Workspace, author: Author, text: str, content: str) -> None:
    """Put a content in place of a file, making folders. Raises ScriptCallRefused.

    Nothing inside a repository's `.git` is ever written: what lies there may be run by the
    operator's own git later.
    """
    path = _place("kage.fs.write", workspace, text)
    if any(part.lower() == _GIT for part in path.resolved.split("/")):
        raise PlaceRefused(f"kage.fs.write: path {shown(text)}: .git is not writable")
    if path.link:
        raise ScriptCallRefused(f"kage.fs.write: path {shown(text)}: is a symbolic link")
    data = to_bytes(content)
    if len(data) > MAX_WRITE_BYTES:
        raise ScriptCallRefused(f"kage.fs.write: more than {MAX_WRITE_BYTES} bytes")
    try:
        async with workspace.locks.mutating([path]):
            await workspace.threads.finish(
                lambda: workspace.write_bytes(path, data),
                lambda written: workspace.settle(author, [written], [data]),
            )
    except PathProtected as error:
        raise PlaceRefused(f"kage.fs.write: path {shown(text)}: {error.message}") from error
    except KagedError as error:
        raise ScriptCallRefused(f"kage.fs.write: write {shown(text)}: {error.message}") from error


def _place(who: str, workspace: Workspace, text: str) -> ProjectPath:
    try:
        return place_in_workdir(workspace, text)
    except PlaceRefused as error:
        raise PlaceRefused(f"{who}: path {error.message}") from error
