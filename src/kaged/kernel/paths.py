"""Absolute POSIX paths as text: `normalise`, `contains`, `overlaps`. Never looks at a disk."""

from __future__ import annotations

from typing import NewType

from kaged.base.errors import KagedError

MAX_PATH_BYTES = 4095
"""The longest path Linux takes (PATH_MAX without its closing NUL)."""

AbsPath = NewType("AbsPath", str)
"""A normalised absolute path: one leading slash, no empty, `.` or `..` component, no slash at the
end (but `/` itself). Symlinks are a fact that callers resolve; this type says nothing of them."""


class PathInvalid(KagedError):
    """The text is not an absolute path that the kernel can reason about."""

    code = "path_invalid"


def normalise(text: str) -> AbsPath:
    """Return the one spelling of an absolute path: `/a//b/./c/` becomes `/a/b/c`.

    `..` is refused rather than folded, because what it means depends on symlinks.

    Raises:
        PathInvalid: empty, relative, too long, not encodable, or with NUL or `..` inside.
    """
    if not text:
        raise PathInvalid("a path may not be empty")
    if text[0] != "/":
        raise PathInvalid("a path must be absolute", fix="begin it with /")
    if "\0" in text:
        raise PathInvalid("a path may not contain NUL")
    if len(text) > MAX_PATH_BYTES or _byte_length(text) > MAX_PATH_BYTES:
        raise PathInvalid(f"a path may have at most {MAX_PATH_BYTES} bytes")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PathInvalid("a path may not contain ..", fix="write the path without ..")
    return AbsPath("/" + "/".join(parts))


def is_normal(text: str) -> bool:
    """Return whether this text is already a normalised absolute path."""
    try:
        return normalise(text) == text
    except PathInvalid:
        return False


def contains(parent: str, child: str) -> bool:
    """Return whether `child` is `parent` or lies below it, component by component.

    `/srv` contains `/srv` and `/srv/a`, never `/srv-secret`. False for anything that is not an
    absolute path.
    """
    try:
        return within(normalise(child), normalise(parent))
    except PathInvalid:
        return False


def within(child: AbsPath, parent: AbsPath) -> bool:
    """Return whether `child` is `parent` or lies below it; both are normalised already."""
    return parent in (child, "/") or child.startswith(parent + "/")


def overlaps(one: AbsPath, other: AbsPath) -> bool:
    """Return whether one of the two contains the other."""
    return within(one, other) or within(other, one)


def join(base: str, below: str) -> AbsPath:
    """Return the path of `below` when `base` is its root; the result never leaves `base`.

    Raises:
        PathInvalid: as `normalise`.
    """
    return normalise(f"{normalise(base)}/{below}")


def parents(path: AbsPath) -> tuple[AbsPath, ...]:
    """Return the proper ancestors of a path, nearest first, ending with `/`."""
    found: list[AbsPath] = []
    while path != "/":
        path = AbsPath(path.rpartition("/")[0] or "/")
        found.append(path)
    return tuple(found)


def _byte_length(text: str) -> int:
    try:
        # Names that are no UTF-8 reach Python as surrogate escapes; they are legal on disk.
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise PathInvalid("a path must be encodable as UTF-8") from error
