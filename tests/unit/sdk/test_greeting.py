"""The greeting before the event loop: what it takes, it answers as the conversation would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.sdk import Plugin, create_plugin
from kaged.sdk.handshake import GuestHandshake, HandshakePhase

HELLO = {
    "daemon_version": "0.1.0",
    "api_version": 1,
    "plugin_name": "sample",
    "storage_available": True,
    "projects": ["prj_1"],
}


def message(method: str, message_id: int | str | None = 1, **more: Any) -> bytes:
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, **more}
    if message_id is not None:
        body["id"] = message_id
    return json.dumps(body).encode()


INITIALIZE = message("initialize", params=HELLO)
INITIALIZED = message("initialized", None, params={})
PING = message("ping", 7, params={})
SHUTDOWN = message("shutdown", None, params={})


def sample() -> Plugin:
    async def echo(params: dict[str, Any], context: object) -> dict[str, Any]:
        del context
        return params

    plugin = create_plugin("sample", "1.2.3", {"echo.say": echo}, ["a.b"], capabilities_used=["x"])
    plugin.hook("pre_compact")(echo)
    return plugin


def greeted(*lines: bytes) -> tuple[GuestHandshake, list[bytes], list[bool]]:
    written: list[bytes] = []
    greeting = GuestHandshake(sample(), written.append)
    return greeting, written, [greeting.take(line) for line in lines]


def test_the_handshake_and_pings_need_no_event_loop() -> None:
    greeting, written, taken = greeted(INITIALIZE, INITIALIZED, PING)
    assert taken == [True, True, True]
    assert greeting.phase is HandshakePhase.READY
    hello, pong = map(json.loads, written)
    assert hello["result"]["methods"] == ["echo.say"]
    assert pong == {"jsonrpc": "2.0", "id": 7, "result": {"status": "ok"}}


def test_a_shutdown_ends_a_plugin_that_has_nothing_to_flush() -> None:
    greeting, written, taken = greeted(INITIALIZE, INITIALIZED, SHUTDOWN)
    assert taken[-1]
    assert greeting.phase is HandshakePhase.STOPPING
    assert len(written) == 1


@pytest.mark.parametrize("ends", ["shutdown", "end of input"])
def test_a_plugin_with_something_to_flush_is_ended_by_the_conversation(ends: str) -> None:
    plugin = sample()
    plugin.shutdown(lambda: None)
    greeting = GuestHandshake(plugin, lambda _: None)
    if ends == "shutdown":
        assert not greeting.take(SHUTDOWN)
    else:
        greeting.end()
    assert greeting.phase is HandshakePhase.NEW


@pytest.mark.parametrize(
    "line",
    [
        message("echo.say", params={}),
        message("initialize", params={**HELLO, "plugin_name": "other"}),
        message("initialize", params={**HELLO, "api_version": 2}),
        message("initialize", params={**HELLO, "api_version": True}),
        INITIALIZE.replace(b"true", b"1e999"),
        message("initialize", params={**HELLO, "deep": [[[]]] * 40}),
        message("initialize", params={**HELLO, "projects": ["ä"]}),
        message("initialize", params=[1]),
        message("initialize", None, params=HELLO),
        message("ping", params={}),
        INITIALIZED,
        INITIALIZE.replace(b"2.0", b"1.0"),
        INITIALIZE.replace(b"true", b"NaN"),
        INITIALIZE.replace(b'"id": 1', b'"id": true'),
        INITIALIZE[:-1],
        b"[]",
        b"7",
        b"",
        b"\xff",
    ],
)
def test_whatever_else_comes_first_is_left_to_the_conversation(line: bytes) -> None:
    greeting, written, taken = greeted(line)
    assert (greeting.phase, written, taken) == (HandshakePhase.NEW, [], [False])


def test_an_introduction_that_is_no_json_is_left_to_the_conversation() -> None:
    plugin = sample()
    plugin.capabilities_used = [b"x"]  # type: ignore[list-item]  # what an author may do wrong
    greeting = GuestHandshake(plugin, lambda _: None)
    assert not greeting.take(INITIALIZE)
    assert greeting.phase is HandshakePhase.NEW


LINES = st.lists(
    st.sampled_from([INITIALIZE, INITIALIZED, PING, SHUTDOWN])
    | st.builds(
        message,
        st.sampled_from(["initialize", "initialized", "ping", "shutdown", "echo.say"]),
        st.none() | st.integers(0, 3) | st.just("text"),
        params=st.just(HELLO) | st.just({}) | st.just([]) | st.none(),
    ),
    max_size=6,
)


@given(lines=LINES)
async def test_what_is_taken_is_answered_as_the_conversation_answers(lines: list[bytes]) -> None:
    written: list[bytes] = []
    greeting = GuestHandshake(sample(), written.append)
    taken: list[bytes] = []
    for line in lines:
        if greeting.phase is HandshakePhase.STOPPING or not greeting.take(line):
            break
        taken.append(line)
    answers: list[bytes] = []
    conversation = sample().converse(answers.append)
    for line in taken:
        conversation.receive(line)
    conversation.flush()
    assert b"".join(answers) == b"".join(written)
    if greeting.phase is HandshakePhase.STOPPING:
        await conversation.stopped.wait()
        assert conversation.exit_code == 0


async def test_a_conversation_goes_on_where_the_greeting_ended() -> None:
    plugin = sample()
    written: list[bytes] = []
    conversation = plugin.converse(written.append, HandshakePhase.READY)
    plugin.notify("a.b", {"n": 1})
    conversation.receive(PING)
    conversation.flush()
    notice, pong = map(json.loads, b"".join(written).splitlines())
    assert notice["params"] == {"n": 1}
    assert pong["result"] == {"status": "ok"}
