"""What an access token has opened ends soon after its person signed out; others' go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from whole.harness.daemon import PATIENCE_S, Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.openid import LOCAL, Browser, OpenIdServer
from whole.harness.project import Project

SOON_S = 10.0
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@pytest.fixture(scope="module")
def daemon(module_path: Path, provider: OpenIdServer, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that is told who signs out."""
    made = Daemon(module_path / "h", config=provider.config(), local=LOCAL + model.local_toml())
    made.start()
    provider.tell(made)
    yield made
    made.close()


class _Program:
    """A program with somebody's token: two streams, and a session of MCP over HTTP."""

    def __init__(self, held: ExitStack, daemon: Daemon, project: Project, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        base = daemon.url.replace("http", "ws", 1).rstrip("/") + "/api/v1"

        def opened(path: str) -> ClientConnection:
            Daemon.spoken += 1
            return held.enter_context(
                connect(f"{base}{path}", additional_headers=headers, proxy=None)
            )

        place = f"/projects/{project.id}/mcp"
        self.streams = (opened("/events"), opened(f"{place}/stream"))
        assert json.loads(self.streams[0].recv(PATIENCE_S))["type"] == "hello"
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        self.streams[1].send(json.dumps(begin) + "\n")
        assert "result" in json.loads(self.streams[1].recv(PATIENCE_S))
        self._http = held.enter_context(
            httpx.Client(
                headers={**headers, "Accept": "application/json, text/event-stream"},
                timeout=PATIENCE_S,
                trust_env=False,
            )
        )
        self._url = f"{daemon.url}/api/v1{place}"
        got = self._http.post(self._url, json=begin)
        assert got.is_success, got.text
        self._http.headers["Mcp-Session-Id"] = got.headers["mcp-session-id"]
        assert self.asks() == 200

    def asks(self) -> int:
        """Ask something in the session of MCP over HTTP; returns the status."""
        Daemon.spoken += 1
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        return self._http.post(self._url, json=ping).status_code

    def ends(self) -> list[int]:
        """Read both streams to their end; returns how they were closed."""
        for one in self.streams:
            with pytest.raises(ConnectionClosed):
                _read_on(one)
        return [one.close_code or 0 for one in self.streams]


def _token(daemon: Daemon, provider: OpenIdServer, who: str) -> str:
    """Return a token that counts: one of the second in which its person signed out does not.

    A token says only the second in which it was given, and the test before ended with a sign-out.
    """

    def counting() -> str:
        token = provider.access_token(who, daemon.url)
        headers = {"Authorization": f"Bearer {token}"}
        Daemon.spoken += 1
        got = httpx.get(f"{daemon.url}/api/v1/auth/whoami", headers=headers, timeout=PATIENCE_S)
        return token if got.is_success else ""

    return wait_for(counting, f"a token of {who} that counts")


def _read_on(stream: ClientConnection) -> None:
    while True:
        stream.recv(SOON_S)


@pytest.mark.parametrize("by", ["provider", "operator"])
def test_streams_and_sessions_of_a_token_end_with_the_sign_out_of_its_person(
    daemon: Daemon,
    provider: OpenIdServer,
    project: Project,
    browser: Callable[[], Browser],
    by: str,
) -> None:
    opened = browser()
    assert opened.sign_in("ann").status_code == 200
    tokens = {one: _token(daemon, provider, one) for one in ("ann", "bob")}
    with ExitStack() as held:
        # Two programs of hers, and one of somebody else.
        hers = [_Program(held, daemon, project, tokens["ann"]) for _ in range(2)]
        his = _Program(held, daemon, project, tokens["bob"])
        if by == "provider":
            opened.sign_out_everywhere()
        else:
            daemon.cli("people", "sign-out", "ann")
        began_s = time.monotonic()
        assert [one.ends() for one in hers] == [[1008, 1008], [1008, 1008]]
        assert time.monotonic() - began_s < SOON_S
        assert [one.asks() for one in hers] == [401, 401]
        assert his.asks() == 200
        assert all(one.ping().wait(PATIENCE_S) for one in his.streams)
