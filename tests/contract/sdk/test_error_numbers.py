"""Which error numbers travel: the standard ones, kaged's seven, and a plugin's own range."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import kaged
from fakes import runtimes
from fakes.asking_plugin import asking_lab
from fakes.plugin_talk import PluginTalk
from kaged.base import KagedError
from kaged.wire.errors import RpcError, number_of
from requirements import requirement

SAMPLES = Path(__file__).parents[2] / "fakes" / "sample_plugins"
STANDARD = {-32700, -32600, -32601, -32602, -32603}
KAGED = set(range(-32006, -31999))
OWN = set(range(-32099, -31999))


@requirement("PH-WIRE-23")
async def test_whatever_goes_wrong_the_host_has_a_number_for_it(tmp_path: Path) -> None:
    for module in pkgutil.walk_packages(kaged.__path__, "kaged."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    waiting: list[type[KagedError]] = [KagedError]
    seen: set[type[KagedError]] = set()
    while waiting:
        kind = waiting.pop()
        if kind in seen or not kind.__module__.startswith("kaged."):
            continue
        seen.add(kind)
        waiting += kind.__subclasses__()
        number = kind.default_number if issubclass(kind, RpcError) else number_of(kind.code)
        assert number in STANDARD | KAGED, kind
    assert len(seen) > 50
    async with asking_lab(tmp_path) as asking:
        plugin = await asking.plugin("notes", "kaged:storage:read")
        answers = [
            await asking.ask(plugin, "kaged.nothing", {}),
            await asking.ask(plugin, "kaged.storage.query", {"sql": 5}),
            await asking.sql(plugin, "query", "SELECT * FROM audit_events"),
            await asking.sql(plugin, "query", "SELEKT"),
            await asking.sql(plugin, "query", "SELECT * FROM nothing_here"),
            await asking.sql(plugin, "exec", "CREATE TABLE t (a)"),
        ]
    numbers = {answer["error"]["code"] for answer in answers}
    assert {-32601, -32602, -32003} <= numbers <= STANDARD | KAGED


@pytest.mark.parametrize("runtime", ["python", "node", "bun"])
@requirement("PH-WIRE-23")
async def test_whatever_goes_wrong_an_sdk_has_a_number_for_it(runtime: str) -> None:
    if runtime == "python":
        talk = PluginTalk([sys.executable, SAMPLES / "sample.py"])
    else:
        program = runtimes.bun() if runtime == "bun" else runtimes.node()
        talk = PluginTalk([program, SAMPLES / "sample.mjs"])
    numbers: dict[str, int] = {}
    async with talk:
        numbers["early"] = await talk.error_code(90, "echo.say")
        await talk.handshake()
        for index, kind in enumerate(("domain", "own", "params", "reserved", "bug"), start=2):
            numbers[kind] = await talk.error_code(index, "fail.now", {"kind": kind})
        numbers["unknown"] = await talk.error_code(20, "no.such")
        numbers["config"] = await talk.error_code(21, "config.update", {"config": {"buggy": True}})
        for name, line in (("batch", b"[]\n"), ("parse", b"{\n"), ("shape", b'{"id": 5}\n')):
            talk.send_bytes(line)
            numbers[name] = int((await talk.receive())["error"]["code"])
    assert set(numbers.values()) <= STANDARD | OWN
    assert (numbers["own"], numbers["unknown"], numbers["batch"]) == (-32050, -32601, -32600)
