"""Messages per second through framer, decoder and correlator, small ones and of 1 MiB.

Run it alone with `python benchmarks/bench_framing.py`; `run()` returns the suite's rows. Each
figure is the best of several rounds, and each peer is measured in the same rounds, so a busy
machine hits both alike.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kaged.wire import fastjson
from kaged.wire.content_length import ContentLengthFramer
from kaged.wire.correlator import Correlator, OpenRequest
from kaged.wire.length_prefixed import LengthPrefixFramer
from kaged.wire.lines import LineFramer
from kaged.wire.messages import Request, Response
from scoreboard import Row, at_least, at_most, row, show

_SMALL_PER_SECOND = 150_000
_LARGE_RATIO = 1.5
_IN_FLIGHT = 50
_ROUNDS = 5
_READ_BYTES = 65_536
_bare_decode = msgspec.json.Decoder().decode


def run() -> list[Row]:
    rows = [_small(), _round_trip()]
    rows += [_large("rows", _rows(), rounds=20), _large("text", _text(), rounds=100)]
    rows += [_small_framing(name, framer) for name, framer in _OTHER_FRAMERS.items()]
    return rows


_OTHER_FRAMERS: dict[str, Callable[[], Any]] = {
    "content-length": ContentLengthFramer,
    "length-prefix": LengthPrefixFramer,
}


def _rounds(
    ours: Callable[[], None], peer: Callable[[], None], rounds: int = _ROUNDS
) -> tuple[list[float], list[float]]:
    """Time both in turn; the best of each counts."""
    our_s: list[float] = []
    peer_s: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        ours()
        middle = time.perf_counter()
        peer()
        our_s.append(middle - start)
        peer_s.append(time.perf_counter() - middle)
    return our_s, peer_s


def _answers(count: int) -> list[bytes]:
    return [
        fastjson.encode_message(Response(number, {"status": "ok", "items": [1, 2, 3]}))
        for number in range(1, count + 1)
    ]


def _settle_all(framer: Any, chunks: list[bytes]) -> None:
    """Receive chunks of answers: open the calls they belong to, then find each caller."""
    correlator: Correlator[None] = Correlator(open_limit=_IN_FLIGHT)
    settled = 0
    for chunk in chunks:
        for _ in range(_IN_FLIGHT):
            correlator.open("presets.list", None, 30.0)
        for line in framer.feed(chunk):
            message = fastjson.decode_message(line)
            assert isinstance(message, Response)
            settled += isinstance(correlator.settle(message), OpenRequest)
    assert settled == len(chunks) * _IN_FLIGHT


def _chunks(frames: list[bytes]) -> list[bytes]:
    return [b"".join(frames[i : i + _IN_FLIGHT]) for i in range(0, len(frames), _IN_FLIGHT)]


def _small() -> Row:
    count = 20_000
    chunks = _chunks([answer + b"\n" for answer in _answers(count)])

    def peer() -> None:
        for chunk in chunks:
            for line in chunk.split(b"\n")[:-1]:
                _bare_decode(line)

    ours_s, peer_s = _rounds(lambda: _settle_all(LineFramer(), chunks), peer)
    ours = count / min(ours_s)
    return row(
        "small answers: lines, decoding, correlation",
        ours,
        "messages/s",
        against="bare split and msgspec decode, nothing checked",
        peer=count / min(peer_s),
        target=at_least(_SMALL_PER_SECOND, ours, "messages/s"),
        samples=ours_s,
    )


def _round_trip() -> Row:
    """Both directions of a call: number it, encode it, decode the answer, find the caller."""
    count = 10_000
    answers = [answer + b"\n" for answer in _answers(count)]
    params: Any = {"filter": "web", "limit": 20}

    def ours() -> None:
        framer, correlator = LineFramer(), Correlator[None]()
        for answer in answers:
            request = correlator.open("presets.list", None, 30.0)
            framer.encode(fastjson.encode_message(Request(request.id, request.method, params)))
            (line,) = framer.feed(answer)
            message = fastjson.decode_message(line)
            assert isinstance(message, Response)
            correlator.settle(message)

    def peer() -> None:
        for number, answer in enumerate(answers):
            request = {"jsonrpc": "2.0", "id": number, "method": "presets.list", "params": params}
            (json.dumps(request) + "\n").encode()
            json.loads(answer)

    ours_s, peer_s = _rounds(ours, peer)
    return row(
        "one call and its answer, one at a time",
        count / min(ours_s),
        "calls/s",
        against="json.dumps and json.loads, nothing checked or matched",
        peer=count / min(peer_s),
        target=at_most(1.0, min(ours_s) / min(peer_s), "x"),
        samples=ours_s,
    )


def _rows() -> bytes:
    rows = [
        {"id": i, "name": f"item {i}", "tags": ["a", "b"], "pos": {"line": i, "character": 3}}
        for i in range(13_000)
    ]
    return fastjson.encode_message(Response(1, {"rows": rows}))  # pyright: ignore[reportArgumentType] - plain JSON


def _text() -> bytes:
    return fastjson.encode_message(Response(1, {"text": 'a line of text, "quoted"\n' * 38_000}))


def _large(name: str, payload: bytes, rounds: int) -> Row:
    line = payload + b"\n"
    reads = [line[i : i + _READ_BYTES] for i in range(0, len(line), _READ_BYTES)]

    def ours() -> None:
        framer, correlator = LineFramer(), Correlator[None]()
        correlator.open("presets.list", None)
        for read in reads:
            for whole in framer.feed(read):
                message = fastjson.decode_message(whole)
                assert isinstance(message, Response)
                assert isinstance(correlator.settle(message), OpenRequest)

    ours_s, peer_s = _rounds(ours, lambda: _bare_decode(payload), rounds)
    return row(
        f"{len(line) / 2**20:.1f} MiB of {name} in 64 KiB reads",
        len(line) / min(ours_s) / 1e6,
        "MB/s",
        against="bare msgspec decode of the whole payload",
        peer=len(line) / min(peer_s) / 1e6,
        target=at_most(_LARGE_RATIO, min(ours_s) / min(peer_s), "x"),
        samples=ours_s,
    )


def _small_framing(name: str, framer: Callable[[], Any]) -> Row:
    count = 10_000
    chunks = _chunks([framer().encode(answer) for answer in _answers(count)])
    lines = _chunks([answer + b"\n" for answer in _answers(count)])
    ours_s, peer_s = _rounds(
        lambda: _settle_all(framer(), chunks), lambda: _settle_all(LineFramer(), lines)
    )
    return row(
        f"small answers: {name}, decoding, correlation",
        count / min(ours_s),
        "messages/s",
        against="the same over lines",
        peer=count / min(peer_s),
        target=at_most(2.0, min(ours_s) / min(peer_s), "x"),
        samples=ours_s,
    )


if __name__ == "__main__":
    show(run())
