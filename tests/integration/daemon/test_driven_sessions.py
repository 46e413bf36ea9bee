"""Sessions of a whole daemon: messages over HTTP, real tools, real plugins, a scripted model."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import yaml

from fakes.host_over_http import HttpHost, http_host, write_project, write_stub
from fakes.work_lab import until
from requirements import requirement

WAIT_S = 60


def play(home: Path, *turns: dict[str, Any]) -> None:
    """Set what the model `m` plays in this home."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "script.yaml").write_text(yaml.safe_dump({"turns": list(turns)}), encoding="utf-8")
    local = home / "local.toml"
    local.write_text('[models.m]\nmodel = "scripted:script.yaml"\n', encoding="utf-8")
    local.chmod(0o600)


class Talk:
    """One session of a project."""

    def __init__(self, host: HttpHost, project: str) -> None:
        self.host = host
        self.base = f"/projects/{project}/sessions"
        self.id = ""

    async def begin(self) -> None:
        self.id = (await self.host.post(self.base, {}, expect=201))["id"]

    async def say(self, text: str) -> str:
        path = f"{self.base}/{self.id}/message"
        return (await self.host.post(path, {"text": text}, expect=202))["run_id"]

    async def run(self) -> dict[str, Any]:
        return (await self.host.get(f"{self.base}/{self.id}/runs"))["items"][0]

    async def ended(self, text: str) -> dict[str, Any]:
        """Send a message and wait for the end of its run."""
        run_id = await self.say(text)
        subsystems: Any = self.host.inside.daemon.services.subsystems.sessions
        async with asyncio.timeout(WAIT_S):
            await subsystems.driver.wait(run_id)
        return await self.run()

    async def blocks(self) -> list[dict[str, Any]]:
        items = (await self.host.get(f"{self.base}/{self.id}/entries"))["items"]
        return [
            {"role": one["role"], **block}
            for one in items
            if one["role"]
            for block in one["content"]["content"]
        ]


async def begun(host: HttpHost, root: Path) -> Talk:
    project = (await host.load(root))["id"]
    await host.settle()
    talk = Talk(host, project)
    await talk.begin()
    return talk


@requirement("AT-CTX-07")
async def test_a_call_is_found_under_one_id_in_every_record(home: Path, tmp_path: Path) -> None:
    """An allowed and a denied one: audit, outcome and the row of the call."""
    play(
        home,
        {
            "call": [
                {"tool": "file.read", "with": {"path": "src/a.txt"}},
                {"tool": "file.read", "with": {"path": "b.txt"}},
            ]
        },
        {"say": "One of two."},
    )
    root = write_project(
        tmp_path / "p",
        {
            "cage": {"fs": [{"mode": "ro", "path": "./src"}]},
            "tools": {"file.read": {"enabled": True}},
        },
    )
    (root / "src").mkdir()
    (root / "src" / "a.txt").write_text("hello", encoding="utf-8")
    (root / "b.txt").write_text("secret", encoding="utf-8")
    async with http_host(home) as host:
        talk = await begun(host, root)
        run = await talk.ended("Read both")
        assert run["status"] == "completed", run
        rows = (await host.get(f"{talk.base}/{talk.id}/tool-calls"))["items"]
        assert [one["status"] for one in rows] == ["completed", "denied"]
        assert all(one["run_id"] == run["id"] for one in rows)
        called = await host.events("tool.called")
        ends = await host.events("tool.completed", "tool.denied")
        for row, name in zip(rows, ("tool.completed", "tool.denied"), strict=True):
            (one,) = [event for event in called if event["request_id"] == row["request_id"]]
            (end,) = [event for event in ends if event["request_id"] == row["request_id"]]
            assert end["event"] == name
            assert one["data"]["run_id"] == run["id"]
        assert len({one["request_id"] for one in rows}) == 2
        said = [one for one in await talk.blocks() if one["type"] == "tool_result_block"]
        outputs = {one["request_id"]: one["output"] for one in said}
        read, refused = (outputs[row["request_id"]] for row in rows)
        assert "hello" in read
        assert "capability_denied" in refused
        assert "secret" not in refused


@requirement("AT-SESS-18", "AT-SESS-13", "AT-DISP-18")
async def test_cancelling_during_a_shell_command_leaves_nothing_behind(
    home: Path, tmp_path: Path
) -> None:
    """No process, no lock, and the next message works."""
    play(
        home,
        {
            "call": [
                {"tool": "shell.bash", "with": {"command": "echo $$ > pid; sleep 600"}},
            ]
        },
        {"say": "ok", "repeat": True},
    )
    root = write_project(tmp_path / "p", {"tools": {"shell.bash": {"enabled": True}}})
    async with http_host(home) as host:
        talk = await begun(host, root)
        run_id = await talk.say("Sleep")
        found = root / "pid"
        await until(lambda: found.exists() and bool(found.read_text(encoding="utf-8").strip()))
        pid = int(found.read_text(encoding="utf-8"))

        await host.post(f"{talk.base}/{talk.id}/cancel")

        run = await talk.run()
        assert (run["id"], run["status"]) == (run_id, "cancelled")
        assert not _alive(pid)
        tool_service: Any = host.inside.daemon.services.subsystems.tools
        assert tool_service.workspace_of(talk.base.split("/")[2]).locks.held() == 0
        assert (await talk.ended("Still there?"))["status"] == "completed"


@requirement("PH-AMB-56")
async def test_a_plugin_call_over_http_carries_the_session_it_names(
    home: Path, tmp_path: Path
) -> None:
    """Without one the daemon itself calls and all three are null."""
    play(home, {"say": "ok"})
    stub = write_stub(
        tmp_path / "mem", {"on": {"a.b": [{"echo": True}]}}, name="mem", methods=["a.b"]
    )
    root = write_project(tmp_path / "p", {"plugins": {"mem": {"package": "mem"}}})
    async with http_host(home) as host:
        await host.running(stub)
        talk = await begun(host, root)
        three = ("project_id", "agent_path", "session_id")
        context = (await host.call("mem", "a.b", x=1))["_context"]
        assert [context[name] for name in three] == [None, None, None]

        url = "/api/v1/plugins/mem/call/a.b"
        answer = await host.client.post(url, json={}, headers={"X-Kaged-Session": talk.id})
        context = answer.json()["result"]["_context"]
        project = talk.base.split("/")[2]
        assert [context[name] for name in three] == [project, "primary", talk.id]
        wrong = await host.client.post(url, json={}, headers={"X-Kaged-Session": "ses_nobody"})
        assert wrong.status_code == 404


@requirement("PH-FAIL-01")
async def test_a_crashed_plugin_is_blocked_in_sessions_and_502_over_http(
    home: Path, tmp_path: Path
) -> None:
    """It comes back by itself, and so does its tool."""
    tool = {
        "name": "look",
        "description": "Looks.",
        "parameters_schema": {"type": "object", "properties": {}},
    }
    play(
        home,
        {"call": [{"tool": "mem.look"}]},
        {"say": "one"},
        {"call": [{"tool": "mem.look"}]},
        {"say": "two"},
        {"call": [{"tool": "mem.look"}]},
        {"say": "three"},
    )
    stub = write_stub(
        tmp_path / "mem",
        {"on": {"a.b": [{"env": True}], "mem.look": [{"result": {"seen": True}}]}},
        name="mem",
        methods=["a.b"],
        tools=[tool],
    )
    root = write_project(tmp_path / "p", {"plugins": {"mem": {"package": "mem"}}})
    async with http_host(home) as host:
        await host.running(stub)
        talk = await begun(host, root)
        await talk.ended("One")
        plugins: Any = host.inside.daemon.services.subsystems.plugins
        plugin = plugins.supervisor.get("mem")

        os.kill((await host.get("/plugins/mem"))["pid"], signal.SIGKILL)
        await until(lambda: plugin.state.value != "running")
        await host.call("mem", "a.b", expect=502)
        await talk.ended("Two")
        results = [one for one in await talk.blocks() if one["type"] == "tool_result_block"]
        assert results[-1]["output"].startswith("[BLOCKED]")

        await until(lambda: plugin.state.value == "running")
        await talk.ended("Three")
        results = [one for one in await talk.blocks() if one["type"] == "tool_result_block"]
        assert [one["is_error"] for one in results] == [False, True, False]
        assert (await host.call("mem", "a.b"))["pid"]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split(") ")[1][0] != "Z"
    except OSError:
        return False
