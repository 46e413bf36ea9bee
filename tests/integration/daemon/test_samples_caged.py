"""The example plugins inside their real cages, installed and used through a real daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fakes import runtimes
from fakes.example_plugins import EXAMPLES
from fakes.git_repo import git
from fakes.host_over_http import HttpHost, http_host, write_project
from fakes.running_daemon import ANY_PORT
from kaged.plugins.hooks import CompactionEvent
from kaged.wire.context import WireContext


def config(**programs: Path) -> str:
    lines = "".join(f'{name} = "{path}"\n' for name, path in programs.items())
    return f"{ANY_PORT}[sandbox.runtimes]\n{lines}"


async def tool(host: HttpHost, name: str, project_id: str, agent: str, **params: Any) -> Any:
    """Call a tool as an agent does."""
    plugins: Any = host.inside.daemon.services.subsystems.plugins
    context = WireContext(
        request_id="req_1", operator_id="op", project_id=project_id, agent_path=agent,
        session_id="ses_1",
    )  # fmt: skip
    return await plugins.supervisor.call_tool(name, params, context)


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
        plugins: Any = host.inside.daemon.services.subsystems.plugins
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
