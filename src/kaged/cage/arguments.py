"""Command-line strings, checked once: `check_text`, `DescriptorSlot`, `encode_arguments`.

bwrap reads its options from a descriptor as NUL-separated strings. A NUL inside one of ours would
therefore be the start of another option, chosen by whoever wrote the string; no string with one
passes here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.errors import UnsafeArgument

MAX_ENV_ENTRIES = 512
MAX_ENV_VALUE_BYTES = 128 * 1024 - 256  # the kernel takes 128 KiB per string, name included
MAX_COMMAND_BYTES = 128 * 1024 - 1
MAX_COMMAND_WORDS = 4096
MAX_PATH_BYTES = 4095
MAX_OPTIONS = 8000  # bwrap stops at 9000

_ENV_NAME = re.compile(r"[^\x00-\x1f\x7f=\s]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class DescriptorSlot:
    """A descriptor in an option list, by label; the spawner puts the number in."""

    label: str


Token: TypeAlias = str | DescriptorSlot


def check_path(path: str, what: str = "path") -> str:
    """Return an absolute, normalised path, or refuse it.

    Raises:
        UnsafeArgument: relative, not normalised, too long, or with control characters.
    """
    if not path.startswith("/"):
        raise UnsafeArgument(f"{what} {path!a} is not absolute", path=ascii(path))
    if _CONTROL.search(path):
        raise UnsafeArgument(
            f"{what} {path!a} holds a control character", path=ascii(path), what=what
        )
    if path != "/" and (path.endswith("/") or os.path.normpath(path) != path or path[:2] == "//"):
        raise UnsafeArgument(f"{what} {path!a} is not normalised", path=ascii(path), what=what)
    if len(_encode(path, what)) > MAX_PATH_BYTES:
        raise UnsafeArgument(f"{what} is longer than {MAX_PATH_BYTES} bytes", what=what)
    return path


def check_environment(entries: Sequence[tuple[str, str]]) -> None:
    """Refuse an environment that could not be passed on as it is.

    Raises:
        UnsafeArgument: a name with `=`, white space or control characters, a NUL in a value, or
            too much of either.
    """
    if len(entries) > MAX_ENV_ENTRIES:
        raise UnsafeArgument(f"more than {MAX_ENV_ENTRIES} environment variables")
    for name, value in entries:
        if not _ENV_NAME.fullmatch(name):
            raise UnsafeArgument(f"{name!a} cannot name a variable", name=ascii(name))
        if "\0" in value:
            raise UnsafeArgument(f"the variable {name} holds a NUL byte", name=name)
        if len(name) + len(_encode(value, name)) > MAX_ENV_VALUE_BYTES:
            raise UnsafeArgument(f"the variable {name} is too long", name=name)


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that could not be passed on as it is.

    Raises:
        UnsafeArgument: empty, a NUL byte, or too long.
    """
    if not command or not command[0]:
        raise UnsafeArgument("a command needs at least a program")
    if len(command) > MAX_COMMAND_WORDS:
        raise UnsafeArgument(f"a command has at most {MAX_COMMAND_WORDS} words")
    for word in command:
        if "\0" in word:
            raise UnsafeArgument("a word of the command holds a NUL byte", word=ascii(word[:80]))
        if len(_encode(word, "command")) > MAX_COMMAND_BYTES:
            raise UnsafeArgument("a word of the command is too long", limit=MAX_COMMAND_BYTES)
    if command[0].startswith("-"):
        raise UnsafeArgument(f"{command[0]!a} is an option, not a program")


def encode_arguments(tokens: Sequence[Token], descriptors: Mapping[str, int]) -> bytes:
    """Write an option list the way bwrap reads it from a descriptor.

    Raises:
        UnsafeArgument: a string with a NUL byte, or more options than bwrap takes.
    """
    if len(tokens) > MAX_OPTIONS:
        raise UnsafeArgument(f"the cage needs {len(tokens)} options and bwrap takes {MAX_OPTIONS}")
    words = [
        str(descriptors[token.label]) if isinstance(token, DescriptorSlot) else token
        for token in tokens
    ]
    joined = "\0".join(words)
    # One count over the whole list is the cheapest check that cannot be forgotten for one string.
    if joined.count("\0") != max(len(words) - 1, 0):
        raise UnsafeArgument("a NUL byte would add options of its own to the cage")
    return _encode(joined, "option list") + b"\0" if words else b""


def _encode(text: str, what: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as error:
        raise UnsafeArgument(f"{what} holds a character that has no encoding") from error
