"""Rules about bodies, limits, missing values and bad certificates: what the program is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from fakes.bound_world import (
    VALUE,
    Answer,
    Authorities,
    BoundWorld,
    Recorder,
    bound_world,
    placeholder,
    the_value,
)
from kaged.kernel.bindings import (
    BEARER,
    CageCredential,
    CredentialBinding,
    Destination,
    NoValue,
    NoValueReason,
    RequestLimits,
    SecretValue,
)
from kaged.kernel.request_rules import GitRule, GraphqlRule, Rule

HELD = placeholder(1)
Open = Callable[..., AbstractAsyncContextManager[BoundWorld]]


@pytest.fixture
def opened(outside: Authorities, recorder: Recorder) -> Open:
    """Return what opens the gate of a cage with a binding of one's own."""

    @asynccontextmanager
    async def open_world(
        *rules: Rule,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 - frozen
        ca_file: Path | None = outside.file,
        value_of: Callable[..., object] = the_value,
        tls: bool = True,
    ) -> AsyncGenerator[BoundWorld]:
        binding = CredentialBinding(
            "github",
            (Destination("api.test", tls=tls),),
            (BEARER,),
            rules,
            limits,
            str(ca_file or ""),
        )
        held = CageCredential(binding, HELD)
        async with bound_world(held, server_port=recorder.port, value_of=value_of) as one:  # type: ignore[arg-type] # awaitable
            yield one

    return open_world


async def _ask(
    world: BoundWorld, method: str = "GET", target: str = "/x", body: bytes = b"", more: str = ""
) -> tuple[int, str]:
    """Send one request; return the status and the rule that refused it, if one did."""
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: api.test\r\nAuthorization: Bearer {HELD}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    came = (await world.send(head.encode() + body)).decode("latin-1")
    rule = came.partition("kaged-refused: ")[2].partition("\r\n")[0]
    if rule:
        told = json.loads(came.partition("\r\n\r\n")[2])["error"]
        assert told["code"] == rule
        assert told["message"].endswith(".")
    return int(came.split()[1]), rule


def _push(*refs: str) -> bytes:
    lines = (f"{'1' * 40} {'2' * 40} {ref}\0 caps" for ref in refs)
    return b"".join(f"{len(one) + 4:04x}{one}".encode() for one in lines) + b"0000PACK"


async def test_a_push_changes_allowed_refs_only(opened: Open, recorder: Recorder) -> None:
    async with opened(GitRule("/acme/*", push=("agent/*",))) as world:
        place = "/acme/app.git/git-receive-pack"
        good = await _ask(world, "POST", place, _push("refs/heads/agent/a"))
        assert good == (200, "")
        assert recorder.seen[-1].body == _push("refs/heads/agent/a")
        for refs in (("refs/heads/main",), ("refs/heads/agent/a", "refs/heads/main")):
            assert await _ask(world, "POST", place, _push(*refs)) == (403, "credential.git.ref")
        assert await _ask(world, "POST", place, b"no push") == (403, "credential.body")
        packed = await _ask(world, "POST", place, _push("refs/a"), "Content-Encoding: gzip\r\n")
        assert packed == (403, "credential.body")
        long = _push("refs/heads/agent/a") + b"x" * 300_000
        assert await _ask(world, "POST", place, long) == (200, "")
        assert recorder.seen[-1].body == long
    assert len(recorder.seen) == 2


async def test_graphql_uses_allowed_root_fields_only(opened: Open, recorder: Recorder) -> None:
    async with opened(GraphqlRule("/graphql", ("issue",), ("addComment",))) as world:

        async def operation(text: str) -> tuple[int, str]:
            return await _ask(world, "POST", "/graphql", json.dumps({"query": text}).encode())

        assert await operation("{ issue { id } }") == (200, "")
        assert await operation("mutation { addComment { id } }") == (200, "")
        assert await operation("query issue { secrets }") == (403, "credential.graphql")
        assert await operation("mutation { deleteAll }") == (403, "credential.graphql")
        assert await operation("{ issue") == (403, "credential.body")
        assert await _ask(world, "POST", "/graphql", b"{}") == (403, "credential.body")
    assert len(recorder.seen) == 2


async def test_the_limits_of_a_binding_hold(opened: Open, recorder: Recorder) -> None:
    async with opened(limits=RequestLimits(body_bytes=100, requests_per_minute=3)) as world:
        assert await _ask(world, "POST", "/x", b"x" * 100) == (200, "")
        assert await _ask(world, "POST", "/x", b"x" * 101) == (413, "credential.size")
        assert await _ask(world) == (200, "")
        assert await _ask(world) == (429, "credential.rate")
    assert len(recorder.seen) == 2


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (NoValueReason.MISSING, 503),
        (NoValueReason.LOCKED, 503),
        (NoValueReason.FAILED, 503),
        (NoValueReason.REVOKED, 403),
    ],
)
async def test_without_a_value_nothing_is_sent(
    opened: Open, recorder: Recorder, reason: NoValueReason, status: int
) -> None:
    async def value_of(_name: str) -> SecretValue | NoValue:
        return NoValue(reason, "The vault is locked.", "open it")

    async with opened(value_of=value_of) as world:
        assert await _ask(world) == (status, "credential.no_value")
    assert recorder.seen == []


async def test_a_look_up_that_breaks_is_a_refusal_without_its_words(
    opened: Open, recorder: Recorder
) -> None:
    async def value_of(_name: str) -> SecretValue | NoValue:
        raise RuntimeError(f"half of {VALUE}")

    async with opened(value_of=value_of) as world:
        assert await _ask(world) == (503, "credential.no_value")
        assert VALUE not in repr(world.events)
    assert recorder.seen == []


async def test_a_server_whose_certificate_is_not_known_gets_nothing(
    opened: Open, recorder: Recorder
) -> None:
    async with opened(ca_file=None) as world:
        assert await _ask(world) == (502, "credential.server_certificate")
    assert recorder.seen == []
    assert recorder.raw == b""


async def test_a_server_with_another_name_gets_nothing(
    outside: Authorities, recorder: Recorder
) -> None:
    binding = CredentialBinding("github", (Destination("api.test"),), ca_file=str(outside.file))
    other = Recorder()
    await other.start(outside.server("other.test"))
    async with bound_world(CageCredential(binding, HELD), server_port=other.port) as world:
        assert await _ask(world) == (502, "credential.server_certificate")
    assert other.seen == []
    await other.close()


async def test_a_server_that_has_gone_is_told_of(opened: Open, recorder: Recorder) -> None:
    recorder.handler = lambda _: Answer(headers=[("connection", "close")])
    async with opened() as world:
        reader, writer = await world.connect()
        ask = f"GET / HTTP/1.1\r\nHost: api.test\r\nAuthorization: Bearer {HELD}\r\n\r\n".encode()
        writer.write(ask)
        assert b" 200 " in await reader.readuntil(b"ok")
        world.server_port = 1  # where nobody listens
        writer.write(ask)
        came = await reader.readuntil(b"}}")
        assert came.startswith(b"HTTP/1.1 502")
        assert b"credential.server" in came
        writer.close()
    assert len(recorder.seen) == 1


async def test_without_tls_only_where_the_operator_said_so(
    opened: Open, outside: Authorities
) -> None:
    del outside
    plain = Recorder()
    await plain.start(None)
    ask = (
        f"GET / HTTP/1.1\r\nHost: api.test:443\r\nAuthorization: Bearer {HELD}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
    for tls in (True, False):
        async with opened(tls=tls) as world:
            world.server_port = plain.port
            reader, writer = await asyncio.open_connection(*world.address)
            writer.write(ask)
            came = await reader.read()
            writer.close()
        assert came.startswith(b"HTTP/1.1 403" if tls else b"HTTP/1.1 200")
    assert [one.header("authorization") for one in plain.seen] == [f"Bearer {VALUE}"]
    await plain.close()


async def test_answers_are_asked_for_whole_and_uncompressed(
    opened: Open, recorder: Recorder
) -> None:
    async with opened() as world:
        more = (
            "Range: bytes=0-5\r\nIf-Range: x\r\nAccept-Encoding: gzip\r\nX-Method-Override: A\r\n"
        )
        assert await _ask(world, more=more) == (200, "")
    (seen,) = recorder.seen
    names = {name for name, _ in seen.headers}
    assert not names & {"range", "if-range", "x-method-override", "connection"}
    assert seen.header("accept-encoding") == "identity"


async def test_a_program_that_trusts_others_is_told_about(
    opened: Open, outside: Authorities
) -> None:
    import ssl

    async with opened() as world:
        context = ssl.create_default_context(cafile=outside.file)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(*world.address, ssl=context, server_hostname="api.test")
        async with asyncio.timeout(10):
            await world.ended.wait()
        assert [one.name for one in world.events] == ["credential.client_refused_certificate"]
