"""A plugin that nobody has called yet: small, awake, and heard when it speaks up by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fakes.plugin_talk import PluginTalk

START = """
import sys, threading
from kaged.sdk import create_plugin
async def loaded(params, context): return "asyncio" in sys.modules
plugin = create_plugin("sample", "1.0.0", {"sample.loaded": loaded}, ["late.word"])
def later():
    with open(sys.argv[1]) as signal: signal.read()
    SAY
threading.Thread(target=later, daemon=True).start()
plugin.start()
"""


def talk_of(folder: Path, say: str) -> tuple[PluginTalk, Path]:
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    main = folder / "main.py"
    main.write_text(START.replace("SAY", say), encoding="utf-8")
    return PluginTalk([sys.executable, main, fifo]), fifo


async def ready(talk: PluginTalk) -> None:
    await talk.greet()
    talk.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
    assert (await talk.request(2, "ping"))["result"] == {"status": "ok"}


async def test_a_first_call_finds_everything_it_needs(tmp_path: Path) -> None:
    talk, _ = talk_of(tmp_path, "pass")
    async with talk:
        await ready(talk)
        assert (await talk.request(3, "sample.loaded"))["result"] is True
        assert (await talk.request(4, "ping"))["result"] == {"status": "ok"}


async def test_a_thread_is_heard_before_any_call_and_until_then_there_is_no_loop(
    tmp_path: Path,
) -> None:
    talk, fifo = talk_of(tmp_path, 'plugin.notify("late.word", {"loop": "asyncio" in sys.modules})')
    async with talk:
        await ready(talk)
        fifo.write_text("", encoding="utf-8")
        assert (await talk.receive())["params"] == {"loop": False}


async def test_a_thread_of_the_plugin_may_ask_the_host_before_any_call(tmp_path: Path) -> None:
    talk, fifo = talk_of(
        tmp_path,
        'plugin.notify("late.word", {"n": plugin.wait_for(plugin.storage.schema()).tables})',
    )
    async with talk:
        await ready(talk)
        fifo.write_text("", encoding="utf-8")
        asked = await talk.receive()
        assert asked["method"] == "kaged.storage.schema"
        talk.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"tables": ["t"]}})
        assert (await talk.receive())["params"] == {"n": ["t"]}


@pytest.mark.parametrize("ends", ["shutdown", "end of input"])
async def test_an_uncalled_plugin_ends_with_code_0(tmp_path: Path, ends: str) -> None:
    talk, _ = talk_of(tmp_path, "pass")
    async with talk:
        await ready(talk)
        assert talk.process.stdin is not None
        if ends == "shutdown":
            talk.send({"jsonrpc": "2.0", "method": "shutdown", "params": {}})
        else:
            talk.process.stdin.close()
        assert await talk.exit_code() == 0


CONFIGURED = """
import sys, threading
from kaged.sdk import ConfigInvalid, Plugin
plugin = Plugin("sample", "1.0.0")
seen = []
loop = lambda: "asyncio" in sys.modules
@plugin.config
HANDLER
plugin.notifications = ["late.word"]
@plugin.method("sample.seen")
def found(params, context): return seen
plugin.start()
"""
TAKES = "def configure(config): seen.append([config, loop()])"
REFUSES = "def configure(config): raise ConfigInvalid('no ' + str(config), detail={'a': 1})"
FAILS = "def configure(config): raise KeyError('x')"
ENDS = "def configure(config): sys.exit(3)"
AWAITS = """def configure(config):
    async def later(): seen.append([config, loop()])
    return later()"""
COROUTINE = "async def configure(config): seen.append([config, loop()])"
ASKS = """def configure(config):
    seen.append(plugin.wait_for(plugin.storage.schema()).tables)"""


def configured(folder: Path, handler: str) -> PluginTalk:
    main = folder / "main.py"
    main.write_text(CONFIGURED.replace("HANDLER", handler), encoding="utf-8")
    return PluginTalk([sys.executable, main])


@pytest.mark.parametrize(("handler", "loop"), [(TAKES, False), (AWAITS, True), (COROUTINE, True)])
async def test_a_configuration_reaches_any_handler_and_a_plain_one_without_a_loop(
    tmp_path: Path, handler: str, *, loop: bool
) -> None:
    async with configured(tmp_path, handler) as talk:
        await talk.greet()
        for number in (3, 4):  # one before the handshake is complete, one after it
            answer = await talk.request(number, "config.update", {"config": {"n": number}})
            assert answer == {"jsonrpc": "2.0", "id": number, "result": {}}
            if number == 3:
                talk.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        activated = await talk.request(5, "projects.activated", {"project": "p", "config": {}})
        assert activated["result"] is None
        seen = (await talk.request(6, "sample.seen"))["result"]
        assert seen == [[{"n": 3}, loop], [{"n": 4}, loop]]


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (REFUSES, {"code": -32004, "message": "no {'n': 1}", "data": {"a": 1}}),
        (FAILS, {"code": -32004, "message": "KeyError: 'x'"}),
        (ENDS, {"code": -32603, "message": "Internal error: SystemExit: 3"}),
    ],
)
async def test_a_refused_configuration_is_answered_as_it_is_after_a_call(
    tmp_path: Path, handler: str, error: dict[str, object]
) -> None:
    async with configured(tmp_path, handler) as talk:
        await ready(talk)
        early = await talk.request(3, "config.update", {"config": {"n": 1}})
        assert (await talk.request(4, "sample.seen"))["result"] == []
        late = await talk.request(5, "config.update", {"config": {"n": 1}})
        assert early["error"] == late["error"] == error


async def test_a_slow_configuration_holds_up_neither_pings_nor_what_it_asks_for(
    tmp_path: Path,
) -> None:
    async with configured(tmp_path, ASKS) as talk:
        await talk.greet()
        talk.send({"jsonrpc": "2.0", "id": 3, "method": "config.update", "params": {"config": {}}})
        talk.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        asked = await talk.receive()
        assert asked["method"] == "kaged.storage.schema"
        assert (await talk.request(4, "ping"))["result"] == {"status": "ok"}
        talk.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"tables": ["t"]}})
        assert (await talk.receive())["id"] == 3
        assert (await talk.request(5, "sample.seen"))["result"] == [["t"]]
