"""The process that runs one script: Lua 5.4, asked over standard input, answering over output.

Started by path, not by module name, and importing nothing of kaged. Lua gets six functions from
here; they take and give bytes and numbers, hold no object of Python's, and never raise. Whatever a
script manages inside, this process has no network, no files but these, and no power of its own.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MAX_LINE_BYTES = 8 * 1024 * 1024
_INTERNAL = -32603


def refuse(_object: object, _name: object, _setting: object) -> object:
    """Refuse every look at a Python object, should one ever be found."""
    raise AttributeError("there is nothing here")


def serve(memory_bytes: int) -> None:
    """Answer the host until its end of the pipe closes."""
    from lupa import lua54  # noqa: PLC0415 - found below HERE only

    made: Any = lua54.LuaRuntime  # its own stub file knows none of its options

    answers = os.dup(1)
    os.dup2(2, 1)  # whatever else writes to standard output goes to the log
    source = io.FileIO(0, "rb")
    lines = io.BufferedReader(source, 64 * 1024)

    def send(line: bytes) -> None:
        view = memoryview(line + b"\n")
        try:
            while view:
                view = view[os.write(answers, view) :]
        except OSError:
            os._exit(0)  # the host is gone

    def receive() -> bytes:
        line = lines.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            os._exit(0)
        return line

    lua = made(
        encoding=None,
        source_encoding=None,
        register_eval=False,
        register_builtins=False,
        attribute_filter=refuse,
        unpack_returned_tuples=False,
        max_memory=memory_bytes,
    )
    prelude = (HERE / "prelude.lua").read_bytes()
    answer = lua.execute(prelude, send, receive, now_ms, encode64, decode64, digest)
    while True:
        line = receive()
        try:
            answer(line)
        except (lua54.LuaError, MemoryError) as error:
            answer(None)
            failed(line, error, send)
        if lua.get_memory_used() > memory_bytes // 2:
            answer(None)  # what one entry left behind is not the next one's loss


def now_ms() -> int:
    """Return wall time in milliseconds."""
    return time.time_ns() // 1_000_000


def encode64(data: bytes) -> bytes:
    """Write bytes in letters."""
    return base64.b64encode(data)


def decode64(data: bytes) -> bytes:
    """Read them again; nothing when they are none."""
    try:
        return base64.b64decode(data)
    except (binascii.Error, ValueError):
        return b""


def digest(name: bytes, first: bytes, second: bytes, third: bytes, count: int) -> bytes | None:
    """Work out a function of `kage.crypto` that needs no key of the host; None if it cannot be."""
    import hashlib  # noqa: PLC0415 - few scripts ask for it
    import hmac  # noqa: PLC0415 - as above

    def keyed(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, "sha256").digest()

    def expanded() -> bytes:
        key, block, made = keyed(second, first), b"", b""
        while len(made) < count:
            block = keyed(key, block + third + bytes([len(made) // 32 + 1]))
            made += block
        return made[:count]

    known = {
        b"sha256": lambda: hashlib.sha256(first).digest(),
        b"sha512": lambda: hashlib.sha512(first).digest(),
        b"hmac_sha256": lambda: keyed(first, second),
        b"hkdf_sha256": expanded,
        b"random_bytes": lambda: os.urandom(count),
        b"to_base64": lambda: base64.b64encode(first),
        b"from_base64": lambda: base64.b64decode(first, validate=True),
        b"to_hex": lambda: first.hex().encode(),
        b"from_hex": lambda: binascii.unhexlify(first),
    }
    try:
        return known[name]()
    except (KeyError, ValueError, OverflowError, MemoryError):
        return None


def failed(line: bytes, error: Exception, send: Any) -> None:
    """Answer a request that Lua could not answer itself, for want of memory."""
    call_id = json.loads(line).get("id")
    if call_id is not None:
        words = str(error).splitlines()[0][:200] if str(error) else "not enough memory"
        body = {"jsonrpc": "2.0", "id": call_id, "error": {"code": _INTERNAL, "message": words}}
        send(json.dumps(body).encode())


if __name__ == "__main__":
    sys.path.append(str(HERE))
    serve(int(sys.argv[1]))
