"""Names of files as text that can be sent and shown: `printable`, `sendable`."""

from __future__ import annotations


def printable(name: str) -> str:
    """Return a file's name as text that can be sent and shown on one line.

    Bytes that are no UTF-8, and control characters, come out as backslash escapes.
    """
    if name.isprintable():
        return name
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in sendable(name)
    )


def sendable(text: str) -> str:
    """Return a path as text that can be sent: bytes that are no UTF-8 come out as escapes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # half of a surrogate pair, which never was a byte
            raw = text.encode("utf-8", "backslashreplace")
        return raw.decode("utf-8", "backslashreplace")
    return text
