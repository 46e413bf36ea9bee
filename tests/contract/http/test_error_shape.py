"""Whatever goes wrong, wherever: one shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import structlog
from websockets.asyncio.client import unix_connect
from websockets.exceptions import InvalidStatus

from fakes.running_daemon import InProcess, require_error_shape
from kaged.serve.http.connection import MAX_HEAD_BYTES, PeerConnection
from kaged.serve.http.middleware import MAX_BODY_BYTES


async def _raw(daemon: InProcess, sent: bytes) -> tuple[int, dict[str, Any]]:
    """Send bytes over the Unix socket and read the one answer."""
    reader, writer = await asyncio.open_unix_connection(daemon.socket)
    writer.write(sent)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/api/v1/nowhere", 404, "not_found"),
        ("GET", "/api/v1/projects/../../etc/passwd", 404, "not_found"),
        ("DELETE", "/api/v1/status", 405, "method_not_allowed"),
        ("PATCH", "/healthz", 405, "method_not_allowed"),
        ("GET", "/api/v1/projects/prj_nonsense", 422, "invalid_request"),
        ("GET", "/api/v1/projects/prj_01M7GH81G7BG8J23XEEGRHP5VB", 404, "project_not_found"),
        ("GET", "/api/v1/audit?limit=0", 422, "invalid_request"),
        ("GET", "/api/v1/audit?cursor=nonsense", 400, "invalid_cursor"),
        ("GET", "/api/v1/audit?since=yesterday", 422, "invalid_request"),
        ("GET", "/api/v1/audit?event=pl*in", 422, "invalid_request"),
        ("GET", "/api/v1/projects?cursor=nonsense", 400, "invalid_cursor"),
        ("POST", "/api/v1/projects", 422, "invalid_request"),
        ("GET", "/api/v1/auth/launch?token=made-up", 403, "launch_token_invalid"),
    ],
)
async def test_a_refused_request_has_the_shape(
    inside: InProcess, method: str, path: str, status: int, code: str
) -> None:
    answer = await inside.client.request(method, path)
    assert answer.status_code == status
    error = require_error_shape(answer.json(), code)
    assert error["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"root": 5}', b'{"root": "/x", "extra": 1}', b"\xff\xfe"],
)
async def test_a_body_that_does_not_fit_has_the_shape(inside: InProcess, body: bytes) -> None:
    answer = await inside.client.post(
        "/api/v1/projects", content=body, headers={"content-type": "application/json"}
    )
    require_error_shape(answer.json(), "invalid_request")
    assert answer.status_code == 422


async def test_a_wrong_method_names_the_right_ones(inside: InProcess) -> None:
    answer = await inside.client.post("/api/v1/status")
    assert answer.headers["allow"] == "GET"


async def test_a_body_that_is_too_large_has_the_shape(inside: InProcess) -> None:
    answer = await inside.client.post("/api/v1/projects", content=b"x" * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    require_error_shape(answer.json(), "payload_too_large")


async def test_a_body_whose_size_nobody_announced_is_stopped_on_the_way(inside: InProcess) -> None:
    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield b"x" * 65536

    answer = await inside.client.post("/api/v1/projects", content=endless())
    assert answer.status_code == 413
    require_error_shape(answer.json(), "payload_too_large")


async def test_a_bug_of_ours_has_the_shape_and_tells_nothing(
    inside: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail of /srv/private")

    monkeypatch.setattr(inside.daemon.services.subsystems.projects, "get", broken)
    with structlog.testing.capture_logs() as logs:
        answer = await inside.client.get("/api/v1/projects/prj_01M7GH81G7BG8J23XEEGRHP5VB")
    assert answer.status_code == 500
    error = require_error_shape(answer.json(), "internal")
    assert "secret" not in answer.text
    assert any(line["event"] == "request.failed" for line in logs)
    assert error["request_id"]


async def test_after_a_bug_the_next_request_works(
    inside: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(inside.daemon.services.subsystems.projects, "get", broken)
        await inside.client.get("/api/v1/projects/prj_01M7GH81G7BG8J23XEEGRHP5VB")
    assert (await inside.client.get("/api/v1/status")).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "unauthenticated"),
        ({"host": "evil.example"}, 421, "host_not_allowed"),
        ({"origin": "http://evil.example"}, 403, "origin_not_allowed"),
    ],
)
async def test_who_is_refused_access_gets_the_shape(
    inside: InProcess, headers: dict[str, str], status: int, code: str
) -> None:
    async with inside.over(PeerConnection("tcp", address="127.0.0.1")) as stranger:
        answer = await stranger.get("/api/v1/status", headers=headers)
    assert answer.status_code == status
    require_error_shape(answer.json(), code)


async def test_a_request_from_nowhere_gets_the_shape(inside: InProcess) -> None:
    async with inside.over(None) as nobody:
        answer = await nobody.get("/api/v1/status")
    assert answer.status_code == 403
    require_error_shape(answer.json(), "access_denied")


async def test_a_stopping_daemon_says_so_in_the_shape(inside: InProcess) -> None:
    inside.daemon.state.stopping = True
    answer = await inside.client.get("/api/v1/status")
    assert answer.status_code == 503
    require_error_shape(answer.json(), "daemon_stopping")
    health = await inside.client.get("/healthz")
    assert (health.status_code, health.json()) == (503, {"status": "stopping"})


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "invalid_request"),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400, "invalid_request"),
        (
            b"GET / HTTP/1.1\r\nx: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
            431,
            "headers_too_large",
        ),
        (b"GET /" + b"a" * (MAX_HEAD_BYTES + 1), 431, "headers_too_large"),
    ],
)
async def test_bytes_that_never_reach_the_application_get_the_shape(
    served: InProcess, sent: bytes, status: int, code: str
) -> None:
    found, body = await _raw(served, sent)
    assert found == status
    require_error_shape(body, code)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/events?after=minus", 422, "invalid_request"),
        ("/api/v1/events?topics=UPPER", 422, "invalid_request"),
        ("/api/v1/events?epoch=short", 422, "invalid_request"),
        ("/api/v1/nowhere", 404, "not_found"),
    ],
)
async def test_a_websocket_that_is_refused_gets_the_shape(
    served: InProcess, path: str, status: int, code: str
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with unix_connect(served.socket, f"ws://kaged{path}"):
            pass
    assert caught.value.response.status_code == status
    require_error_shape(json.loads(caught.value.response.body or b""), code)


async def test_every_answer_carries_the_security_headers(inside: InProcess) -> None:
    for path in ("/", "/healthz", "/api/v1/status", "/nowhere", "/api/v1/openapi.json"):
        headers = (await inside.client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
