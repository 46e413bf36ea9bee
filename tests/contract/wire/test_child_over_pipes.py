"""A real child process that speaks lines over pipes, against framer, decoder and correlator."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kaged.wire
from kaged.wire import fastjson
from kaged.wire.correlator import Correlator, Ignored, OpenRequest
from kaged.wire.framing import OversizeMessage
from kaged.wire.lines import LineFramer
from kaged.wire.messages import (
    Batch,
    Incoming,
    Invalid,
    Noise,
    Notification,
    Request,
    Response,
    rejection,
)
from requirements import requirement

_WAIT_S = 20
_SOURCE = str(Path(kaged.wire.__file__ or "").parents[2])


@dataclass
class Talk:
    """One conversation: the host's half of it, with nothing but `kaged.wire` in between."""

    process: asyncio.subprocess.Process
    framer: LineFramer = field(default_factory=LineFramer)
    correlator: Correlator[str] = field(default_factory=Correlator[str])
    answers: dict[str, Response] = field(default_factory=dict[str, Response])
    others: list[Incoming | Ignored] = field(default_factory=list[Incoming | Ignored])

    def call(self, method: str, params: dict[str, str], caller: str) -> int:
        request = self.correlator.open(method, caller)
        self.send(Request(request.id, method, {**params}))
        return request.id

    def send(self, message: Request | Notification | Response) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(self.framer.encode(fastjson.encode_message(message)))

    async def pump(self) -> None:
        """Read once and handle what is complete."""
        assert self.process.stdout is not None
        chunk = await asyncio.wait_for(self.process.stdout.read(65_536), _WAIT_S)
        assert chunk, "the child closed its output"
        for line in self.framer.feed(chunk):
            message = fastjson.decode_message(line)
            if isinstance(message, Response):
                settled = self.correlator.settle(message)
                if isinstance(settled, OpenRequest):
                    self.answers[settled.waiter] = message
                else:
                    self.others.append(settled)
            else:
                self.others.append(message)
                if isinstance(message, Batch | Invalid | Noise):
                    refusal = rejection(message)
                    if refusal is not None:
                        self.send(refusal)

    async def until_answered(self, *callers: str) -> list[object]:
        while not self.answers.keys() >= set(callers):
            await self.pump()
        return [self.answers[caller].result for caller in callers]


@asynccontextmanager
async def _child(script: str, *flags: str) -> AsyncGenerator[Talk]:
    process = await asyncio.create_subprocess_exec(  # noqa: TID251 - a test of pipes, no cage yet
        sys.executable,
        *flags,
        "-c",
        script,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": _SOURCE},
    )
    try:
        yield Talk(process)
    finally:
        if process.returncode is None:
            process.kill()
        # Drain and close both pipes, so that no transport outlives the test.
        await process.communicate()


# A stub with the json module alone; `barrier` makes "wait" mean a message, not a sleep.
_STUB = """
import json, sys
out = sys.stdout.buffer
def read():
    return json.loads(sys.stdin.readline())
def answer(request, result):
    line = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}, ensure_ascii=False)
    return line.encode() + b"\\n"
def write(data):
    out.write(data)
    out.flush()
"""


@requirement("PH-WIRE-05")
async def test_half_a_reply_waits_for_the_rest_and_two_in_one_write_both_resolve() -> None:
    script = f"""{_STUB}
first = answer(read(), "split")
write(first[:20])
read()                      # go on only when the host has seen the first half
write(first[20:])
write(answer(read(), "two") + answer(read(), "three"))
"""
    async with _child(script) as talk:
        talk.call("a.b", {}, "first")
        await talk.pump()
        assert talk.answers == {}
        assert talk.framer.buffered_bytes == 20
        talk.send(Notification("go.on"))
        assert await talk.until_answered("first") == ["split"]

        talk.call("a.b", {}, "second")
        talk.call("a.b", {}, "third")
        assert await talk.until_answered("second", "third") == ["two", "three"]


@requirement("PH-WIRE-06")
async def test_a_reply_flushed_inside_a_character_is_intact() -> None:
    script = f"""{_STUB}
for cut in (1, 2, 3):
    data = answer(read(), "x𝄞y")
    at = data.index("𝄞".encode()) + cut
    write(data[:at])
    read()
    write(data[at:])
"""
    async with _child(script) as talk:
        for number in range(3):
            talk.call("a.b", {}, f"caller {number}")
            await talk.pump()
            assert talk.framer.buffered_bytes > 0
            talk.send(Notification("go.on"))
            assert await talk.until_answered(f"caller {number}") == ["x𝄞y"]


@requirement("PH-WIRE-25")
async def test_two_answers_in_reverse_order_reach_their_own_callers() -> None:
    script = f"""{_STUB}
one, two = read(), read()
write(answer(two, two["params"]["text"]))
write(answer(one, one["params"]["text"]))
"""
    async with _child(script) as talk:
        talk.call("a.b", {"text": "for one"}, "one")
        talk.call("a.b", {"text": "for two"}, "two")
        assert await talk.until_answered("one", "two") == ["for one", "for two"]


async def test_text_with_line_breaks_is_one_line_and_arrives_unchanged() -> None:
    script = f"""{_STUB}
request = read()
write(answer(request, request["params"]["text"]))
"""
    text = "one\ntwo\r\nthree\u2028four\x85five\x00"
    async with _child(script) as talk:
        talk.call("a.b", {"text": text}, "caller")
        assert await talk.until_answered("caller") == [text]


async def test_hostile_lines_are_survived_and_the_next_call_works() -> None:
    script = f"""{_STUB}
read()
write(b"hello\\n" b'{{"jsonrpc":"2.0","id":1,"result":NaN}}\\n' b'{{"x":"\\xff"}}\\n')
write(b"[" * 5000 + b"]" * 5000 + b"\\n")
write(b'[{{"jsonrpc":"2.0","id":1,"result":"from a batch"}}]\\n')
refusal = read()
write(b'17\\n')
second = read()
for number in (9999, None, 0):
    write(answer({{"id": number}}, "nobody asked"))
line = answer({{"id": 1}}, [refusal, second])
write(line[:-1] + b"\\r\\n")
"""
    async with _child(script) as talk:
        talk.call("a.b", {}, "caller")
        (seen,) = await talk.until_answered("caller")
        kinds = [type(other).__name__ for other in talk.others]
        assert kinds == ["Noise"] * 4 + ["Batch", "Invalid"] + ["Ignored"] * 3
        assert talk.others[-3:] == [Ignored.UNKNOWN, Ignored.NULL_ID, Ignored.UNKNOWN]
        # What the child was told: the batch and the number, once each, and nothing about noise.
        assert [(r["id"], r["error"]["code"]) for r in seen] == [(None, -32600)] * 2  # pyright: ignore[reportGeneralTypeIssues] - JSON from the child


async def test_a_child_that_never_ends_its_line_is_noticed_at_the_limit() -> None:
    script = f"""{_STUB}
while True:
    write(b"x" * 65536)
"""
    async with _child(script) as talk:
        with pytest.raises(OversizeMessage):
            await talk.until_answered("nobody")
        assert talk.framer.buffered_bytes == 0
        talk.process.kill()


async def test_a_guest_speaks_with_the_standard_library_alone() -> None:
    """The same modules on both ends; the guest's interpreter has no third-party packages."""
    script = """
import sys
from kaged.wire.lines import LineFramer
from kaged.wire.strictjson import decode_message, encode_message
from kaged.wire.messages import Batch, Invalid, Noise, Request, Response, rejection
from kaged.wire.correlator import Correlator
import kaged.wire.bridge_methods, kaged.wire.context, kaged.wire.length_prefixed, kaged.wire.methods
import kaged.wire.content_length, kaged.wire.envelope, kaged.wire.token_keys, kaged.wire.tokens
framer, out = LineFramer(), sys.stdout.buffer
while chunk := sys.stdin.buffer.raw.read(65536):
    for line in framer.feed(chunk):
        message = decode_message(line)
        if isinstance(message, Request):
            reply = Response(message.id, sorted(set(sys.modules) & {"msgspec", "pydantic"}))
        else:
            reply = rejection(message, answer_noise=True)
        out.write(framer.encode(encode_message(reply)))
        out.flush()
"""
    async with _child(script, "-S") as talk:
        assert talk.process.stdin is not None
        talk.process.stdin.write(b"not json\n")
        talk.process.stdin.write(b"[]\n")
        talk.call("a.b", {}, "caller")
        assert await talk.until_answered("caller") == [[]]
        assert talk.others == [Ignored.NULL_ID] * 2
