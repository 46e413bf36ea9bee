"""Plugins in every language, inside their real cages, installed and used through a real daemon."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes import runtimes
from fakes.example_plugins import EXAMPLES
from fakes.git_repo import git
from fakes.host_over_http import HttpHost, http_host, write_project, write_stub
from fakes.running_daemon import ANY_PORT
from kaged.plugins.hooks import CompactionEvent
from kaged.wire.context import WireContext
from kaged.wire.errors import RpcError
from requirements import requirement

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "tests" / "fakes" / "sample_plugins"


def config(**programs: Path) -> str:
    lines = "".join(f'{name} = "{path}"\n' for name, path in programs.items())
    return f"{ANY_PORT}[sandbox.runtimes]\n{lines}"


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of one language in a page of the documentation."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@requirement("PH-SDK-01", "PH-SDK-16")
async def test_the_documented_shell_plugin_runs_without_an_sdk(home: Path, tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "write-a-shell-plugin.md"
    (manifest,), (script,) = blocks(page, "yaml"), blocks(page, "bash")
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "kaged-plugin.yaml").write_text(manifest, encoding="utf-8")
    (folder / "main.sh").write_text(script, encoding="utf-8")
    capabilities = yaml.safe_load(manifest)["capabilities"]
    assert any(str(entry).startswith("exec:jq:") for entry in capabilities)
    async with http_host(home) as host:
        await host.running(folder)
        assert await host.call("my-simple-adapter", "status.get") == {"status": "fine"}
        plugins: Any = host.inside.daemon.services.plugins
        conversation = plugins.supervisor.get("my-simple-adapter").conversation
        assert await conversation.ping() is None
        with pytest.raises(RpcError, match="Method not found") as refused:
            await conversation.request("no.such", {}, 10)
        assert refused.value.number == -32601
        await host.post("/plugins/my-simple-adapter/disable")
        (row,) = await host.events("plugin.stopped")
        assert row["data"]["exit_code"] == 0
        assert await host.events("plugin.killed", "plugin.stdout_noise") == []


@pytest.mark.parametrize("runtime", ["node", "bun"])
@requirement("PH-SDK-19")
async def test_the_documented_javascript_plugin_runs_on(
    home: Path, tmp_path: Path, runtime: str
) -> None:
    program = runtimes.node() if runtime == "node" else runtimes.bun()
    folder = tmp_path / "oh-my-pi"
    folder.mkdir()
    shutil.copy(SAMPLES / "oh-my-pi.mjs", folder / "index.mjs")
    manifest = {
        "name": "oh-my-pi",
        "version": "1.4.2",
        "kaged_api": 1,
        "description": "The plugin of the documentation.",
        "command": ["/usr/bin/env", runtime, "./index.mjs"],
        "capabilities": ["kaged:storage:write"],
        "methods": ["presets.list", "presets.search", "preset.install", "preset.uninstall"],
        "notifications": ["catalog.updated"],
        "config_schema": {
            "type": "object",
            "properties": {"preset_dir": {"type": "string", "default": "/srv/presets"}},
        },
    }
    (folder / "kaged-plugin.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    async with http_host(home, config(**{runtime: program})) as host:
        state = await host.running(folder)
        assert state["methods"] == sorted(manifest["methods"])  # type: ignore[call-overload]
        assert await host.call("oh-my-pi", "presets.list", filter="web") == {
            "presets": ["web-server", "web-cache"],
            "dir": "/srv/presets",
            "params": {"filter": "web"},
        }
        found = await host.call("oh-my-pi", "presets.search", query="mail")
        assert found == {"results": ["mail"]}
        assert await host.call("oh-my-pi", "preset.install", name="web-x") == {"installed": True}
        assert await host.call("oh-my-pi", "preset.uninstall") == {
            "rows": [{"id": "p1", "name": "web-x"}],
            "tables": ["presets"],
        }
        (row,) = await host.events("plugin.notification")
        assert row["data"]["notification_type"] == "catalog.updated"
        missing = await host.call("oh-my-pi", "no.such", expect=404)
        assert missing["code"] == "method_not_found"
        await host.post("/plugins/oh-my-pi/disable")
        lines = (await host.get("/plugins/oh-my-pi/logs"))["lines"]
        assert any("Scanned 2 presets" in line for line in lines), lines
        assert any("flushed" in line for line in lines), lines
        assert await host.events("plugin.stdout_noise", "plugin.killed", "plugin.crashed") == []


async def tool(host: HttpHost, name: str, project_id: str, agent: str, **params: Any) -> Any:
    """Call a tool as an agent does."""
    plugins: Any = host.inside.daemon.services.plugins
    context = WireContext(
        request_id="req_1", operator_id="op", project_id=project_id, agent_path=agent,
        session_id="ses_1",
    )  # fmt: skip
    return await plugins.supervisor.call_tool(name, params, context)


def two_agents(root: Path, isolation: str) -> Path:
    memory = {"package": "memory-markdown", "isolation": isolation}
    stub = {"package": "stub", "isolation": isolation}
    both = {"memory": memory, "stub": stub}
    below = {
        "model": "m",
        "system_prompt": "y",
        "description": "d",
        "plugins": {"memory": {}, "stub": {}} if isolation == "project" else both,
    }
    return write_project(root, {"plugins": both, "subagents": {"coder": below}})


@pytest.mark.parametrize(("isolation", "shared"), [("project", True), ("agent", False)])
@requirement("PH-ISO-03", "PH-ISO-04")
async def test_memory_is_each_agents_own_or_the_projects(
    home: Path, tmp_path: Path, isolation: str, shared: bool
) -> None:
    async with http_host(home) as host:
        await host.running(EXAMPLES / "memory-markdown")
        say = {"name": "say", "description": "d", "parameters_schema": {"type": "object"}}
        await host.running(
            write_stub(tmp_path / "stub", {"on": {"stub.say": [{"echo": True}]}}, tools=[say])
        )
        project_id = (await host.load(two_agents(tmp_path / "boats", isolation)))["id"]
        await host.settle()
        coder = "primary.subagents.coder"
        said = "The harbour master is called Ingrid."
        await tool(host, "memory-markdown.retain", project_id, "primary", content=said)
        own = await tool(host, "memory-markdown.recall", project_id, "primary", query="harbour")
        other = await tool(host, "memory-markdown.recall", project_id, coder, query="harbour")
        assert said in str(own)
        assert (said in str(other)) is shared
        # One process serves both agents, whatever the isolation, and is told which of them asks.
        spawned = [row["data"]["name"] for row in await host.events("plugin.spawned")]
        assert sorted(spawned) == ["memory-markdown", "stub"]
        paths = [
            (await tool(host, "stub.say", project_id, agent))["_context"]["agent_path"]
            for agent in ("primary", coder)
        ]
        assert paths == ["primary", coder]


async def test_git_insight_reads_the_history_of_its_project(home: Path, tmp_path: Path) -> None:
    root = write_project(tmp_path / "boats", {"plugins": {"git": {"package": "git-insight"}}})
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first boat")
    async with http_host(home) as host:
        await host.running(EXAMPLES / "git-insight")
        project_id = (await host.load(root))["id"]
        await host.settle()
        manifest = yaml.safe_load(
            (EXAMPLES / "git-insight" / "kaged-plugin.yaml").read_text("utf-8")
        )
        names = [one["name"] for one in manifest["tools"]]
        answer = await tool(host, f"git-insight.{names[0]}", project_id, "primary")
        assert "first boat" in str(answer), answer


async def test_the_shell_example_reports_from_its_cage(home: Path) -> None:
    async with http_host(home) as host:
        await host.running(EXAMPLES / "shell-status")
        status = await host.call("shell-status", "status.get")
        assert set(status) == {"load", "available_memory_kib", "free_scratch_kib"}


async def test_the_compactor_example_runs_in_its_cage(home: Path, tmp_path: Path) -> None:
    root = write_project(
        tmp_path / "boats",
        {
            "plugins": {"smart": {"package": "smart-compactor"}},
            "compaction": {"delegate": {"plugin": "smart"}},
        },
    )
    async with http_host(home, config(node=runtimes.node())) as host:
        await host.running(EXAMPLES / "smart-compactor")
        project_id = (await host.load(root))["id"]
        await host.settle()
        plugins: Any = host.inside.daemon.services.plugins
        supervisor = plugins.supervisor
        keep: Any = {"id": "m0", "role": "system", "content": "be kind"}
        old: Any = [
            {"id": f"m{n}", "role": "user", "content": f"fact number {n}: " + "x" * 200}
            for n in range(1, 20)
        ]
        event = CompactionEvent(
            being_compacted=old, remaining=[keep], strategy="delegate",
            trigger="threshold_crossed", always_keep=[keep],
        )  # fmt: skip
        context = WireContext(
            request_id="req_1", operator_id=None, project_id=project_id, agent_path="primary",
            session_id="ses_1",
        )  # fmt: skip
        outcome = await supervisor.hooks.pre_compact(
            supervisor.participants(project_id, "primary"), context, event
        )
        assert outcome.fallback is None
        assert outcome.replacement is not None
        assert keep in outcome.replacement.messages
        assert len(str(outcome.replacement.messages)) < len(str([keep, *old]))
