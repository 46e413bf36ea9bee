"""Sidecars: loopback only, one scope each, and nothing to learn without a token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kaged.base import JsonObject, ManualClock
from kaged.services.sidecar import SidecarClient, SidecarIdentity, SidecarServer
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import RoutingClaims, mint_token, verify_token
from raising import raises_code
from requirements import requirement

KEY = TokenKey(b"k" * 32)
ALICE = SidecarIdentity("browser", "user:alice", "tab", KEY)
BOB = SidecarIdentity("browser", "user:bob", "tab", KEY)


async def _echo(given: JsonObject) -> JsonObject:
    if given.get("fail"):
        raise RuntimeError("SECRET-DETAIL")
    return {"echo": given}


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


@requirement("SC-BRG-17")
async def test_a_sidecar_listens_on_loopback_only(pair: Pair) -> None:
    for port in pair.ports.values():
        assert _listening_on(port) == {"0100007F"}, "127.0.0.1 as the kernel writes it"
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with raises_code("capability_backend_unavailable"):
            await SidecarServer(ALICE, _echo, pair.clock).start(host)


@requirement("SC-BRG-18", "SC-AMB-36")
async def test_a_token_must_be_fresh_and_for_this_scope_and_target(pair: Pair) -> None:
    port, clock = pair.ports[ALICE.scope], pair.clock
    assert await SidecarClient(ALICE, port, clock).call({"x": 1}) == {"echo": {"x": 1}}
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
            await SidecarClient(other, port, clock).call({})
    assert ALICE.admits(token, clock)
    clock.advance(631)
    assert not ALICE.admits(token, clock)


@requirement("SC-BRG-19")
async def test_two_scopes_never_share_a_sidecar(pair: Pair) -> None:
    assert ALICE.id != BOB.id
    with raises_code("capability_backend_unavailable"):
        await SidecarClient(ALICE, pair.ports[BOB.scope], pair.clock).call({})
    assert await SidecarClient(BOB, pair.ports[BOB.scope], pair.clock).call({}) == {"echo": {}}


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
    assert (await post("2", "[]")).startswith(b"HTTP/1.1 400 ")
    failed = await post("13", '{"fail": true}'[:13] + "")
    assert failed.startswith(b"HTTP/1.1 400 ")
    failed = await post("14", '{"fail": true}')
    assert failed.startswith(b"HTTP/1.1 500 ")
    assert b"SECRET-DETAIL" not in failed
