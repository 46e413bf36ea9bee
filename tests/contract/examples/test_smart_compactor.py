"""smart-compactor on Node, with the SDK where the cage would put it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes import runtimes
from fakes.example_plugins import EXAMPLES
from fakes.plugin_talk import PluginTalk

SDK = EXAMPLES.parents[1] / "sdk" / "js"
SYSTEM = {"id": "m0", "role": "system", "content": "You are helpful."}


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[PluginTalk]:
    plugin = tmp_path / "plugin"
    shutil.copytree(EXAMPLES / "smart-compactor", plugin)
    scope = tmp_path / "node_modules" / "@kaged"
    scope.mkdir(parents=True)
    (scope / "plugin-sdk").symlink_to(SDK)
    async with PluginTalk(
        [runtimes.node(), plugin / "main.mjs"], name="smart-compactor"
    ) as started:
        assert "result" in await started.greet()
        started.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        yield started


def message(n: int, content: Any) -> dict[str, Any]:
    return {"id": f"m{n}", "role": "user", "content": content}


def params(role: str, *contents: Any) -> dict[str, Any]:
    return {
        "role": role,
        "messages_being_compacted": [message(n, c) for n, c in enumerate(contents, 1)],
        "messages_remaining": [SYSTEM],
        "strategy": "drop",
        "trigger": "threshold_crossed",
        "_context": {"agent_path": "primary"},
    }


async def test_old_messages_are_folded_and_decisions_kept_whole(talk: PluginTalk) -> None:
    await talk.request(2, "config.update", {"config": {"keep_last": 2, "fold_chars": 40}})
    chat = params("compactor", "a" * 500, "DECISION: use SQLite", ["x", 1], "newer", "newest")
    result = (await talk.request(3, "kaged.hook.pre_compact", chat))["result"]
    assert result["role"] == "compactor"
    assert result["superseded"] == ["m1", "m3"]
    assert result["messages"][0] == SYSTEM
    contents = [entry["content"] for entry in result["messages"][2:]]
    assert contents == ["DECISION: use SQLite", "newer", "newest"]
    folded = result["messages"][1]["content"].splitlines()
    assert folded[1:] == ["- user: " + "a" * 39 + "…", '- user: ["x",1]']
    assert result["summary"] == "Folded 2 of 5 messages, kept 3 whole."


async def test_as_observer_and_with_nothing_to_fold_it_says_nothing(talk: PluginTalk) -> None:
    chat = params("observer", *["old"] * 20)
    assert (await talk.request(2, "kaged.hook.pre_compact", chat))["result"] is None
    short = params("compactor", "one", "two")
    assert (await talk.request(3, "kaged.hook.pre_compact", short))["result"] is None


async def test_the_preview_takes_any_messages_and_refuses_others(talk: PluginTalk) -> None:
    chat = params("compactor", *[f"turn {n}" for n in range(20)])
    preview = await talk.request(2, "compactor.preview", chat)
    assert len(preview["result"]["superseded"]) == 14
    assert await talk.error_code(3, "compactor.preview", {"messages_being_compacted": 5}) == -32602


async def test_a_bad_setting_is_refused(talk: PluginTalk) -> None:
    assert await talk.error_code(2, "config.update", {"config": {"keep_last": 0}}) == -32004
