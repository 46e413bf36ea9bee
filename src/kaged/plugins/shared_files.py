"""`SharedFiles`: two folders that one plugin process shares with the host, for bytes beside calls.

What is too large for a line, or no text, passes as a file and is named in the message: the host
writes into `in`, which the plugin only reads, and the plugin into `out`. The plugin may put there
what it likes, so a file is opened once, without following or waiting for anything, and checked as
it is then: a plain file of its own, of the size and type that were said.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final, cast

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.cage import HostMount
from kaged.kernel.policy import FsMode
from kaged.wire.framing import Unsendable

MAX_BYTES: Final = 32 * 1024 * 1024
MAX_REFERENCES: Final = 16
IN_CAGE: Final = "/opt/kaged/files/in"
OUT_CAGE: Final = "/opt/kaged/files/out"
REFERENCE: Final = "$file"
PAYLOAD: Final = "_file"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BEGINNINGS: Final = {
    "application/octet-stream": (b"",),
    "application/pdf": (b"%PDF-",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "text/plain": (b"",),
}
"""The types that may be passed, with what such a file begins with."""


class SharedFiles:
    """The folders of one process. `close` removes them with what is in them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._in, self._out = folder / "in", folder / "out"
        self._last = 0

    def open(self) -> None:
        """Make the folders. Blocks."""
        for one in (self._in, self._out):
            one.mkdir(parents=True, mode=0o700)

    def close(self) -> None:
        """Remove them. Blocks."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def mounts(self) -> tuple[HostMount, ...]:
        """Where the plugin finds them."""
        return (
            HostMount(str(self._in), IN_CAGE),
            HostMount(str(self._out), OUT_CAGE, FsMode.RW),
        )

    @property
    def announced(self) -> JsonObject:
        """What `initialize` says about them."""
        types: list[JsonValue] = [*_BEGINNINGS]
        return {"in": IN_CAGE, "out": OUT_CAGE, "max_bytes": MAX_BYTES, "types": types}

    # -- to the plugin -------------------------------------------------------------------------

    async def put(self, members: JsonObject) -> JsonObject:
        """Write members of a message that is too long; returns what stands for them.

        Raises:
            Unsendable: they are too long for a file as well, or it cannot be written.
        """
        self._last += 1
        name = f"payload-{self._last}.json"
        size = await asyncio.to_thread(_write, self._in / name, members)
        return {PAYLOAD: {"name": name, "size": size, "type": "application/json"}}

    def take_back(self, reference: JsonObject) -> None:
        """Remove what was put there, now that the plugin has answered."""
        about = reference.get(PAYLOAD)
        if isinstance(about, dict):
            (self._in / str(about["name"])).unlink(missing_ok=True)

    # -- from the plugin -----------------------------------------------------------------------

    async def resolved(self, answer: JsonValue) -> JsonValue:
        """Put the bytes in the place of references, in an answer or in its members.

        Raises:
            KagedError: `plugin_file_refused`; a reference names no file that may be passed.
        """
        if not isinstance(answer, dict):
            return answer
        if REFERENCE in answer:
            return await self._taken(answer)
        named = [name for name, one in answer.items() if isinstance(one, dict) and REFERENCE in one]
        if len(named) > MAX_REFERENCES:
            raise _refused(f"an answer may name {MAX_REFERENCES} files, this one {len(named)}")
        found = {name: await self._taken(cast("JsonObject", answer[name])) for name in named}
        return {**answer, **found}

    async def _taken(self, reference: JsonObject) -> JsonObject:
        about = reference[REFERENCE]
        if not isinstance(about, dict):
            raise _refused("a reference is an object with name, size and type")
        name, size, kind = about.get("name"), about.get("size"), about.get("type")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _refused("the name of a file has letters, digits, '.', '_' and '-' only")
        if type(size) is not int or not 0 <= size <= MAX_BYTES:
            raise _refused(f"{name} must say its size, {MAX_BYTES} bytes at most")
        if not isinstance(kind, str) or kind not in _BEGINNINGS:
            raise _refused(f"{name} must have one of the types {', '.join(_BEGINNINGS)}")
        text = await asyncio.to_thread(_read, self._out, name, size, kind)
        return {"type": kind, "size": size, "base64": text}


def clear_left(folder: Path) -> None:
    """Remove what the processes of a daemon that was killed have left. Blocks."""
    shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, members: JsonObject) -> int:
    data = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    if len(data) > MAX_BYTES:
        raise Unsendable(f"the message has {len(data)} bytes, a file may have {MAX_BYTES}")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Unsendable(f"its file cannot be written: {error.strerror}") from error
    return len(data)


def _read(folder: Path, name: str, size: int, kind: str) -> str:
    """Read a file once and remove it; returns it as base64."""
    path = folder / name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(f"{name} cannot be opened: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise _refused(f"{name} is no plain file of its own")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(size + 1)
    if len(data) != size:
        raise _refused(f"{name} has another size than {size} bytes")
    if not data.startswith(_BEGINNINGS[kind]) or (kind == "text/plain" and not _is_text(data)):
        raise _refused(f"{name} is not {kind}")
    path.unlink(missing_ok=True)
    return base64.b64encode(data).decode("ascii")


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _refused(why: str) -> KagedError:
    return KagedError(
        f"The plugin names a file that is not passed on: {why}.",
        code="plugin_file_refused",
        fix="Report it to the author of the plugin; the plugin protocol page says what may pass.",
    )
