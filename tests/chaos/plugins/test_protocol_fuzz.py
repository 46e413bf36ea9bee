"""Hostile messages by the hundred thousand against each state machine: no crash, no growth."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import thorough
from fakes.plugin_lab import PluginLab
from kaged.base import JsonValue, KagedError
from kaged.cage.pipe_end import PipeEnd
from kaged.peer import Connection, ConnectionLimits
from kaged.plugins.states import PluginState
from kaged.sdk import CallContext, create_plugin
from kaged.sdk.log import Log
from kaged.wire.correlator import Ignored
from kaged.wire.errors import RpcError
from kaged.wire.messages import MessageId, Notification, Refused, Request, Response
from thorough import THOROUGH, examples

MESSAGES = examples(250_000)  # ten million in the longer form
CONVERSATION_MESSAGES = 20_000
PATIENCE_S = examples(300)
SEED = thorough.SEED if THOROUGH else 20261115
OPEN = 424242  # stands for the id of a call that is open when the line is sent


class Deaf:
    """An owner that answers at once and counts what it hears."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def answer(self, request: Request) -> JsonValue:
        self._count("answered")
        return None

    def asked(self, request: Request) -> None:
        self._count("asked")

    def notified(self, notification: Notification) -> None:
        self._count("notified")

    def refused(self, refused: Refused) -> None:
        self._count(type(refused).__name__)

    def ignored(self, response: Response, why: Ignored) -> None:
        self._count(f"ignored {why}")

    def out_of_step(self, message_id: MessageId) -> None:
        self._count("out_of_step")

    def broke(self, error: KagedError) -> None:
        self._count("broke")

    def closed(self) -> None:
        self._count("closed")


class Asked:
    """Reads what a connection writes to a plugin, and knows the numbers of the calls in it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._rest = b""
        self.newest = 0

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._fd, 1 << 20):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if message.get("method") == "a.b":
                        self.newest = message["id"]

    async def after(self, call_id: int) -> int:
        """Wait for a call that is newer than this one; returns its number."""
        while self.newest <= call_id:
            await asyncio.sleep(0)
            self.drain()
        return self.newest


def hostile_line(dice: random.Random) -> bytes:
    """Make one line that a broken, lying or attacking plugin might write."""
    values: list[Any] = [
        None,
        True,
        0,
        -1,
        1.5,
        2**70,
        "",
        "x",
        [],
        {},
        [1],
        {"a": 1},
        "\ud7ff",
        "é" * 20,
    ]
    kind = dice.randrange(10)
    if kind == 0:
        return dice.randbytes(dice.randrange(1, 80)).replace(b"\n", b" ")
    if kind == 1:
        return b"[" * dice.randrange(1, 600)
    message: dict[str, Any] = {"jsonrpc": dice.choice(["2.0", "2.0", "2.0", "1.0", 2.0, None])}
    if kind in {2, 3, 4}:
        message["id"] = dice.choice([OPEN, OPEN, OPEN, 0, -5, 10**6, "a", None, 1.0, [], True])
        if dice.random() < 0.8:
            message["result"] = dice.choice(values)
        if dice.random() < 0.3:
            message["error"] = dice.choice(
                [None, {}, {"code": 1}, {"code": "x", "message": "y"}, 5]
            )
    elif kind in {5, 6}:
        message["method"] = dice.choice(["kaged.storage.exec", "x", "", "a.b", 5, None, "é"])
        message["params"] = dice.choice(values)
        message["id"] = dice.choice([1, 2, "z", None, 3.5, {}])
    elif kind in {7, 8}:
        message["method"] = dice.choice(["a.b", "kaged.x", "Catalog", "x" * 500])
        message["params"] = dice.choice(values)
    else:
        return json.dumps([message] * dice.randrange(4)).encode()
    text = json.dumps(message)
    if dice.random() < 0.1:
        text = text[: dice.randrange(len(text))]
    if dice.random() < 0.05:
        text = text.replace("1.5", "NaN")
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.thorough(random=True)
async def test_hostile_messages_neither_crash_nor_grow_the_host() -> None:
    read_fd, write_fd = os.pipe()
    sink_read, sink_write = os.pipe()
    owner = Deaf()
    connection = Connection(
        owner, name="hostile", limits=ConnectionLimits(open_calls=64, unasked_per_s=10**9)
    )
    await connection.attach(PipeEnd(read_fd), PipeEnd(sink_write))
    asked = Asked(sink_read)
    dice = random.Random(SEED)
    loop = asyncio.get_running_loop()
    calls: list[asyncio.Task[Any]] = []

    async def ask() -> None:
        # A hostile answer may be an error; that is an outcome, not a crash.
        with contextlib.suppress(RpcError):
            await connection.request("a.b", {}, 3600.0)

    lines = [hostile_line(dice) for _ in range(20_000)]
    early = 0
    for n in range(MESSAGES):
        if n % 500 == 0:
            await asyncio.sleep(0)
            asked.drain()
            calls = [call for call in calls if not call.done()]
            fresh = 8 - min(8, len(calls))
            calls += [loop.create_task(ask()) for _ in range(fresh)]
            if fresh:
                await asked.after(asked.newest + fresh - 1)
        last = asked.newest - n % 3
        line = lines[dice.randrange(len(lines))].replace(b"424242", b"%d" % last)
        connection.data_received(line + b"\n")
        if n == MESSAGES // 5:
            gc.collect()
            early = len(gc.get_objects())
    await asyncio.sleep(0)
    gc.collect()
    late = len(gc.get_objects())
    assert "broke" not in owner.counts
    heard = sum(owner.counts.values())
    assert heard > MESSAGES * 0.7, owner.counts
    assert {"Noise", "Invalid", "Batch", "notified", "asked"} <= set(owner.counts)
    assert late - early < 2000, (early, late)
    asked.drain()
    answer = loop.create_task(connection.request("a.b", {}, 3600.0))
    last = await asked.after(asked.newest)
    connection.data_received(b'{"jsonrpc":"2.0","id":%d,"result":"alive"}\n' % last)
    assert await answer == "alive"
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await connection.close()
    os.close(write_fd)
    os.close(sink_read)


GUEST_MESSAGES = examples(100_000)
HOST_METHODS = ("initialize", "initialized", "ping", "config.update", "kaged.cancel", "echo.say")


def hostile_host_line(dice: random.Random) -> bytes:
    """Make one line that a broken host might write: any of its methods, with anything in it."""
    if dice.random() < 0.6:
        return hostile_line(dice)
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": dice.choice(HOST_METHODS)}
    if dice.random() < 0.7:
        message["id"] = dice.choice([OPEN, OPEN, OPEN, 1, 2, 3, "x", -1, None])
    message["params"] = dice.choice(
        [None, {}, [], {"id": 1}, {"id": [1]}, {"config": {"a": 1}}, {"plugin_name": "p"}, {"x": 1}]
    )
    return json.dumps(message).encode()


class Silent(Log):
    """Writes nothing: there would be a line for each message."""

    def _write(self, level: str, message: str, fields: dict[str, Any]) -> None:
        """Drop it."""


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.thorough(random=True)
async def test_a_hostile_host_neither_crashes_nor_grows_a_plugin() -> None:
    async def echo(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
        await asyncio.sleep(0)
        return params

    plugin = create_plugin("p", "1.0.0", methods={"echo.say": echo})
    plugin.log = Silent()
    written = 0

    def write(data: bytes) -> None:
        nonlocal written
        for line in data.splitlines():
            json.loads(line)
            written += 1

    conversation = plugin.converse(write)
    greeting = {"plugin_name": "p", "api_version": 1}
    for first in (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting},
        {"jsonrpc": "2.0", "method": "initialized"},
    ):
        conversation.receive(json.dumps(first).encode())
    dice = random.Random(SEED)
    lines = [hostile_host_line(dice) for _ in range(20_000)]
    lines = [line for line in lines if b"shutdown" not in line]
    early = 0
    for n in range(GUEST_MESSAGES):
        # Many calls have a number of their own: whatever is kept of them, grows.
        line = lines[dice.randrange(len(lines))]
        conversation.receive(line.replace(b"%d" % OPEN, b"%d" % (n + 10)))
        if n % 200 == 0:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if n == GUEST_MESSAGES // 5:
            gc.collect()
            early = len(gc.get_objects())
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert len(gc.get_objects()) - early < 2000
    assert written > GUEST_MESSAGES * 0.3
    # No call is still open: there is none whose end could be told when all are cancelled.
    before = written
    for call_id in (1, 2, 3, -1, 0, -5, 10**6, "x", "a", "z"):
        cancel = {"jsonrpc": "2.0", "method": "kaged.cancel", "params": {"id": call_id}}
        conversation.receive(json.dumps(cancel).encode())
    for _ in range(5):
        await asyncio.sleep(0)
    assert written == before
    await conversation.stop()


@pytest.mark.timeout(300)
async def test_a_hostile_plugin_neither_crashes_nor_grows_its_conversation(tmp_path: Path) -> None:
    lab = PluginLab(tmp_path, limits=ConnectionLimits(unasked_per_s=10**9))
    await lab.open()
    try:
        plugin = await lab.running({"on": {"a.b": [{"result": "alive"}]}})
        conversation = plugin.conversation
        assert conversation is not None
        connection = conversation.peer.connection
        dice = random.Random(SEED)
        lines = [hostile_line(dice) for _ in range(5000)]
        for n in range(CONVERSATION_MESSAGES):
            connection.data_received(lines[dice.randrange(len(lines))] + b"\n")
            if n % 100 == 0:
                # Its refusals go to the real process, which reads them and stays silent.
                lab.events.clear()
                lab.logs.clear()
                lab.notifications.clear()
                await lab.parts.audit.flush()
        assert plugin.state is PluginState.RUNNING
        assert await lab.call(plugin) == "alive"
    finally:
        await lab.close()
