"""`code.lsp` on a warm server against a minimal client of the same server, in the same run.

The server is `ty`. Questions alternate between the two, so that both see the same machine.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.lsp_lab import (  # noqa: E402  # pyright: ignore[reportMissingImports] - beside the tests
    LspLab,
)
from kaged.toolbox.lsp.handshake import CLIENT_CAPABILITIES  # noqa: E402 - likewise
from scoreboard import Row, at_most, row, show  # noqa: E402 - likewise

ROUNDS = 60
STARTS = 3
FILES = 40
SERVER = (str(Path(sys.executable).parent / "ty"), "server")
TYPES = (
    "class User:\n    name: str = 'x'\n\n\ndef greet(user: User) -> str:\n    return user.name\n"
)
USE = "from types_ import User, greet\n\nprint(greet(User()))\n"


class Minimal:
    """The least that speaks to a language server: frames, ids, and an answer to every request."""

    def __init__(self) -> None:
        self._ids = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def start(self, root: Path) -> None:
        self._process = await asyncio.create_subprocess_exec(  # noqa: TID251 - the peer is outside of kaged
            *SERVER,
            cwd=root,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._reading = asyncio.ensure_future(self._read())  # noqa: TID251 - likewise
        uri = root.as_uri()
        await self.ask(
            "initialize",
            {"processId": None, "rootUri": uri, "capabilities": CLIENT_CAPABILITIES,
             "workspaceFolders": [{"uri": uri, "name": "x"}]},
        )  # fmt: skip
        self.send({"method": "initialized", "params": {}})

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def open(self, file: Path) -> None:
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1}
        text = file.read_text("utf-8")
        self.send(
            {"method": "textDocument/didOpen",
             "params": {"textDocument": {**document, "text": text}}}
        )  # fmt: skip

    async def ask(self, method: str, params: Any) -> Any:
        self._ids += 1
        future = self._waiting[self._ids] = asyncio.get_running_loop().create_future()
        self.send({"id": self._ids, "method": method, "params": params})
        return await future

    async def _read(self) -> None:
        out = self._process.stdout
        assert out is not None
        while header := await out.readuntil(b"\r\n\r\n"):
            length = int(header.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            message = json.loads(await out.readexactly(length))
            if "method" in message and "id" in message:
                items = message.get("params", {}).get("items", [])
                self.send({"id": message["id"], "result": [None for _ in items] or None})
            elif "id" in message:
                self._waiting.pop(message["id"]).set_result(message.get("result"))

    async def close(self) -> None:
        self._reading.cancel()
        self._process.kill()
        await self._process.wait()


def make(folder: Path) -> Any:
    lab = LspLab(folder, commands={"python": SERVER}, limit_s=30.0)
    lab.write("types_.py", TYPES)
    for number in range(FILES):
        lab.write(f"use{number}.py", USE)
    return lab


async def warm(folder: Path) -> list[Row]:
    lab, plain = make(folder), Minimal()
    await plain.start(lab.root)
    file = lab.root / "types_.py"
    plain.open(file)
    position = {"textDocument": {"uri": file.as_uri()}, "position": {"line": 4, "character": 5}}
    asked = {
        "definition": ("textDocument/definition", position),
        "hover": ("textDocument/hover", position),
        "references": (
            "textDocument/references", {**position, "context": {"includeDeclaration": False}},
        ),
    }  # fmt: skip
    rows: list[Row] = []
    for action, (method, params) in asked.items():
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(ROUNDS + 10):
            began = time.perf_counter()
            await lab.lsp(action, path="./types_.py", line=5, character=5)
            middle = time.perf_counter()
            await plain.ask(method, params)
            if number >= 10:
                ours.append(middle - began)
                theirs.append(time.perf_counter() - middle)
        mine, other = statistics.median(ours) * 1000, statistics.median(theirs) * 1000
        rows.append(
            row(
                f"code.lsp {action}, warm",
                mine,
                "ms",
                against="a minimal client",
                peer=other,
                target=at_most(3, mine - other, "ms added"),
                samples=ours,
            )
        )
    await plain.close()
    await lab.close()
    return rows


async def first(folder: Path) -> Row:
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(STARTS):
        place = folder / str(number)
        place.mkdir()
        lab, plain = make(place), Minimal()
        file = lab.root / "use0.py"
        began = time.perf_counter()
        await plain.start(lab.root)
        plain.open(file)
        await plain.ask("textDocument/diagnostic", {"textDocument": {"uri": file.as_uri()}})
        middle = time.perf_counter()
        await lab.lsp("diagnostics", path="./use0.py")
        ours.append(time.perf_counter() - middle)
        theirs.append(middle - began)
        await plain.close()
        await lab.close()
    mine, other = min(ours) * 1000, min(theirs) * 1000
    return row(
        "code.lsp first diagnostics",
        mine,
        "ms",
        against="a minimal client",
        peer=other,
        target=at_most(1.2, mine / other, "x"),
        samples=ours,
    )


async def _all() -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-lsp-"))
    try:
        (folder / "warm").mkdir()
        return [*await warm(folder / "warm"), await first(folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run() -> list[Row]:
    """Return the rows of this benchmark."""
    return asyncio.run(_all())


if __name__ == "__main__":
    show(run())
