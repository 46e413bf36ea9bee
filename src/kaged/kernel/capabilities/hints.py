"""`guesses`: what the author of a faulty capability probably meant, for the error message only."""

from __future__ import annotations

import re

_NET_WORDS = frozenset({"net", "network", "http", "https", "tcp", "ws", "wss"})
_EXEC_WORDS = frozenset({"exec", "execute", "run", "bin"})
_FS_WORDS = frozenset({"fs", "file", "files", "read", "write", "ro", "rw", ""})
_WRITE_WORDS = frozenset({"write", "rw", "w"})
_PROGRAM = re.compile(r":(?:[^:]*/)?([A-Za-z0-9_][A-Za-z0-9_.+-]*):")
_SCHEME = re.compile(r"\A(?:net:)?\s*(?:https?:|tcp:|wss?:)?(?://)?")


def guesses(text: str) -> list[str]:
    """Return capability texts that may have been meant, likeliest first; none need be valid."""
    text = text.strip()
    lowered = text.lower()
    words = re.split(r"[^a-z]+", lowered)
    mode = "write" if _WRITE_WORDS.intersection(words) else "read"
    if "events" in words or "event" in words:
        return [f"kaged:events:{'subscribe' if 'subscribe' in words else 'publish'}"]
    if "storage" in words:
        return [f"kaged:storage:{mode}"]
    if words[0] in _NET_WORDS:
        target = _SCHEME.sub("", lowered).split("/")[0]
        return [f"net:{target}", f"net:{target}:443", "net:[]"]
    place = _place(text)
    if words[0] in _EXEC_WORDS:
        program = _PROGRAM.search(text)
        return [f"exec:{program[1]}:{place}"] if program else []
    return [f"{mode}:fs:{place}"] if _FS_WORDS.intersection(words) else []


def _place(text: str) -> str:
    # The last field, as an absolute path without what a capability may not contain. Never the
    # root: nobody should be talked into that by an error message.
    head, _, rest = text.rpartition(":")
    prefix = next((f"{base}:" for base in ("config", "project") if head.endswith(base)), "")
    plain = re.split(r"[*?\[]", rest.lstrip("~"))[0]
    parts = [part for part in plain.split("/") if part not in ("", ".", "..")]
    return f"{prefix}/{'/'.join(parts)}" if parts else ""
