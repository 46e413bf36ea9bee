"""People whom a front end names, in whole tests: each with their own client of the daemon's TCP."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from websockets.sync.client import connect

from whole.harness.daemon import Daemon
from whole.harness.services import FRONT_END, Person
from whole.harness.talk import Listener

PATIENCE_S = 60.0

__all__ = ["FRONT_END", "Guest", "Person"]


class Guest:
    """One person in one chat, who reaches the daemon through the front end."""

    def __init__(
        self,
        daemon: Daemon,
        person: Person,
        *,
        token: str = "",
        address: str = "127.0.0.1",
        **said: str,
    ) -> None:
        """`said` is what the front end says about them beside that: headers by name.

        `address` is where the front end runs.
        """
        self.daemon = daemon
        self.person = person
        more = {name.replace("_", "-"): value for name, value in said.items()}
        self.token = token or daemon.token
        bearer = f"Bearer {self.token}"
        self._headers = {"Authorization": bearer, **person.headers, **more}
        self._client = httpx.Client(
            base_url=daemon.url,
            headers=self._headers,
            timeout=PATIENCE_S,
            trust_env=False,
            transport=httpx.HTTPTransport(local_address=address),
        )

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send one request below `/api/v1`, whatever comes of it."""
        Daemon.spoken += 1
        return self._client.request(method, f"/api/v1{path}", json=body)

    def raw(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send one request to a whole path."""
        Daemon.spoken += 1
        return self._client.request(method, path, **more)

    def get(self, path: str) -> Any:
        """GET something that has to be there."""
        got = self.ask("GET", path)
        assert got.is_success, (path, got.text[:500])
        return got.json()

    def post(self, path: str, body: Any = None) -> Any:
        """POST something that has to work."""
        got = self.ask("POST", path, body if body is not None else {})
        assert got.is_success, (path, got.text[:500])
        return got.json()

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Send a request that has to be refused; returns its status and code."""
        got = self.ask(method, path, body)
        assert got.is_error, (method, path, got.text[:500])
        return got.status_code, got.json()["error"]["code"]

    @contextmanager
    def listening(self, query: str = "") -> Generator[Listener]:
        """Yield a client of the event stream, as this person."""
        address = self.daemon.url.replace("http", "ws", 1).rstrip("/")
        with connect(f"{address}/api/v1/events{query}", additional_headers=self._headers) as stream:
            Daemon.spoken += 1
            assert json.loads(stream.recv(PATIENCE_S))["type"] == "hello"
            yield Listener(stream.recv)

    def mcp(self, project_id: str, method: str, params: Mapping[str, Any]) -> Any:
        """Ask the project's agent over MCP's streamable HTTP, in a session of its own."""
        path = f"/api/v1/projects/{project_id}/mcp"
        accept = {"Accept": "application/json, text/event-stream"}
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        begun = self.raw("POST", path, json=_rpc(1, "initialize", hello), headers=accept)
        assert begun.is_success, begun.text[:500]
        session = {**accept, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert self.raw("POST", path, json=note, headers=session).is_success
        got = self.raw("POST", path, json=_rpc(2, method, dict(params)), headers=session)
        assert got.is_success, got.text[:500]
        assert self.raw("DELETE", path, headers=session).is_success  # there is room for 64
        lines = [one for one in got.text.splitlines() if one.startswith("data: {")]
        return json.loads(lines[-1].removeprefix("data: ") if lines else got.text)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _rpc(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
