"""Sidecars: loopback only, one scope each, and nothing to learn without a token."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kaged.base import ManualClock
from kaged.sdk.sidecar import SidecarServer
from kaged.services.errors import CapabilityBackendUnavailable
from kaged.services.providers.sidecar_processes import read_port
from kaged.services.sidecar import SidecarClient
from kaged.wire.sidecar_identity import SidecarIdentity
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import RoutingClaims, mint_token, verify_token
from raising import raises_code
from requirements import requirement

KEY = TokenKey(b"k" * 32)
ALICE = SidecarIdentity("browser", "user:alice", "tab", KEY)
BOB = SidecarIdentity("browser", "user:bob", "tab", KEY)


def _echo(given: bytes) -> bytes:
    said = json.loads(given)
    if said.get("fail"):
        raise RuntimeError("SECRET-DETAIL")
    return json.dumps({"echo": said}).encode()


class Pair:
    """Two running sidecars."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.servers = {one.scope: SidecarServer(one, _echo, clock) for one in (ALICE, BOB)}
        self.ports: dict[str, int] = {}


@pytest.fixture
async def pair(clock: ManualClock) -> AsyncIterator[Pair]:
    found = Pair(clock)
    for scope, server in found.servers.items():
        found.ports[scope] = await server.start()
    yield found
    for server in found.servers.values():
        await server.close()


def _listening_on(port: int) -> set[str]:
    """Return the addresses on which somebody of this machine listens at a port."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                found.add(address)
    return found


async def _raw(port: int, text: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode())
    answer = await reader.read()
    writer.close()
    return answer


async def _call(identity: SidecarIdentity, port: int, clock: ManualClock) -> Any:
    client = SidecarClient(identity, port, clock, timeout_s=30)
    try:
        return json.loads(await client.call(b'{"x": 1}'))
    finally:
        await client.close()


@requirement("SC-BRG-17")
async def test_a_sidecar_listens_on_loopback_only(pair: Pair) -> None:
    for port in pair.ports.values():
        assert _listening_on(port) == {"0100007F"}, "127.0.0.1 as the kernel writes it"
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(ValueError, match="loopback only"):
            await SidecarServer(ALICE, _echo, pair.clock).start(host)


@requirement("SC-BRG-18", "SC-AMB-36")
async def test_a_token_must_be_fresh_and_for_this_scope_and_target(pair: Pair) -> None:
    port, clock = pair.ports[ALICE.scope], pair.clock
    assert await _call(ALICE, port, clock) == {"echo": {"x": 1}}
    token = ALICE.token(clock)
    found = verify_token(KEY, token, clock=clock, audience="sidecar:browser")
    assert found.expires_at - found.issued_at == 600
    assert found.routing == RoutingClaims(
        provider="browser", session_key="user:alice", thread_id="tab"
    )
    assert not ALICE.admits(mint_token(KEY, "kaged-host", clock=clock), clock)
    for audience in ("", "sidecar:mail"):  # right in all but whom it is for
        meant = mint_token(
            KEY, "kaged-host", clock=clock, routing=found.routing, audience=audience, ttl_s=600
        )
        assert not ALICE.admits(meant, clock)
    right = mint_token(
        KEY, found.effective_user_id, clock=clock, routing=found.routing,
        audience="sidecar:browser", ttl_s=600,
    )  # fmt: skip
    assert ALICE.admits(right, clock)
    for other in (
        replace(ALICE, target="other"),
        replace(ALICE, scope="user:bob"),
        replace(ALICE, provider="mail"),
        replace(ALICE, key=TokenKey(b"x" * 32)),
    ):
        assert not ALICE.admits(other.token(clock), clock)
        with raises_code("capability_backend_unavailable"):
            await _call(other, port, clock)
    assert ALICE.admits(token, clock)
    clock.advance(631)
    assert not ALICE.admits(token, clock)


@requirement("SC-BRG-19")
async def test_two_scopes_never_share_a_sidecar(pair: Pair) -> None:
    assert ALICE.id != BOB.id
    with raises_code("capability_backend_unavailable"):
        await _call(ALICE, pair.ports[BOB.scope], pair.clock)
    assert await _call(BOB, pair.ports[BOB.scope], pair.clock) == {"echo": {"x": 1}}
    derived = [SidecarIdentity.derived("browser", f"user:{one}", "tab", KEY) for one in "ab"]
    assert derived[0].key != derived[1].key
    assert SidecarIdentity.read(derived[0].text, derived[0].key) == derived[0]


@requirement("SC-BRG-20", "SC-AMB-36")
async def test_every_refusal_is_the_same_401(pair: Pair) -> None:
    port = pair.ports[ALICE.scope]
    stale = BOB.token(pair.clock)
    answers = set()
    for line in ("POST /call", "GET /call", "GET /", "GET /health", "DELETE /x", "OPTIONS *"):
        for header in ("", "Authorization: Bearer x.y.z\r\n", f"Authorization: Bearer {stale}\r\n"):
            answers.add(await _raw(port, f"{line} HTTP/1.1\r\nHost: h\r\n{header}\r\n"))
    [answer] = answers
    assert answer.startswith(b"HTTP/1.1 401 ")


async def test_bodies_are_limited_and_failures_say_nothing(pair: Pair) -> None:
    port, clock = pair.ports[ALICE.scope], pair.clock
    auth = f"Authorization: Bearer {ALICE.token(clock)}\r\n"

    async def post(length: str, body: str) -> bytes:
        head = f"POST /call HTTP/1.1\r\n{auth}Content-Length: {length}\r\n\r\n"
        return await _raw(port, head + body)

    assert (await post("99999999", "")).startswith(b"HTTP/1.1 413 ")
    assert (await post("x", "")).startswith(b"HTTP/1.1 413 ")
    failed = await post("13", '{"fail": true}'[:13] + "")
    assert failed.startswith(b"HTTP/1.1 400 ")
    failed = await post("14", '{"fail": true}')
    assert failed.startswith(b"HTTP/1.1 500 ")
    assert b"SECRET-DETAIL" not in failed


FAULTS = {
    "POST /call without": (200, "answers those without its token"),
    "GET /health without": (200, "answers those without its token"),
    "POST /call with": (200, "answers those without its token"),
    "GET / without": (404, "answers those without its token"),
    "telling": (401, "refusals differ"),
}


@requirement("SC-BRG-20")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_sidecar_that_lets_others_in_is_not_used(fault: str, clock: ManualClock) -> None:
    status, reason = FAULTS[fault]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        asked = f"{method} {path} {'with' if 'uthorization' in head else 'without'}"
        wrong = asked == fault
        body = asked.encode() if fault == "telling" else b"no"
        said = f"HTTP/1.1 {status if wrong else 401} X\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{said}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = SidecarClient(ALICE, server.sockets[0].getsockname()[1], clock, timeout_s=30)
    with pytest.raises(CapabilityBackendUnavailable, match=reason):
        await client.require_guarded(os.getpid())
    await client.close()
    server.close()


@requirement("SC-BRG-20")
async def test_a_guarded_sidecar_passes_and_another_processs_port_does_not(pair: Pair) -> None:
    client = SidecarClient(ALICE, pair.ports[ALICE.scope], pair.clock, timeout_s=30)
    await client.require_guarded(os.getpid())
    with pytest.raises(CapabilityBackendUnavailable, match="port it named"):
        await client.require_guarded(os.getppid())
    await client.close()


@pytest.mark.parametrize(
    "line", [b"hello", b"[1]", b'{"port": 0}', b'{"port": true}', b'{"port": 65536}', b"{}"]
)
def test_a_first_line_without_a_port_is_refused(line: bytes) -> None:
    assert read_port(b'{"port": 40123}') == 40123
    with raises_code("capability_backend_unavailable"):
        read_port(line)
