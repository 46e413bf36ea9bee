"""The WebSocket of the Slack plugin against a library's server, and against peers that lie."""

from __future__ import annotations

import base64
import hashlib
import importlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest
from websockets.sync.server import ServerConnection, serve

from kaged.sdk.http_client import Unreachable

PLUGIN = Path(__file__).parents[3] / "plugins" / "gallery" / "slack"
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    """Yield the plugin's module, found as the plugin itself finds it."""
    before = sys.dont_write_bytecode
    sys.path.insert(0, str(PLUGIN))
    try:
        sys.dont_write_bytecode = True  # the folder is what others install meanwhile
        module = importlib.import_module("websocket")
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(PLUGIN))
    yield module
    del sys.modules["websocket"]


class Server:
    """A library's server that runs `act` with each connection."""

    def __init__(self, act: Callable[[ServerConnection], None]) -> None:
        self._server = serve(act, "127.0.0.1", 0, max_size=2_000_000)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}/link/?ticket=1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()


def lie(
    reply: Callable[[str], bytes], then: Callable[[socket.socket], None] = lambda link: None
) -> tuple[str, threading.Thread]:
    """Answer one handshake with bytes, do something; returns the address and who does it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def act() -> None:
        link, _ = listening.accept()
        with listening, link:
            heard = b""
            while b"\r\n\r\n" not in heard and (data := link.recv(65_536)):
                heard += data
            key = heard.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0].decode()
            link.sendall(reply(key))
            link.settimeout(PATIENCE_S)
            then(link)
            try:
                while link.recv(65_536):
                    pass
            except OSError:
                pass

    thread = threading.Thread(target=act)
    thread.start()
    return f"ws://127.0.0.1:{listening.getsockname()[1]}/", thread


def agreed(frames: bytes) -> Callable[[str], bytes]:
    """Return a peer that agrees on the protocol and then sends frames."""

    def reply(key: str) -> bytes:
        made = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
        lines = ("HTTP/1.1 101 x", "Upgrade: websocket", "Connection: Upgrade")
        return "\r\n".join((*lines, f"Sec-WebSocket-Accept: {made}", "", "")).encode() + frames

    return reply


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 500_000])
def test_messages_of_every_length_come_and_go_unchanged(plugin: ModuleType, size: int) -> None:
    text = ("å" + "x" * size)[:size]

    def echo(link: ServerConnection) -> None:
        for said in link:
            link.send(said)

    with Server(echo) as server:
        link: Any = plugin.WebSocket(server.url)
        link.send(text)
        assert link.receive() == text
        link.close()


def test_pieces_are_joined_and_a_ping_between_them_is_answered(plugin: ModuleType) -> None:
    answered = threading.Event()

    def act(link: ServerConnection) -> None:
        def pieces() -> Iterator[str]:
            yield "one "
            if link.ping(b"are you there").wait(PATIENCE_S):
                answered.set()
            yield "two"

        link.send(pieces())

    with Server(act) as server:
        link: Any = plugin.WebSocket(server.url)
        assert link.receive() == "one two"
        assert answered.is_set()
        assert link.receive() is None, "the server's end is an end and no error"
        link.close()


def test_a_quiet_connection_is_asked_if_it_lives_and_one_that_is_dead_is_given_up(
    plugin: ModuleType,
) -> None:
    heard: list[bytes] = []

    def after_two_pings(link: socket.socket) -> None:
        for answer in (b"\x8a\x00", b"\x81\x0astill here"):
            heard.append(link.recv(6, socket.MSG_WAITALL)[:2])
            link.sendall(answer)

    url, thread = lie(agreed(b""), after_two_pings)
    alive: Any = plugin.WebSocket(url, quiet_s=0.05)
    assert alive.receive() == "still here"
    assert heard == [b"\x89\x80", b"\x89\x80"], "pings, masked and empty"
    alive.close()
    thread.join()
    url, thread = lie(agreed(b""))
    dead: Any = plugin.WebSocket(url, quiet_s=0.05)
    with pytest.raises(Unreachable, match="timed out"):
        dead.receive()
    dead.close()
    thread.join()


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (b"\x81\x7f" + (1 << 40).to_bytes(8, "big"), "too large"),
        (b"\x81\x85aaaahello", "not agreed on"),
        (b"\xc1\x05hello", "not agreed on"),
        (b"\x82\x05hello", "kind 2"),
        (b"\x81\x02\xff\xff", "decode"),
        ((b"\x01\x7f" + (600_000).to_bytes(8, "big") + b"x" * 600_000) * 2, "too large"),
    ],
)
def test_frames_that_are_wrong_or_too_much_end_it(
    plugin: ModuleType, frames: bytes, why: str
) -> None:
    url, thread = lie(agreed(frames))
    link: Any = plugin.WebSocket(url)
    with pytest.raises(Unreachable, match=why):
        link.receive()
    link.close()
    thread.join()


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "no WebSocket"),
        (b"HTTP/1.1 101 x\r\nSec-WebSocket-Accept: c29tZWJvZHkgZWxzZQ==\r\n\r\n", "another"),
        (b"x" * 50_000, "too large"),
    ],
)
def test_who_does_not_agree_is_no_websocket(plugin: ModuleType, reply: bytes, why: str) -> None:
    url, thread = lie(lambda _: reply)
    with pytest.raises(Unreachable, match=why):
        plugin.WebSocket(url)
    thread.join()
