"""`pushed_refs`: which refs a push of Git changes, from the beginning of its body.

Git's smart HTTP protocol sends a list of commands in lines with their length before them, then the
objects. Only the list is read; what it may not hold (certificates of signed pushes) is refused.
"""

from __future__ import annotations

import re
from typing import Final

from kaged.base.errors import KagedError

MAX_COMMAND_BYTES: Final = 64 * 1024
_LENGTH = re.compile(rb"[0-9a-fA-F]{4}")
_COMMAND = re.compile(
    rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) (refs/[!-~]{1,1024})"
)
_SHALLOW = re.compile(rb"shallow (?:[0-9a-f]{40}|[0-9a-f]{64})")
_HEAD: Final = 4


class PushInvalid(KagedError):
    """The body is no list of commands that can be decided about."""

    code = "credential_git_push_invalid"


def pushed_refs(body: bytes, *, ended: bool) -> tuple[str, ...] | None:
    """Return the refs of all commands, or None when more of the body is needed.

    Raises:
        PushInvalid: this is no push, is too long, or holds what cannot be decided about.
    """
    refs: list[str] = []
    at = 0
    while True:
        if at > MAX_COMMAND_BYTES:
            raise _invalid("it has too many commands")
        head = body[at : at + _HEAD]
        if len(head) < _HEAD:
            break
        if not _LENGTH.fullmatch(head):
            raise _invalid("it holds a line without a length")
        length = int(head, 16)
        if length == 0:
            return tuple(refs)
        if length <= _HEAD:
            raise _invalid("it holds a line of no length")
        line = body[at + _HEAD : at + length]
        if len(line) < length - _HEAD:
            break
        at += length
        # The first command has what the client can do behind a zero byte.
        command = line.partition(b"\0")[0].removesuffix(b"\n")
        match = _COMMAND.fullmatch(command)
        if match is not None:
            refs.append(match[3].decode("ascii"))
        elif not _SHALLOW.fullmatch(command):
            raise _invalid("it holds a command that cannot be decided about")
    if ended:
        raise _invalid("its list of commands has no end")
    if len(body) > MAX_COMMAND_BYTES:
        raise _invalid("it has too many commands")
    return None


def _invalid(why: str) -> PushInvalid:
    return PushInvalid(f"The push cannot be decided about: {why}.", fix="push without signing it")
