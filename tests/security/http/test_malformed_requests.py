"""Requests that try to be two requests, or one that never ends."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fakes.running_daemon import InProcess, daemon_in_process, require_error_shape
from kaged.serve.http import connection as connection_module
from kaged.serve.http.connection import MAX_HEAD_BYTES
from kaged.serve.http.connection_budget import ConnectionBudgets
from kaged.serve.http.middleware import MAX_BODY_BYTES

together = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing() -> AsyncIterator[InProcess]:
    """Yield one daemon for all: a request that is refused changes nothing in it."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        async with daemon_in_process(Path(folder).resolve() / "h", serve=True) as daemon:
            yield daemon


@pytest_asyncio.fixture(loop_scope="module")
async def served(standing: InProcess) -> InProcess:
    """Return the daemon when nobody is connected to it any more."""
    await _left_alone(standing)
    return standing


async def _left_alone(daemon: InProcess) -> None:
    async with asyncio.timeout(20):
        while daemon.daemon.server.server_state.connections:  # noqa: ASYNC110  # uvicorn's own set
            await asyncio.sleep(0.001)


async def _send(daemon: InProcess, sent: bytes, *, tcp: bool = False) -> bytes:
    if tcp:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    else:
        reader, writer = await asyncio.open_unix_connection(daemon.socket)
    try:
        writer.write(sent)
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


@together
@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: +5\r\n",
        b"content-length: 0x5\r\n",
        b"content-length: 5, 5\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b" folded: yes\r\n",
        b"x\x00y: 1\r\n",
    ],
)
async def test_a_request_with_two_lengths_or_bent_headers_is_no_request(
    served: InProcess, head: bytes
) -> None:
    """Either refused, or the connection ends after one answer: never a second request inside."""
    smuggled = b"GET /api/v1/status HTTP/1.1\r\nhost: kaged\r\n\r\n"
    answer = await _send(
        served,
        b"POST /api/v1/audit/verify HTTP/1.1\r\nhost: kaged\r\nconnection: close\r\n"
        + head
        + b"\r\n0\r\n\r\n"
        + smuggled,
    )
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 4")


@together
@pytest.mark.parametrize("extra", [b"host: evil.example\r\n", b"Host: 127.0.0.1\r\n"])
async def test_two_hosts_are_refused(served: InProcess, token: str, extra: bytes) -> None:
    answer = await _send(
        served,
        b"GET /api/v1/status HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        + f"authorization: Bearer {token}\r\n".encode()
        + extra
        + b"\r\n",
        tcp=True,
    )
    assert answer.startswith(b"HTTP/1.1 403")


@together
async def test_no_host_is_refused_over_tcp(served: InProcess) -> None:
    answer = await _send(served, b"GET /healthz HTTP/1.0\r\n\r\n", tcp=True)
    assert answer.split()[1] == b"421"


@together
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
        b"GET / HTTP/1.1\r\nx: " + b"y" * 10_000_000,
        b"GET /" + b"y" * 10_000_000,
        b"G" * 1_000_000,
    ],
)
async def test_an_endless_head_is_cut_off(served: InProcess, sent: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(served.socket)
    answer = b""
    try:
        async with asyncio.timeout(20):
            writer.write(sent)
            answer = await reader.read()
    except (ConnectionResetError, BrokenPipeError):
        pass  # hung up on while still sending, which is the point
    finally:
        writer.close()
    if answer:
        assert answer.split()[1] in {b"431", b"400"}


@together
async def test_a_head_of_the_allowed_size_is_read(served: InProcess) -> None:
    padding = b"x: " + b"y" * (MAX_HEAD_BYTES - 200) + b"\r\n"
    answer = await _send(
        served, b"GET /healthz HTTP/1.1\r\nhost: kaged\r\nconnection: close\r\n" + padding + b"\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200")


@together
async def test_a_large_body_that_is_allowed_is_not_taken_for_a_head(served: InProcess) -> None:
    body = b'{"root": "/' + b"x" * 200_000 + b'"}'
    request = (
        b"POST /api/v1/projects HTTP/1.1\r\nhost: kaged\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    answer = await _send(
        served, request * 2 + b"GET /healthz HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\r\n"
    )
    assert answer.count(b"HTTP/1.1 422") == 2
    assert answer.count(b"HTTP/1.1 200") == 1


@together
async def test_a_head_that_never_ends_is_timed_out(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEAD_TIMEOUT_S", 0.05)
    answer = await _send(served, b"GET /healthz HTTP/1.1\r\nhost: ka")
    assert answer.startswith(b"HTTP/1.1 408")
    require_error_shape(json.loads(answer.partition(b"\r\n\r\n")[2]), "request_timeout")


@together
async def test_a_connection_that_says_nothing_is_timed_out(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEAD_TIMEOUT_S", 0.05)
    assert (await _send(served, b"")).startswith(b"HTTP/1.1 408")


@together
async def test_a_body_that_never_ends_is_timed_out(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.serve.http.middleware.BODY_TIMEOUT_S", 0.05)
    answer = await _send(
        served,
        b"POST /api/v1/projects HTTP/1.1\r\nhost: k\r\nconnection: close\r\n"
        b"content-length: 10\r\n\r\nabc",
    )
    assert answer.startswith(b"HTTP/1.1 504")


@together
async def test_a_body_is_not_read_from_someone_who_may_not_come_in(served: InProcess) -> None:
    answer = await _send(
        served,
        b"POST /api/v1/projects HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        b"content-length: 1000000\r\n\r\n",
        tcp=True,
    )
    assert answer.startswith(b"HTTP/1.1 401")


@together
async def test_an_announced_body_that_is_too_large_is_refused_unread(served: InProcess) -> None:
    answer = await _send(
        served,
        b"POST /api/v1/projects HTTP/1.1\r\nhost: k\r\nconnection: close\r\n"
        + f"content-length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode(),
    )
    assert answer.startswith(b"HTTP/1.1 413")


@together
async def test_whoever_sends_too_much_still_hears_why_and_can_go_on(served: InProcess) -> None:
    body = b"x" * (20 * MAX_BODY_BYTES)
    reader, writer = await asyncio.open_unix_connection(served.socket)
    writer.write(
        b"POST /api/v1/projects HTTP/1.1\r\nhost: k\r\n"
        + f"content-length: {len(body)}\r\n\r\n".encode()
        + body
        + b"GET /healthz HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\r\n"
    )
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.count(b"HTTP/1.1 200") == 1


@together
async def test_too_many_connections_are_turned_away_and_room_comes_back(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionBudgets, "limit_of", lambda *_: 3)
    held = [await asyncio.open_unix_connection(served.socket) for _ in range(3)]
    for reader, writer in held:
        writer.write(
            b"POST /api/v1/projects HTTP/1.1\r\nhost: k\r\ncontent-length: 10\r\n"
            b"expect: 100-continue\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
    answer = await _send(served, b"GET /healthz HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503")
    require_error_shape(json.loads(answer.partition(b"\r\n\r\n")[2]), "too_many_connections")
    for _, writer in held:
        writer.close()
        await writer.wait_closed()
    await _left_alone(served)
    answer = await _send(served, b"GET /healthz HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


@together
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/projects/../status",
        "/api/v1/projects/%2e%2e/status",
        "/api/v1/projects/..%2fstatus",
        "/api/v1/projects/%2Fetc%2Fpasswd",
        "/api/v1/projects/prj_01M7GH81G7BG8J23XEEGRHP5VB%00",
        "/api/v1/projects/prj_01M7GH81G7BG8J23XEEGRHP5VB%0d%0aset-cookie:x=1",
        "/api/v1/projects/;ls",
        "//api/v1/status",
        "/api/v1//status",
        "/%61pi/v1/../../etc/passwd",
    ],
)
async def test_a_path_that_climbs_or_hides_finds_nothing(served: InProcess, path: str) -> None:
    answer = await _send(
        served, f"GET {path} HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\r\n".encode()
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] in {b"404", b"422", b"307"}, head
    assert b"set-cookie" not in head.lower()
    if body:
        require_error_shape(json.loads(body))
