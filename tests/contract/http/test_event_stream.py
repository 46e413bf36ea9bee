"""`WS /api/v1/events`: numbered events, resume, gaps, and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fakes.running_daemon import InProcess, require_error_shape
from kaged.config.token_file import read_token, token_file
from kaged.events.hub import RING_EVENTS
from kaged.serve.http.routes import events as events_module


def _stream(daemon: InProcess, query: str = "") -> Any:
    return unix_connect(daemon.socket, f"ws://kaged/api/v1/events{query}", compression=None)


async def _next(stream: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(20):
        return json.loads(await stream.recv())


async def _closed(stream: ClientConnection) -> ConnectionClosed:
    async with asyncio.timeout(20):
        try:
            while True:
                await stream.recv()
        except ConnectionClosed as closed:
            return closed


async def test_a_client_is_told_where_it_is_and_then_what_happens(
    served: InProcess, project: Path
) -> None:
    hub = served.daemon.services.hub
    async with _stream(served) as stream:
        hello = await _next(stream)
        assert hello == {
            "type": "hello",
            "epoch": hub.epoch,
            "latest": 0,
            "oldest": 1,
            "after": 0,
        }
        await served.client.post("/api/v1/projects", json={"root": str(project), "trust": True})
        event = await _next(stream)
        assert (event["type"], event["seq"], event["topic"]) == ("event", 1, "audit")
        assert event["name"] == event["data"]["event"] == "project.loaded"


async def test_resuming_gives_exactly_what_was_missed(served: InProcess) -> None:
    hub = served.daemon.services.hub
    for number in range(1, 6):
        hub.publish("t", "n", {"number": number})
    async with _stream(served, f"?after=2&epoch={hub.epoch}") as stream:
        assert (await _next(stream))["after"] == 2
        assert [(await _next(stream))["seq"] for _ in range(3)] == [3, 4, 5]
        hub.publish("t", "n", {})
        assert (await _next(stream))["seq"] == 6


async def test_without_after_a_client_hears_only_what_is_new(served: InProcess) -> None:
    hub = served.daemon.services.hub
    hub.publish("t", "old", {})
    async with _stream(served) as stream:
        await _next(stream)
        hub.publish("t", "new", {})
        assert (await _next(stream))["name"] == "new"


async def test_a_client_that_was_away_too_long_is_told_what_is_gone(served: InProcess) -> None:
    hub = served.daemon.services.hub
    for _ in range(RING_EVENTS + 7):
        hub.publish("t", "n", {})
    async with _stream(served, f"?after=4&epoch={hub.epoch}") as stream:
        await _next(stream)
        assert await _next(stream) == {"type": "gap", "reason": "too_old", "first": 5, "last": 7}
        held = [(await _next(stream))["seq"] for _ in range(RING_EVENTS)]
        assert held == list(range(8, RING_EVENTS + 8))


@pytest.mark.parametrize("query", ["?after=1&epoch=01ARZ3NDEKTSV4RRFFQ69G5FAV", "?after=999"])
async def test_numbers_of_another_run_of_the_daemon_are_a_gap(
    served: InProcess, query: str
) -> None:
    served.daemon.services.hub.publish("t", "n", {})
    async with _stream(served, query) as stream:
        assert (await _next(stream))["after"] == 0
        gap = await _next(stream)
        assert (gap["type"], gap["reason"]) == ("gap", "epoch_changed")
        assert (await _next(stream))["seq"] == 1


async def test_a_client_hears_the_topics_it_asked_for_and_is_told_how_far_it_is(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "MARK_EVERY", 3)
    hub = served.daemon.services.hub
    async with _stream(served, "?topics=plugin:memory,session") as stream:
        await _next(stream)
        for topic in ("audit", "plugin:other", "plugin:memory", "session:ses_1"):
            hub.publish(topic, "n", {})
        assert (await _next(stream))["topic"] == "plugin:memory"
        assert (await _next(stream))["topic"] == "session:ses_1"
        for _ in range(3):
            hub.publish("audit", "n", {})
        assert await _next(stream) == {"type": "mark", "seq": 7}


async def test_a_client_that_speaks_is_told_why_it_is_hung_up_on(served: InProcess) -> None:
    async with _stream(served) as stream:
        await _next(stream)
        await stream.send("hello?")
        message = await _next(stream)
        assert message.pop("type") == "error"
        error = require_error_shape(message, "unexpected_message")
        assert error["request_id"].startswith("req_")
        closed = await _closed(stream)
        assert closed.rcvd is not None
        assert (closed.rcvd.code, closed.rcvd.reason) == (1003, "unexpected_message")
    assert served.daemon.services.hub.subscribers == 0


async def test_a_client_that_was_overtaken_is_dropped_with_the_number_to_go_on_from(
    served: InProcess,
) -> None:
    hub = served.daemon.services.hub
    async with _stream(served) as stream:
        await _next(stream)
        for _ in range(RING_EVENTS + 16):
            hub.publish("t", "n", {})
        message = await _next(stream)
        assert message.pop("type") == "error"
        error = require_error_shape(message, "slow_client")
        assert error["data"]["last_seq"] == 0
        closed = await _closed(stream)
        assert closed.rcvd is not None
        assert closed.rcvd.code == 1013


async def test_a_client_that_does_not_read_is_cut_off_and_costs_nothing_more(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "SEND_TIMEOUT_S", 0.05)
    hub = served.daemon.services.hub
    reader, writer = await asyncio.open_unix_connection(served.socket)
    writer.write(
        b"GET /api/v1/events HTTP/1.1\r\nhost: kaged\r\nconnection: upgrade\r\n"
        b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(20):
        while hub.subscribers == 0:  # noqa: ASYNC110  # the hub tells nobody of new subscribers
            await asyncio.sleep(0)
        # The client's end never reads again; a few big events fill every buffer on the way.
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while hub.subscribers:
            hub.publish("t", "n", {"x": "y" * 200_000})
            await asyncio.sleep(0)
    writer.transport.abort()


async def test_other_clients_do_not_notice_a_slow_one(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = served.daemon.services.hub
    async with _stream(served) as good, _stream(served) as bad:
        await _next(good)
        await _next(bad)
        await bad.send("out of turn")
        await _closed(bad)
        hub.publish("t", "n", {})
        assert (await _next(good))["seq"] == 1


async def test_when_the_daemon_stops_its_clients_are_told(served: InProcess) -> None:
    async with _stream(served) as stream:
        await _next(stream)
        served.daemon.services.hub.publish("daemon", "daemon.stopping", {})
        served.daemon.services.hub.close()
        assert (await _next(stream))["name"] == "daemon.stopping"
        message = await _next(stream)
        assert message["error"]["code"] == "daemon_stopping"
        closed = await _closed(stream)
        assert closed.rcvd is not None
        assert closed.rcvd.code == 1001


async def test_there_is_a_limit_to_the_number_of_clients(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.events.hub.MAX_SUBSCRIBERS", 1)
    async with _stream(served):
        with pytest.raises(InvalidStatus) as caught:
            async with _stream(served):
                pass
    assert caught.value.response.status_code == 503
    require_error_shape(json.loads(caught.value.response.body or b""), "too_many_subscribers")


async def _knock(daemon: InProcess, **headers: str) -> tuple[int, bytes]:
    """Ask for the stream over TCP with exactly these headers; returns status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    own = {"host": f"127.0.0.1:{daemon.port}", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in own.items())
    writer.write(
        f"GET /api/v1/events HTTP/1.1\r\n{lines}connection: upgrade\r\nupgrade: websocket\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        body = b"" if status == 101 else await reader.read()
    writer.close()
    return status, body


async def test_over_tcp_a_stream_needs_the_token_and_the_right_names(served: InProcess) -> None:
    token = read_token(token_file(served.places), os.getuid())
    bearer = f"Bearer {token}"
    assert (await _knock(served, authorization=bearer))[0] == 101
    for headers, status, code in (
        ({}, 401, "unauthenticated"),
        ({"authorization": "Bearer wrong"}, 401, "unauthenticated"),
        ({"authorization": bearer, "origin": "http://evil.example"}, 403, "origin_not_allowed"),
        ({"authorization": bearer, "origin": "null"}, 403, "origin_not_allowed"),
        ({"authorization": bearer, "host": "evil.example"}, 421, "host_not_allowed"),
    ):
        found, body = await _knock(served, **headers)
        assert found == status, headers
        require_error_shape(json.loads(body), code)


async def test_a_browser_session_opens_a_stream_from_our_own_page_only(served: InProcess) -> None:
    cookie = f"kaged_session={served.daemon.services.credentials.cookies.open()}"
    own = f"http://127.0.0.1:{served.port}"
    assert (await _knock(served, cookie=cookie, origin=own))[0] == 101
    assert (await _knock(served, cookie=cookie))[0] == 403
    for origin in ("http://127.0.0.1:1", "http://localhost", f"https://127.0.0.1:{served.port}"):
        assert (await _knock(served, cookie=cookie, origin=origin))[0] == 403
