"""Every SDK takes the host's system methods as request and as notification (PH-AMB-14)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import runtimes
from fakes.plugin_lab import PluginLab
from fakes.plugin_talk import PluginTalk
from fakes.project_stage import ProjectStage
from requirements import requirement

SAMPLES = Path(__file__).parents[2] / "fakes" / "sample_plugins"
PROJECT = {"project": "music", "config": {}}
SYSTEM: list[tuple[str, dict[str, Any]]] = [
    ("config.update", {"config": {}}),
    ("config.update", {}),  # a bare config object
    ("projects.activated", PROJECT),
    ("projects.deactivated", {"project": "music"}),
]


def talk(runtime: str) -> PluginTalk:
    if runtime == "python":
        return PluginTalk([sys.executable, SAMPLES / "sample.py"])
    program = runtimes.bun() if runtime == "bun" else runtimes.node()
    return PluginTalk([program, SAMPLES / "sample.mjs"])


@pytest.mark.parametrize("runtime", ["python", "node", "bun"])
@requirement("PH-AMB-14")
async def test_both_forms_are_taken_and_a_notification_is_never_answered(runtime: str) -> None:
    async with talk(runtime) as plugin:
        await plugin.handshake()
        for number, (method, params) in enumerate(SYSTEM, start=2):
            answer = await plugin.request(number, method, params)
            assert answer["id"] == number
            assert "error" not in answer, answer
        for method, params in SYSTEM:
            plugin.send({"jsonrpc": "2.0", "method": method, "params": params})
        assert (await plugin.request(50, "ping"))["id"] == 50
        plugin.send({"jsonrpc": "2.0", "id": 51, "method": "shutdown", "params": {}})
        assert await plugin.exit_code() == 0


@requirement("PH-AMB-14")
async def test_the_host_sends_them_as_requests_and_ignores_errors(tmp_path: Path) -> None:
    lab = PluginLab(tmp_path)
    await lab.open()
    stage = ProjectStage(lab, tmp_path)
    try:
        await stage.running("stub", {}, config_schema={"type": "object"})
        declared = {"plugins": {"stub": {"package": "stub", "config": {"n": 1}}}}
        await stage.load(declared)
        await stage.supervisor.unload_project("p")
        sent = {m["method"]: m for m in stage.received("stub")}
        for method in ("config.update", "projects.activated", "projects.deactivated"):
            assert isinstance(sent[method]["id"], int)
        assert set(sent["config.update"]["params"]) == {"config"}
        script = (
            "import json, sys\n"
            "for line in sys.stdin:\n"
            "    m = json.loads(line)\n"
            "    if m['method'] == 'initialize':\n"
            "        r = {'result': {'name': 'rude', 'version': '1.0.0', 'api_version': 1,"
            " 'methods': []}}\n"
            "    elif m['method'] == 'shutdown':\n"
            "        break\n"
            "    else:\n"
            "        r = {'error': {'code': -32601, 'message': 'what?'}}\n"
            "    if 'id' in m:\n"
            "        print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], **r}), flush=True)\n"
        )
        rude = stage.supervisor.register(
            lab.install(name="rude", files={"main.py": script}, methods=[])
        )
        await stage.supervisor.enable("rude")
        await stage.load({"plugins": {"rude": {"package": "rude"}}})
        assert rude.state.value == "running"
        assert len(lab.logged("plugin.project_message_ignored")) == 1
    finally:
        await stage.supervisor.stop_all()
        await lab.close()
