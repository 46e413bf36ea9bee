"""Configuration in the handshake and afterwards (PH-AMB-13, PH-AMB-61)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from kaged.plugins.errors import PluginConfigInvalid
from kaged.plugins.states import PluginState
from requirements import requirement

SCHEMA = {
    "type": "object",
    "properties": {"budget": {"type": "string", "default": "mid"}, "tags": {"type": "array"}},
    "additionalProperties": False,
}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def received(log: Path) -> list[tuple[str, Any]]:
    messages = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [(m["method"], m.get("params")) for m in messages if "method" in m]


@requirement("PH-HAND-21", "PH-CONF-13")
async def test_config_comes_between_the_answer_and_initialized(
    lab: PluginLab, shared: Path
) -> None:
    log = shared / "log"
    plugin = await lab.running(
        {"log": str(log), "on": {"a.b": [{"result": 1}]}},
        capabilities=[f"write:fs:{shared}"],
        config_schema=SCHEMA,
    )
    await lab.call(plugin)
    assert received(log)[1:3] == [
        ("config.update", {"config": {"budget": "mid"}}),
        ("initialized", {}),
    ]


async def test_without_schemas_the_handshake_is_three_messages(
    lab: PluginLab, shared: Path
) -> None:
    log = shared / "log"
    plugin = await lab.running(
        {"log": str(log), "on": {"a.b": [{"result": 1}]}}, capabilities=[f"write:fs:{shared}"]
    )
    await lab.call(plugin)
    assert [method for method, _ in received(log)] == ["initialize", "initialized", "a.b"]


@pytest.mark.parametrize(
    ("how", "state", "updates"),
    [
        ("ok", PluginState.RUNNING, 1),
        ("early", PluginState.RUNNING, 2),
        ([-32002, "for ever"], PluginState.FAILED, 2),
        ([-32601, "what?"], PluginState.RUNNING, 1),
        ([-32004, "no"], PluginState.FAILED, 1),
        ([-32603, "oops"], PluginState.FAILED, 1),
        ("late", PluginState.RUNNING, 1),
    ],
)
@requirement("PH-AMB-13")
async def test_each_answer_to_the_first_config_has_its_meaning(
    lab: PluginLab, shared: Path, how: Any, state: PluginState, updates: int
) -> None:
    log = shared / "log"
    plugin = await lab.start(
        {"log": str(log), "config": how, "on": {"a.b": [{"result": 1}]}},
        capabilities=[f"write:fs:{shared}"],
        config_schema=SCHEMA,
    )
    assert plugin.state is state
    assert [m for m, _ in received(log)].count("config.update") == updates
    if state is PluginState.RUNNING:
        assert await lab.call(plugin) == 1


@requirement("PH-METH-05")
async def test_a_change_is_delivered_and_a_refusal_keeps_it_running(
    lab: PluginLab, shared: Path
) -> None:
    log = shared / "log"
    plugin = await lab.running(
        {"log": str(log), "on": {"a.b": [{"result": 1}]}},
        capabilities=[f"write:fs:{shared}"],
        config_schema=SCHEMA,
    )
    await plugin.update_config({"budget": "high"})
    await plugin.update_config({"budget": "high"})  # the same again is not sent
    assert received(log)[-1] == ("config.update", {"config": {"budget": "high"}})
    assert [m for m, _ in received(log)].count("config.update") == 2
    assert plugin.state is PluginState.RUNNING


@requirement("PH-METH-06")
async def test_a_refused_change_is_reported_to_its_caller(lab: PluginLab) -> None:
    files = {
        "main.py": (
            "import json, sys\n"
            "for line in sys.stdin:\n"
            "    m = json.loads(line)\n"
            "    if m['method'] == 'initialize':\n"
            "        r = {'result': {'name': 'stub', 'version': '1.0.0', 'api_version': 1,"
            " 'methods': ['a.b']}}\n"
            "    elif m['method'] == 'config.update' and m['params']['config'].get('bad'):\n"
            "        r = {'error': {'code': -32004, 'message': 'bad is bad'}}\n"
            "    elif m['method'] == 'shutdown':\n"
            "        break\n"
            "    else:\n"
            "        r = {'result': {}}\n"
            "    if 'id' in m:\n"
            "        print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], **r}), flush=True)\n"
        )
    }
    plugin = await lab.running(files=files, methods=["a.b"], config_schema={"type": "object"})
    with pytest.raises(PluginConfigInvalid, match="bad is bad"):
        await plugin.update_config({"bad": True})
    assert plugin.state is PluginState.RUNNING
    assert await lab.call(plugin) == {}
