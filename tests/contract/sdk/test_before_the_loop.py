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
