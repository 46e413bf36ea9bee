"""`open_loop`: the agent loop of a daemon, with what carries workflows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kaged.base.lazy_dataclass import dataclass
from kaged.sessions.driver import RenewActor, RunEnded
from kaged.sessions.driver_building import Driving, build_driver
from kaged.sessions.hooks import SessionHooks
from kaged.sessions.workflow_runner import LoopWorkflows
from kaged.toolbox.project import TodoService

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from kaged.base import Clock, Ids
    from kaged.config.settings import Settings
    from kaged.pipeline.pipeline import Pipeline
    from kaged.plugins.plugin_service import PluginService
    from kaged.projects.readiness import Ready
    from kaged.projects.work_projects import WorkProjects
    from kaged.sessions.agent_tools import AgentToolService
    from kaged.sessions.needs import AuditPost, Models, Routing
    from kaged.sessions.session_services import SessionServices
    from kaged.sessions.snapshot import SessionSnapshot


@dataclass(frozen=True, slots=True)
class Loop(Driving):
    """The loop of a daemon, with what carries workflows out."""

    workflows: LoopWorkflows


def open_loop(
    sessions: SessionServices,
    agent_tools: AgentToolService,
    plugins: PluginService,
    work_projects: WorkProjects,
    *,
    settings: Callable[[], Settings],
    models: Models,
    routing: Routing,
    audit: AuditPost,
    pipeline: Callable[[], Pipeline | None],
    run_ended: Sequence[RunEnded],
    ready: Ready,
    renew_actor: RenewActor,
    clock: Clock,
    ids: Ids,
    closing: AsyncExitStack,
) -> Loop:
    """Put the loop of a daemon together and have it ended with it."""
    store, transcript = sessions.store, sessions.transcript

    async def take_snapshot(project_id: str) -> SessionSnapshot:
        await plugins.wait_started()
        return agent_tools.snapshot(project_id)

    supervisor = plugins.supervisor
    driving = build_driver(
        store,
        transcript,
        sessions.service,
        sessions.navigation,
        sessions.lifecycle,
        dispatcher=agent_tools.dispatcher,
        take_snapshot=take_snapshot,
        workspace_of=agent_tools.workspace_of,
        hooks=SessionHooks(supervisor.hooks, supervisor.participants),
        models=models,
        routing=routing,
        todos=TodoService(store, ids),
        audit=audit,
        pipeline=pipeline,
        labels=sessions.labels,
        run_ended=run_ended,
        ready=ready,
        renew_actor=renew_actor,
        idle_s=lambda: float(settings().daemon.value.sessions.idle_seconds),
        clock=clock,
        ids=ids,
    )
    driver = driving.driver
    sessions.driver = driver
    closing.push_async_callback(driver.close)
    workflows = LoopWorkflows(lambda: driver, transcript, store.agent_runs, work_projects.root)
    return Loop(driver, driving.delegate, driving.transforms, workflows)
