"""Streams that are open while the operator changes what people may do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from whole.harness.daemon import Daemon, wait_for
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.project import Project

Come = Callable[..., Guest]
PEOPLE = '[people.ann]\nroles = ["lead"]\n[people.bob]\nroles = ["guest"]\n'
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@pytest.fixture(scope="module")
def daemon(module_path: Path) -> Iterator[Daemon]:
    """Yield a daemon whose operator names Ann and Bob."""
    made = Daemon(module_path / "h", config=FRONT_END + PEOPLE)
    made.start()
    yield made
    made.close()


def _reload(daemon: Daemon, text: str) -> None:
    before = len(daemon.audit("daemon.config_reloaded"))
    daemon.write("config.toml", text)
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: len(daemon.audit("daemon.config_reloaded")) > before, "the reload")


def _open(held: ExitStack, guest: Guest, path: str) -> ClientConnection:
    """Open a stream that is closed with the test."""
    address = guest.daemon.url.replace("http", "ws", 1).rstrip("/")
    bearer = {"Authorization": f"Bearer {guest.token}"}
    headers = {**bearer, **guest.person.headers}
    return held.enter_context(connect(f"{address}/api/v1{path}", additional_headers=headers))


def _closed(stream: ClientConnection) -> tuple[int, str]:
    """Read a stream to its end; returns how it was closed."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            stream.recv(60.0)
    return stream.close_code or 0, stream.close_reason or ""


def _ping(stream: ClientConnection) -> bool:
    stream.send(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"}) + "\n")
    while True:
        said = json.loads(stream.recv(60.0))
        if said.get("id") == 7:
            return "result" in said


def _hears(daemon: Daemon, project: Project, guest: Guest, stream: ClientConnection) -> bool:
    session = guest.post(f"/projects/{project.id}/sessions", {})["id"]
    while True:
        said = json.loads(stream.recv(60.0))
        if said.get("topic") == f"session:{session}":
            return True


def test_who_was_removed_hears_nothing_more_and_others_go_on(
    daemon: Daemon, project: Project, guest: Come
) -> None:
    kept = (daemon.home / "config.toml").read_text(encoding="utf-8")
    ann, bob, operator = guest("ann"), guest("bob"), guest("")
    mcp = f"/projects/{project.id}/mcp/stream"
    with ExitStack() as held:
        events = {one: _open(held, one, "/events") for one in (ann, bob, operator)}
        agents = {one: _open(held, one, mcp) for one in (ann, bob, operator)}
        for one in agents.values():
            hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
            one.send(json.dumps(hello) + "\n")
        try:
            _reload(daemon, kept.replace('[people.bob]\nroles = ["guest"]\n', ""))
            assert _closed(events[bob]) == (1008, "access_changed")
            assert _closed(agents[bob]) == (1008, "access_changed")
            for one in (ann, operator):
                assert _hears(daemon, project, one, events[one])
                assert _ping(agents[one])
            # The second reload gives Ann another role: she connects again, and is let in as that.
            _reload(daemon, kept.replace('"lead"', '"chief"'))
            assert _closed(events[ann]) == (1008, "access_changed")
            assert _closed(agents[ann]) == (1008, "access_changed")
            assert _hears(daemon, project, operator, events[operator])
            again = _open(held, guest("ann"), "/events")
            assert _hears(daemon, project, guest("ann"), again)
        finally:
            _reload(daemon, kept)
    assert "stream.access_changed" in daemon.log()


def test_a_session_of_mcp_over_http_goes_on_with_the_rights_of_each_request(
    daemon: Daemon, project: Project, guest: Come
) -> None:
    kept = (daemon.home / "config.toml").read_text(encoding="utf-8")
    ann, place = guest("ann"), f"/api/v1/projects/{project.id}/mcp"
    accept = {"Accept": "application/json, text/event-stream"}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    begun = ann.raw("POST", place, json=first, headers=accept)
    named = {**accept, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {}}
    assert ann.raw("POST", place, json=ping, headers=named).is_success
    try:
        _reload(daemon, kept.replace('"lead"', '"chief"'))
        assert ann.raw("POST", place, json=ping, headers=named).is_success
        _reload(daemon, kept.replace('"lead"]', '"lead"]\nprojects = []'))
        assert ann.raw("POST", place, json=ping, headers=named).status_code == 404
        bob = guest("bob")
        assert bob.raw("POST", place, json=ping, headers=named).status_code == 404, "not his"
    finally:
        _reload(daemon, kept)


def test_the_streams_of_a_revoked_account_end(daemon: Daemon, project: Project) -> None:
    tokens = {
        name: daemon.cli("service-account", "create", name).out.strip() for name in ("one", "two")
    }
    one, two = (Guest(daemon, Person(), token=token) for token in tokens.values())
    with ExitStack() as held:
        held.callback(one.close)
        held.callback(two.close)
        revoked, stays = _open(held, one, "/events"), _open(held, two, "/events")
        daemon.cli("service-account", "revoke", "one")
        assert _closed(revoked) == (1008, "access_changed")
        assert _hears(daemon, project, two, stays)
