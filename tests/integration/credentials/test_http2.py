"""HTTP/2 through the gate of a bound host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from fakes.bound_world import VALUE, Answer, Authorities, BoundWorld, bound_world, placeholder
from fakes.h2_client import RawH2
from fakes.h2_recorder import H2Recorder
from kaged.kernel.bindings import BEARER, CageCredential, CredentialBinding, Destination

HELD = placeholder(1)
BEARS = {"authorization": f"Bearer {HELD}"}


@pytest.fixture
async def recorder(outside: Authorities) -> AsyncIterator[H2Recorder]:
    """Return a server that records what reaches it."""
    server = H2Recorder()
    await server.start(outside.server("api.test", protocols=("h2",)))
    yield server
    await server.close()


@pytest.fixture
async def world(outside: Authorities, recorder: H2Recorder) -> AsyncIterator[BoundWorld]:
    """Return the gate of a cage before it."""
    binding = CredentialBinding(
        "github", (Destination("api.test"),), (BEARER,), ca_file=str(outside.file)
    )
    async with bound_world(CageCredential(binding, HELD), server_port=recorder.port) as one:
        yield one


@pytest.fixture
async def client(world: BoundWorld) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of HTTP/2 that connects as a program of the cage."""
    host, port = world.address
    async with httpx.AsyncClient(
        http2=True,
        verify=world.client_context("h2", "http/1.1"),
        base_url=f"https://{host}:{port}",
        headers={"host": "api.test"},
        timeout=10,
    ) as one:
        yield one


async def _get(client: httpx.AsyncClient, path: str = "/x") -> httpx.Response:
    extensions = {"sni_hostname": "api.test"}
    return await client.request("GET", path, headers=BEARS, extensions=extensions)


async def _post(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    extensions = {"sni_hostname": "api.test"}
    return await client.post("/up", content=body, headers=BEARS, extensions=extensions)


async def test_the_value_stands_in_place_of_the_placeholder(
    client: httpx.AsyncClient, recorder: H2Recorder, world: BoundWorld
) -> None:
    for _ in range(3):
        answer = await _get(client)
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        assert answer.content == b"ok"
    assert [one.header("authorization") for one in recorder.seen] == [f"Bearer {VALUE}"] * 3
    assert recorder.connections == 1
    assert {event.name for event in world.events} == {"credential.used"}


async def test_two_hundred_streams_at_once(client: httpx.AsyncClient, recorder: H2Recorder) -> None:
    recorder.handler = lambda seen: Answer(body=seen.target.encode() * 1000)
    answers = await asyncio.gather(*(_get(client, f"/{n}") for n in range(200)))
    assert [one.content for one in answers] == [f"/{n}".encode() * 1000 for n in range(200)]


async def test_large_bodies_pass_in_both_directions(
    client: httpx.AsyncClient, recorder: H2Recorder
) -> None:
    recorder.handler = lambda seen: Answer(body=seen.body[::-1])
    body = bytes(range(256)) * 20_000
    for _ in range(3):  # more than a connection's first window
        answer = await _post(client, body)
        assert answer.content == body[::-1]


async def test_answers_do_not_hold_the_value(
    client: httpx.AsyncClient, recorder: H2Recorder
) -> None:
    recorder.handler = lambda _: Answer(
        headers=[("x-echo", VALUE)], body=f"<{VALUE}>".encode(), trailers=[("x-end", VALUE)]
    )
    answer = await _get(client)
    assert answer.content == b"<" + b"*" * len(VALUE) + b">"
    assert VALUE not in str(answer.headers)


async def test_a_placeholder_in_a_body_ends_the_stream_and_no_other(
    client: httpx.AsyncClient, recorder: H2Recorder, world: BoundWorld
) -> None:
    answer = await _post(client, f"a {HELD} b".encode())
    assert answer.status_code == 403
    assert answer.headers["kaged-refused"] == "credential.body"
    assert recorder.seen == []
    late = await _post(client, b"x" * 300_000 + HELD.encode() + b"x" * 300_000)
    assert late.status_code == 403
    assert [one.complete for one in recorder.seen] == [False]
    assert (await _get(client)).status_code == 200
    assert "credential.refused" in {event.name for event in world.events}


async def test_both_directions_at_once_as_grpc_does(
    world: BoundWorld, recorder: H2Recorder
) -> None:
    recorder.echo = True
    talk = await RawH2.connect(world)
    number = talk.ask(
        [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "api.test"),
            (":path", "/service/Method"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("authorization", f"Bearer {HELD}"),
        ],
        body=None,
    )
    talk.protocol.send_data(number, b"first")
    # It ends with the first letter of the value, and is not kept back for that.
    assert (await talk.until(number, size=5)).body == b"first"
    talk.protocol.send_data(number, b"second")
    assert (await talk.until(number, size=11)).body == b"firstsecond"
    talk.protocol.end_stream(number)
    came = await talk.until(number)
    assert came.ended
    assert came.trailers == {"grpc-status": "0"}
    talk.close()
    assert recorder.seen[0].header("te") == "trailers"
    assert recorder.seen[0].header("authorization") == f"Bearer {VALUE}"


async def test_a_server_that_says_goodbye_still_answers(
    client: httpx.AsyncClient, recorder: H2Recorder
) -> None:
    recorder.go_away_after = 2
    recorder.handler = lambda _: Answer(body=b"x" * 2_000_000)
    for _ in range(5):
        assert len((await _get(client)).content) == 2_000_000
    assert recorder.connections > 1
