"""A plugin that sessions use is not taken from under them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fakes.host_over_http import HttpHost, write_project, write_stub
from fakes.running_daemon import daemon_in_process, kaged
from fakes.work_lab import until
from integration.daemon.test_driven_sessions import begun, play
from requirements import requirement


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@requirement("PH-INST-26")
async def test_uninstalling_is_refused_while_a_session_uses_the_plugin(
    home: Path, tmp_path: Path
) -> None:
    """Nothing is removed, the words are the specification's, and force does it all the same."""
    play(
        home,
        {"call": [{"tool": "shell.bash", "with": {"command": "touch begun; sleep 600"}}]},
        {"say": "ok", "repeat": True},
    )
    stub = write_stub(tmp_path / "mem", {"on": {"a.b": [{"echo": True}]}}, name="mem")
    used = {"plugins": {"mem": {"package": "mem"}}, "tools": {"shell.bash": {"enabled": True}}}
    root = write_project(tmp_path / "p", used)
    other = write_project(tmp_path / "q", {"tools": {"shell.bash": {"enabled": True}}})
    async with daemon_in_process(home, serve=True) as inside:
        host = HttpHost(inside)
        await host.running(stub)
        talk = await begun(host, root)
        await talk.say("Sleep")
        await until((root / "begun").exists)
        await (await begun(host, other)).say("Sleep")
        await until((other / "begun").exists)

        refused = (await host.ask("DELETE", "/plugins/mem", expect=409))["error"]
        assert refused["code"] == "plugin_in_use"
        assert refused["message"].startswith(
            "Plugin mem is active in 1 session(s). Stop sessions first, or use --force."
        )
        assert (await host.call("mem", "a.b", x=1))["x"] == 1
        assert (home / "plugins" / "mem" / "main.py").exists()

        said = await asyncio.to_thread(kaged, home, "plugin", "uninstall", "mem")
        assert said.returncode != 0
        assert "is active in 1 session(s)" in said.stderr
        assert (await host.call("mem", "a.b", x=2))["x"] == 2

        await host.post(f"{talk.base}/{talk.id}/cancel")
        assert (await host.ask("DELETE", "/plugins/mem"))["name"] == "mem"
        await host.running(stub)
        await talk.say("Sleep again")
        await host.ask("DELETE", "/plugins/mem?force=true")
        assert (await host.get("/plugins"))["items"] == []
