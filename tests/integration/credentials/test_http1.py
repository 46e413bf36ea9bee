"""HTTP/1.1 through the gate of a bound host."""

from __future__ import annotations

import asyncio
import base64
import gzip

import pytest

from fakes.bound_world import VALUE, Answer, BoundWorld, Recorder, Seen, placeholder

HELD = placeholder(1)


def _request(head: str, body: bytes = b"") -> bytes:
    return head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body


def _get(extra: str, target: str = "/x") -> bytes:
    return _request(f"GET {target} HTTP/1.1\nHost: api.test\nConnection: close\n{extra}")


async def test_the_value_stands_in_place_of_the_placeholder(
    world: BoundWorld, recorder: Recorder
) -> None:
    for extra, target in (
        (f"Authorization: Bearer {HELD}", "/x"),
        (f"authorization: token {HELD}", "/x"),
        (f"X-Api-Key: {HELD}", "/x"),
        ("A: b", f"/x?a=b&key={HELD}&c=d"),
        (f"Authorization: Basic {base64.b64encode(f'me:{HELD}'.encode()).decode()}", "/x"),
    ):
        answer = await world.send(_get(extra, target))
        assert answer.startswith(b"HTTP/1.1 200"), answer
    bearer, token, key, query, basic = recorder.seen
    assert bearer.header("authorization") == f"Bearer {VALUE}"
    assert token.header("authorization") == f"token {VALUE}"
    assert key.header("x-api-key") == VALUE
    assert query.target == "/x?a=b&key=tok%2Fen%2BVa1ue-Zq93kLw0xYt&c=d"
    coded = (basic.header("authorization") or "").removeprefix("Basic ")
    assert base64.b64decode(coded).decode() == f"me:{VALUE}"
    assert {event.name for event in world.events} == {"credential.used"}
    assert VALUE not in repr(world.events)


async def test_a_kept_connection_serves_one_request_after_the_other(
    world: BoundWorld, recorder: Recorder
) -> None:
    reader, writer = await world.connect()
    for number in range(5):
        body = b"x" * number * 100_000
        writer.write(
            _request(
                f"POST /{number} HTTP/1.1\nHost: api.test\nAuthorization: Bearer {HELD}\n"
                f"Content-Length: {len(body)}",
                body,
            )
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(2) == b"ok"
    writer.close()
    assert [len(one.body) for one in recorder.seen] == [0, 100_000, 200_000, 300_000, 400_000]
    assert recorder.connections == 1


async def test_chunked_bodies_and_continue_pass(world: BoundWorld, recorder: Recorder) -> None:
    reader, writer = await world.connect()
    writer.write(
        _request(
            f"PUT /up HTTP/1.1\nHost: api.test\nX-Api-Key: {HELD}\nTransfer-Encoding: chunked\n"
            "Expect: 100-continue"
        )
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
    writer.write(b"5\r\nhello\r\n")
    writer.write(b"6\r\n world\r\n0\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    (seen,) = recorder.seen
    assert (seen.body, seen.complete) == (b"hello world", True)


@pytest.mark.parametrize(
    "spelled",
    [
        VALUE,
        VALUE.upper(),
        base64.b64encode(VALUE.encode()).decode(),
        base64.b64encode(f"a{VALUE}b".encode()).decode(),
        base64.b64encode(f"ab{VALUE}c".encode()).decode(),
        VALUE.encode().hex(),
        "tok%2Fen%2BVa1ue-Zq93kLw0xYt",
        "tok\\/en+Va1ue-Zq93kLw0xYt",
    ],
)
@pytest.mark.parametrize("cut", [0, 1, 7, 15])
async def test_answers_do_not_hold_the_value(
    world: BoundWorld, recorder: Recorder, spelled: str, cut: int
) -> None:
    body = f"before {spelled} after".encode()
    chunks = [body[: 7 + cut], body[7 + cut :]] if cut else None

    def answer(_: Seen) -> Answer:
        return Answer(headers=[("x-echo", f"a {spelled} b")], body=body, chunks=chunks)

    recorder.handler = answer
    came = await world.send(_get(f"X-Api-Key: {HELD}"))
    assert came.startswith(b"HTTP/1.1 200"), came
    assert spelled[6:-6].encode() not in came
    assert b"aft" in came
    assert b"*****" in came


async def test_compressed_answers_are_looked_into(world: BoundWorld, recorder: Recorder) -> None:
    coded = gzip.compress(f"the value is {VALUE}.".encode())
    recorder.handler = lambda _: Answer(headers=[("content-encoding", "gzip")], body=coded)
    came = await world.send(_get(f"X-Api-Key: {HELD}"))
    assert b"the value is ***" in came
    assert b"content-encoding" not in came
    assert recorder.seen[0].header("accept-encoding") == "identity"
    recorder.handler = lambda _: Answer(headers=[("content-encoding", "br")], body=coded)
    came = await world.send(_get(f"X-Api-Key: {HELD}"))
    assert came.startswith(b"HTTP/1.1 502")
    assert b"compressed" in came


async def test_events_of_a_stream_come_as_they_are_sent(
    world: BoundWorld, recorder: Recorder
) -> None:
    recorder.handler = lambda _: Answer(
        headers=[("content-type", "text/event-stream")],
        chunks=[b"data: 1\n\n", b"data: 2\n\n"],
        trailers=[("x-end", VALUE)],
    )
    came = await world.send(_get(f"X-Api-Key: {HELD}"))
    assert b"data: 1\n\n" in came
    assert b"data: 2\n\n" in came
    assert b"x-end: ****" in came


async def test_a_large_answer_passes_whole(world: BoundWorld, recorder: Recorder) -> None:
    recorder.handler = lambda _: Answer(body=bytes(range(256)) * 40_000)
    came = await world.send(_get(f"X-Api-Key: {HELD}"))
    assert came.endswith(bytes(range(256)) * 40_000)


async def test_an_answer_that_ends_in_the_middle_is_broken_off(
    world: BoundWorld, recorder: Recorder
) -> None:
    recorder.handler = lambda _: Answer(
        headers=[("content-length", "100")], chunks=[b"only"], hang_up=True
    )
    came = await world.send(_get(f"X-Api-Key: {HELD}"))
    assert not came.endswith(b"0\r\n\r\n")
    assert world.results[0].broken


async def test_a_connection_that_the_server_closed_is_made_anew(
    world: BoundWorld, recorder: Recorder
) -> None:
    recorder.handler = lambda _: Answer(headers=[("connection", "close")])
    reader, writer = await world.connect()
    for _ in range(3):
        writer.write(_request(f"GET / HTTP/1.1\nHost: api.test\nX-Api-Key: {HELD}"))
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(2) == b"ok"
        await asyncio.sleep(0)
    writer.close()
    assert recorder.connections == 3
