"""Several debug sessions shown as one: numbers, breakpoints, stops; and the relay's messages."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import JsonObject
from kaged.toolbox.dap import adapter_relay
from kaged.toolbox.dap.adapter_relay import CLOSE, DATA, EXITED, HEAD, OPEN, OUTPUT, RUN, STARTED
from kaged.toolbox.dap.breakpoints import Breakpoints, OtherBreakpoint, SourceBreakpoint
from kaged.toolbox.dap.channels import MAX_CHANNELS, Channels
from kaged.toolbox.dap.errors import DapRequestFailed, DapSessionEnded
from kaged.toolbox.dap.family import Family
from kaged.toolbox.dap.numbers import Numbers
from kaged.toolbox.dap.state import OUTPUT_LIMIT_CHARS, CapturedOutput, Frames


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Pipe(asyncio.WriteTransport):
    """What the relay would read; `sent` are its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def taken(self) -> list[tuple[int, int, bytes]]:
        found: list[tuple[int, int, bytes]] = []
        while self.data:
            kind, number, size = HEAD.unpack_from(self.data)
            found.append((kind, number, self.data[HEAD.size : HEAD.size + size]))
            self.data = self.data[HEAD.size + size :]
        return found


class Stage:
    """A family on a relay that is played by the test."""

    def __init__(self, **more: Any) -> None:
        self.events: list[tuple[str, JsonObject]] = []
        self.closed = 0
        self.family = Family(
            lambda name, body: self.events.append((name, body)), self._closed, **more
        )
        self.pipe = Pipe()
        self.family.channels.write_to(self.pipe)
        self.messages: list[tuple[int, Any]] = []

    def _closed(self) -> None:
        self.closed += 1

    def hear(self, kind: int, number: int, body: bytes = b"") -> None:
        self.family.channels.data_received(HEAD.pack(kind, number, len(body)) + body)

    def say(self, number: int, message: JsonObject) -> None:
        body = json.dumps(message).encode()
        self.hear(DATA, number, b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def event(self, number: int, event: str, **body: Any) -> None:
        self.say(number, {"type": "event", "event": event, "body": body})

    async def asked(self, number: int, command: str) -> Any:
        """Wait for a request to a session and return it."""
        async with asyncio.timeout(20):
            while True:
                for kind, channel, body in self.pipe.taken():
                    if kind == DATA:
                        text = body.partition(b"\r\n\r\n")[2]
                        self.messages.append((channel, json.loads(text)))
                for one in self.messages:
                    if one[0] == number and one[1].get("command") == command:
                        self.messages.remove(one)
                        return one[1]
                await asyncio.sleep(0)

    def answer(self, number: int, request: Any, **body: Any) -> None:
        self.say(
            number,
            {
                "type": "response",
                "request_seq": request["seq"],
                "command": request["command"],
                "success": True,
                "body": body,
            },
        )

    async def ask(self, number: int, command: str, arguments: Any = None, **body: Any) -> Any:
        """Ask the family, let a session answer, and return what comes of it."""
        asking = asyncio.ensure_future(self.family.request(command, arguments))  # noqa: TID251 - awaited below
        self.answer(number, await self.asked(number, command), **body)
        return await asking

    async def child(self, number: int) -> None:
        """Let the adapter ask for a session, and open it."""
        asked: JsonObject = {"request": "launch", "configuration": {"n": number}}
        self.say(
            0, {"type": "request", "seq": number, "command": "startDebugging", "arguments": asked}
        )
        self.answer(number, await self.asked(number, "initialize"))
        launch = await self.asked(number, "launch")
        assert launch["arguments"] == {"n": number}
        self.answer(number, launch)
        self.event(number, "initialized")
        await turns()


@pytest.fixture
async def stage() -> Any:
    made = Stage()
    yield made
    await made.family.close()


# -- families ----------------------------------------------------------------------------------


async def test_child_sessions_are_opened_and_their_threads_told_apart(stage: Stage) -> None:
    asking = await stage.ask(0, "initialize", {"clientID": "kaged"})
    assert asking == {}
    await stage.child(1)
    await stage.child(2)
    listing = asyncio.ensure_future(stage.family.request("threads"))  # noqa: TID251 - awaited below
    for number in (1, 2):
        stage.answer(
            number, await stage.asked(number, "threads"), threads=[{"id": 1, "name": f"p{number}"}]
        )
    threads: Any = await listing
    assert [(one["id"], one["name"]) for one in threads["threads"]] == [(1, "p1"), (2, "p2")]

    stage.event(2, "stopped", reason="breakpoint", threadId=1)
    assert stage.events[-1] == ("stopped", {"reason": "breakpoint", "threadId": 2})
    frames = await stage.ask(2, "stackTrace", {"threadId": 2}, stackFrames=[{"id": 0}, {"id": 9}])
    assert len({one["id"] for one in frames["stackFrames"]}) == 2
    frame = frames["stackFrames"][1]["id"]
    asking = asyncio.ensure_future(stage.family.request("scopes", {"frameId": frame}))  # noqa: TID251 - awaited below
    request = await stage.asked(2, "scopes")
    assert request["arguments"] == {"frameId": 9}
    stage.answer(2, request, scopes=[{"variablesReference": 4}, {"variablesReference": 0}])
    scopes: Any = await asking
    assert scopes["scopes"][1] == {"variablesReference": 0}
    reference = scopes["scopes"][0]["variablesReference"]
    asking = asyncio.ensure_future(  # noqa: TID251 - awaited below
        stage.family.request("variables", {"variablesReference": reference})
    )
    request = await stage.asked(2, "variables")
    assert request["arguments"] == {"variablesReference": 4}
    stage.answer(2, request, variables=[])
    assert await asking == {"variables": []}


async def test_a_breakpoint_is_one_however_many_sessions_know_it(stage: Stage) -> None:
    wanted: JsonObject = {"source": {"path": "/a.js"}, "breakpoints": [{"line": 3}, {"line": 5}]}
    said = await stage.ask(
        0, "setBreakpoints", wanted, breakpoints=[{"id": 70}, {"id": 71, "verified": False}]
    )
    assert [one["id"] for one in said["breakpoints"]] == [1, 2]
    opening = asyncio.ensure_future(stage.child(1))  # noqa: TID251 - awaited below
    request = await stage.asked(1, "setBreakpoints")
    assert request["arguments"] == wanted
    stage.answer(1, request, breakpoints=[{"id": 500, "verified": True}, {"id": 501}])
    await opening
    changed = [body["breakpoint"] for name, body in stage.events if name == "breakpoint"]
    assert changed == [{"id": 1, "verified": True}, {"id": 2}]
    stage.event(1, "breakpoint", breakpoint={"id": 501, "verified": True})
    assert stage.events[-1] == ("breakpoint", {"breakpoint": {"id": 2, "verified": True}})
    stage.event(1, "stopped", reason="breakpoint", threadId=1, hitBreakpointIds=[501, 999])
    assert stage.events[-1][1]["hitBreakpointIds"] == [2]
    # The list that takes its place has new numbers; both sessions are told.
    wanted = {"source": {"path": "/a.js"}, "breakpoints": [{"line": 5}]}
    asking = asyncio.ensure_future(stage.family.request("setBreakpoints", wanted))  # noqa: TID251 - awaited below
    stage.answer(0, await stage.asked(0, "setBreakpoints"), breakpoints=[{"id": 71}])
    stage.answer(1, await stage.asked(1, "setBreakpoints"), breakpoints=[{"id": 501}])
    shown: Any = await asking
    assert [one["id"] for one in shown["breakpoints"]] == [3]
    stage.event(1, "stopped", reason="breakpoint", threadId=1, hitBreakpointIds=[501])
    assert stage.events[-1][1]["hitBreakpointIds"] == [3]


async def test_a_program_that_is_held_meanwhile_is_shown_when_the_other_goes_on(
    stage: Stage,
) -> None:
    await stage.child(1)
    await stage.child(2)
    stage.event(1, "stopped", reason="breakpoint", threadId=1)
    stage.event(2, "stopped", reason="breakpoint", threadId=1)
    assert stage.events[-1][1]["threadId"] == 2
    await stage.ask(2, "continue", {"threadId": 2})
    assert stage.events[-1] == ("stopped", {"reason": "breakpoint", "threadId": 1})
    stage.event(1, "terminated")
    assert stage.events[-1] == ("continued", {})
    with pytest.raises(DapRequestFailed, match="has ended"):
        await stage.family.request("stackTrace", {"frameId": 1 << 40})


async def test_one_program_that_goes_on_does_not_hide_another_that_is_held(stage: Stage) -> None:
    await stage.child(1)
    await stage.child(2)
    stage.event(1, "stopped", reason="breakpoint", threadId=1)
    await stage.ask(1, "continue", {"threadId": 1})
    stage.event(2, "stopped", reason="breakpoint", threadId=1)
    held = stage.events[-1]
    assert held == ("stopped", {"reason": "breakpoint", "threadId": 2})
    stage.event(1, "continued", threadId=1)  # late: the answer came before it
    assert stage.events[-1] is held
    stage.event(1, "stopped", reason="pause", threadId=1)
    stage.event(1, "continued", threadId=1)
    assert stage.events[-1] == held  # what is still held is shown again
    stage.event(1, "terminated")
    assert stage.events[-1] == held
    stage.event(2, "continued", threadId=1)
    assert stage.events[-1] == ("continued", {"threadId": 2})


async def test_the_exit_code_comes_before_the_end(stage: Stage) -> None:
    asked: JsonObject = {"args": ["prog"], "cwd": "/p", "env": {"A": None}}
    stage.say(0, {"type": "request", "seq": 5, "command": "runInTerminal", "arguments": asked})
    await turns()
    (sent,) = [one for one in stage.pipe.taken() if one[0] == RUN]
    assert json.loads(sent[2]) == asked
    stage.hear(STARTED, 0, b'{"pid": 7}')
    await turns()
    stage.event(0, "terminated")
    await turns()
    assert stage.events == []
    stage.hear(OUTPUT, 1, "añ".encode()[:2])
    stage.hear(OUTPUT, 1, "añ".encode()[2:])
    stage.hear(EXITED, 0, b'{"code": 3}')
    assert stage.events == [
        ("output", {"category": "stdout", "output": "a"}),
        ("output", {"category": "stdout", "output": "ñ"}),
        ("exited", {"exitCode": 3}),
        ("terminated", {}),
    ]


async def test_an_adapter_that_tells_last_is_told_goodbye() -> None:
    stage = Stage(tells_last=True)
    stage.event(0, "terminated")
    goodbye = await stage.asked(0, "disconnect")
    text = "Process 12 has exited with status 3\n"
    stage.event(0, "output", category="stdout", output=text)  # the program's own words
    assert [name for name, _ in stage.events] == ["output"]
    stage.event(0, "output", category="console", output=text)
    stage.answer(0, goodbye)
    await turns()
    assert stage.events[-1] == ("terminated", {})
    assert ("exited", {"exitCode": 3}) in stage.events
    await stage.family.close()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("startDebugging", {"request": "fly", "configuration": {}}),
        ("startDebugging", {"request": "launch"}),
        ("runInTerminal", {"args": []}),
        ("runInTerminal", {"args": [5]}),
        ("somethingElse", {}),
    ],
)
async def test_what_cannot_be_done_is_refused(
    stage: Stage, command: str, arguments: JsonObject
) -> None:
    stage.say(0, {"type": "request", "seq": 5, "command": command, "arguments": arguments})
    answer = await stage.asked(0, command)
    assert (answer["type"], answer["success"], answer["request_seq"]) == ("response", False, 5)


async def test_a_relay_that_goes_fails_what_is_open_and_is_heard_of_once(stage: Stage) -> None:
    await stage.child(1)
    asking = asyncio.ensure_future(stage.family.request("threads"))  # noqa: TID251 - awaited below
    await stage.asked(1, "threads")
    stage.hear(CLOSE, 0)
    stage.family.channels.connection_lost(None)
    with pytest.raises(DapSessionEnded):
        await asking
    assert stage.closed == 1
    assert stage.family.is_open is False


# -- channels ----------------------------------------------------------------------------------


async def test_there_are_only_so_many_channels() -> None:
    pipe = Pipe()
    channels = Channels(lambda *_: None, lambda _: None, lambda: None)
    channels.write_to(pipe)
    for _ in range(MAX_CHANNELS):
        channels.open(cast("Any", asyncio.Protocol()))
    with pytest.raises(DapRequestFailed):
        channels.open(cast("Any", asyncio.Protocol()))
    assert [one[0] for one in pipe.taken()] == [OPEN] * (MAX_CHANNELS - 1)


@given(st.binary(max_size=200))
def test_garbage_from_a_relay_breaks_nothing(data: bytes) -> None:
    gone: list[bool] = []
    channels = Channels(lambda *_: None, lambda _: None, lambda: gone.append(True))
    channels.data_received(data)
    channels.connection_lost(None)
    assert gone == [True]


def test_sockets_of_this_user_are_told_from_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert adapter_relay._is_ours(port, "0A") is True
        assert adapter_relay._is_ours(port, "01") is False
    assert adapter_relay._is_ours(port, "0A") is False
    assert os.getuid() >= 0


# -- the rest ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(-5, 100)), max_size=40))
def test_threads_of_all_sessions_have_numbers_of_their_own(asked: list[tuple[int, int]]) -> None:
    numbers = Numbers()
    given_out = {one: numbers.thread(*one) for one in asked}
    assert len(set(given_out.values())) == len(given_out)
    for (session, own), ours in given_out.items():
        assert numbers.thread(session, own) == ours
        assert numbers.addressed({"threadId": ours}) == (session, {"threadId": own})


def test_a_stop_is_about_the_breakpoint_that_is_named_or_lies_there() -> None:
    known = Breakpoints()
    known.sources["/a"] = {3: SourceBreakpoint(1, "/a", "./a", 3, adapter_id=70)}
    known.data["d"] = OtherBreakpoint(2, {}, adapter_id=71)
    known.instructions["0x1", 0] = OtherBreakpoint(3, {}, adapter_id=72)

    def hit(**body: Any) -> int | None:
        found = known.hit(body, "/a", 3)
        return None if found is None else found.id

    assert [hit(hitBreakpointIds=[number]) for number in (70, 71, 72)] == [1, 2, 3]
    assert hit() == 1
    assert hit(reason="data breakpoint") == 2
    assert hit(reason="breakpoint", description="watchpoint 1") == 2
    known.data["e"] = OtherBreakpoint(4, {})
    assert hit(reason="data breakpoint") == 1


@pytest.mark.parametrize("says_total", [False, True])
async def test_frames_are_asked_for_once_and_again_after_a_move(says_total: bool) -> None:
    frames, asked = Frames(), 0

    async def ask(command: str, arguments: JsonObject) -> JsonObject:
        nonlocal asked
        asked += 1
        shown = min(cast("int", arguments.get("levels", 5)), 5)
        said: JsonObject = {"stackFrames": [{"id": n} for n in range(shown)]}
        return {**said, "totalFrames": 5} if says_total else said

    assert await frames.top(1, 2, ask) == [{"id": 0}, {"id": 1}]
    assert await frames.top(1, 1, ask) == [{"id": 0}]
    assert asked == 1
    assert await frames.count(1, ask) == 5
    assert await frames.count(1, ask) == 5
    assert asked == (1 if says_total else 2)
    assert len(await frames.top(1, 9, ask)) == 5
    before = asked
    assert len(await frames.top(1, 20, ask)) == 5  # there are no more
    assert asked == before
    frames.forget()
    await frames.top(1, 5, ask)
    assert asked == before + 1


def test_output_is_bounded_and_given_once() -> None:
    output = CapturedOutput()
    output.hear({"category": "telemetry", "output": "secret"})
    output.hear({"output": 5})
    for _ in range(10):
        output.hear({"output": "x" * 10_000})
    assert output.take() == "x" * OUTPUT_LIMIT_CHARS
    assert output.take() == ""
    output.hear({"category": "stdout", "output": "again"})
    assert output.take() == "again"
