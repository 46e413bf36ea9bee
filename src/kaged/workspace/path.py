"""`ProjectPath`: a path that passed the guard; `parse_path`: an agent's text, read by its letters.

Nothing here looks at a disk. What the letters cannot say (links) is the guard's business.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.workspace.errors import PathRefused

MAX_PATH_BYTES: Final = 4095
MAX_NAME_BYTES: Final = 255
_FOREIGN: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\|[A-Za-z][A-Za-z0-9+.-]*://|(?:[^/]*\\)?\.\.\\")
"""How a path of another world begins: a drive, a share, a URL, `..` before a backslash."""


@dataclass(frozen=True, slots=True)
class ProjectPath:
    """A path inside the project, resolved.

    `relative` is the `./` form for people and agents (the root is `./`). `resolved` is absolute
    with every link followed; where it does not exist yet, through its nearest existing ancestor.
    `requested` is the caller's own text. `link` says that the last component itself is a link.
    """

    relative: str
    resolved: str
    requested: str
    link: bool = False


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """The components of a path as written, without empty ones and `.`."""

    parts: tuple[str, ...]
    absolute: bool
    climbs: bool
    """Whether `..` is among the parts."""


def parse_path(text: str) -> ParsedPath:
    """Read an agent's path.

    Raises:
        PathRefused: empty, with NUL, too long, `~`, of another system's form, or relative and
            leaving the place it starts from.
    """
    if not text:
        raise PathRefused("it is empty", text)
    if "\0" in text:
        raise PathRefused("it contains a NUL character", text)
    if text[0] == "~":
        raise PathRefused(
            "~ is not expanded", text, fix="write ./~… if the file really has that name"
        )
    if _FOREIGN.match(text):
        raise PathRefused(
            "it is not a path of this system", text, fix="write it as ./path inside the project"
        )
    _require_short(text)
    parts = tuple([part for part in text.split("/") if part not in {"", "."}])
    climbs = ".." in parts
    absolute = text[0] == "/"
    if climbs and not absolute:
        _require_inside(parts, text)
    return ParsedPath(parts, absolute, climbs)


def _require_short(text: str) -> None:
    try:
        # Names that are no UTF-8 reach Python as surrogate escapes; they are legal on disk.
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise PathRefused("it is not valid Unicode", text) from error
    if len(raw) > MAX_PATH_BYTES:
        raise PathRefused(f"it is longer than {MAX_PATH_BYTES} bytes", text)
    if len(raw) > MAX_NAME_BYTES and max(map(len, raw.split(b"/"))) > MAX_NAME_BYTES:
        raise PathRefused(f"a name in it is longer than {MAX_NAME_BYTES} bytes", text)


def _require_inside(parts: tuple[str, ...], text: str) -> None:
    depth = 0
    for part in parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            raise PathRefused(
                "it leaves the project",
                text,
                fix="write it as ./path inside the project",
                resolved=posixpath.normpath(text),
            )


def relative_form(root: str, resolved: str) -> str:
    """Return the `./` form of an absolute path at or below `root`; both are normalised."""
    if resolved == root:
        return "./"
    return "./" + resolved[len(root.rstrip("/")) + 1 :]


def is_inside(root: str, resolved: str) -> bool:
    """Return whether a normalised absolute path is `root` or lies below it, by components."""
    return resolved == root or resolved.startswith(root.rstrip("/") + "/")
