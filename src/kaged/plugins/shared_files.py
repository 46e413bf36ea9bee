"""`SharedFiles`: two folders that one plugin process shares with the host, for bytes beside calls.

What is too large for a line, or no text, passes as a file and is named in the message: the host
writes into `in`, which the plugin only reads, and the plugin into `out`. The plugin may put there
what it likes, so a file is opened once, without following or waiting for anything, and checked as
it is then: a plain file of its own, of the size and type that were said. What lies there is counted
again and again while the process lives, and who leaves too much is ended.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.cage import HostMount
from kaged.kernel.policy import FsMode
from kaged.wire.framing import Unsendable

MAX_BYTES: Final = 32 * 1024 * 1024
MAX_REFERENCES: Final = 16
MAX_FOLDER_BYTES: Final = 128 * 1024 * 1024
"""How much either folder may hold at once."""
MAX_ENTRIES: Final = 256
"""How many files and folders the plugin may have in `out`."""
_DEEPEST: Final = 16
_BLOCK_BYTES: Final = 512
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
        self._put_bytes: dict[str, int] = {}

    def open(self) -> None:
        """Make the folders. Blocks."""
        for one in (self._in, self._out):
            one.mkdir(parents=True, mode=0o700)

    def close(self) -> None:
        """Remove them, once the process is gone. Blocks."""
        clear_left(self._folder)

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
        return {
            "in": IN_CAGE,
            "out": OUT_CAGE,
            "max_bytes": MAX_BYTES,
            "folder_bytes": MAX_FOLDER_BYTES,
            "folder_files": MAX_ENTRIES,
            "types": types,
        }

    def excess(self) -> str | None:
        """Return what of `out` is more than it may be; None when nothing is. Blocks."""
        entries, used = 0, 0
        folders = [(self._out, 0)]
        while folders:
            folder, depth = folders.pop()
            try:
                with os.scandir(folder) as found:
                    for one in found:
                        entries += 1
                        if entries > MAX_ENTRIES:
                            return f"more than {MAX_ENTRIES} shared files"
                        if one.is_dir(follow_symlinks=False):
                            folders.append((Path(one.path), depth + 1))
                        with suppress(FileNotFoundError):  # it takes them away as it likes
                            used += one.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
            except OSError:
                # It may lock its own folders; what is in there then counts as too much, unless the
                # folder has gone meanwhile.
                if folder != self._out and folder.exists():
                    return "a shared folder that cannot be read"
            if depth > _DEEPEST:
                return f"shared folders more than {_DEEPEST} deep"
            if used > MAX_FOLDER_BYTES:
                return f"more than {MAX_FOLDER_BYTES} bytes of shared files"
        return None

    # -- to the plugin -------------------------------------------------------------------------

    async def put(self, members: JsonObject) -> JsonObject:
        """Write members of a message that is too long; returns what stands for them.

        Raises:
            Unsendable: they are too long for a file as well, or it cannot be written.
        """
        self._last += 1
        name = f"payload-{self._last}.json"
        room = MAX_FOLDER_BYTES - sum(self._put_bytes.values())
        self._put_bytes[name] = MAX_BYTES  # until its size is known
        try:
            size = await asyncio.to_thread(_write, self._in / name, members, min(MAX_BYTES, room))
        except BaseException:
            del self._put_bytes[name]
            raise
        self._put_bytes[name] = size
        return {PAYLOAD: {"name": name, "size": size, "type": "application/json"}}

    def take_back(self, reference: JsonObject) -> None:
        """Remove what was put there, now that the plugin has answered."""
        about = reference.get(PAYLOAD)
        if isinstance(about, dict):
            self._put_bytes.pop(str(about["name"]), None)
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
    """Remove what processes that are gone have left, also what they have locked. Blocks."""
    folders = [folder]
    while folders:
        one = folders.pop()
        with suppress(OSError):
            one.chmod(0o700)
            with os.scandir(one) as found:
                folders += [Path(each.path) for each in found if each.is_dir(follow_symlinks=False)]
    shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, members: JsonObject, room: int) -> int:
    data = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    if len(data) > room:
        raise Unsendable(f"the message has {len(data)} bytes, there is room for {max(0, room)}")
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
