"""`start_subsystems`: cages, plugins, policies, tools, projects; one function, top to bottom.

Loaded and run while the daemon already answers, by `Startup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from fastapi import FastAPI

from kaged.app.credentials import build_credentials
from kaged.app.daemon_core import DaemonCore
from kaged.app.driving import open_loop
from kaged.app.lua import build_scripts
from kaged.app.mcp import build_mcp
from kaged.app.models import build_models
from kaged.app.pipeline import plugin_kinds
from kaged.app.plugins import build_plugins
from kaged.app.project_work import build_project_work
from kaged.app.services import build_services
from kaged.app.sessions import build_sessions
from kaged.app.skills import build_skills
from kaged.base import JsonValue, Tasks
from kaged.base.checks import CheckRow
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.configured import cage_settings
from kaged.cage.limits import describe_limits
from kaged.cage.opening import open_cages
from kaged.config.settings import Settings
from kaged.diagnostics.doctor import CageCheck, Live, examine
from kaged.diagnostics.people_check import people_row
from kaged.events import AskedOf, EventHub
from kaged.inbox import Inbox
from kaged.pipeline.policy_pipeline import ActivePipeline, PolicyPipeline
from kaged.pipeline.trace_log import TraceLog
from kaged.plugins.registration import PluginTools
from kaged.projects.readiness import ProjectReadiness
from kaged.projects.service import ProjectListeners, ProjectService
from kaged.projects.work_projects import WorkProjects
from kaged.serve.http.collectors import PluginCollector, ToolCollector
from kaged.serve.http.daemon_status import status_of
from kaged.serve.http.services import Subsystems
from kaged.serve.mcp.mcp_service import McpService
from kaged.serve.sandbox_rpc.ash_program import stock_ash
from kaged.serve.sandbox_rpc.channels import SandboxChannels
from kaged.sessions.agent_tools import AgentToolService, ToolLinks
from kaged.sessions.routing import AgentRouting
from kaged.toolbox.project import PersonUploads
from kaged.toolbox.shell import BackgroundCommands
from kaged.toolbox.shell.launch import OWN_VARIABLES
from kaged.tools.access import AccessGrants
from kaged.tools.access_requests import AccessRequests
from kaged.tools.asking_gate import AskingGate
from kaged.tools.call_approvals import CallApprovals
from kaged.tools.kept_results import KeptResults
from kaged.tools.outcome_stream import OutcomeStream
from kaged.tools.registry import ToolRegistry
from kaged.tools.shown_results import ShownResults
from kaged.toolset.builtin_tools import (
    open_toolboxes,
    protected_rules,
    quota_rules,
    result_budget,
    sealed_folder,
    sealing,
)
from kaged.toolset.credential_kits import with_credentials
from kaged.toolset.language_services import LanguageServices, without
from kaged.workspace.stale_file_sweeper import StaleFileSweeper
from kaged.workspace.undo_service import UndoService, open_undo

ATTENTION_TOPIC = "attention"


@dataclass(frozen=True, slots=True)
class StartedSubsystems:
    """The subsystems as requests see them, and what else the daemon holds on to."""

    subsystems: Subsystems
    pipeline: PolicyPipeline
    mcp: McpService


async def start_subsystems(  # noqa: PLR0915  # long and flat on purpose: one function, top to bottom
    core: DaemonCore, closing: AsyncExitStack, app: FastAPI
) -> StartedSubsystems:
    """Start every subsystem. What must be undone is put on `closing`.

    Raises:
        KagedError: a gate is closed; `core.gates.rows` ends with the one that is.
    """
    state, environ, gates = core.state, core.environ, core.gates
    store, audit, hub, tasks = core.store, core.audit, core.hub, core.tasks
    clock, ids, settings = core.clock, core.ids, core.state.settings

    def settings_in_force() -> Settings:
        return state.settings

    # What waits for a person, whoever asks.
    inbox = Inbox(
        store.inbox,
        record=audit.record,
        post=audit.post,
        announce=lambda name, data: hub.publish(
            ATTENTION_TOPIC,
            name,
            data,
            asked_of=AskedOf(data["owner"], data["asked_in"], data["project_id"]),
        ),
        clock=clock,
    )

    # What runs guests: cages with their network gate, and the plugins in them.
    # Whatever could be guarded waits until these stand; the project is opening until then.
    readiness = ProjectReadiness(lambda: float(state.settings.daemon.value.daemon.opening_seconds))
    with gates.passing("cages", "The cages that guests live in.") as gate:
        net_gate, spawner = open_cages(settings, audit.post, clock, closing)
        gate.found = f"bubblewrap {'.'.join(map(str, spawner.facts.bwrap_version)) or 'missing'}"
    active_pipeline = ActivePipeline()
    traces = TraceLog(
        store, audit.redactor, clock, lambda: state.settings.daemon.value.pipeline.traces
    )
    closing.push_async_callback(traces.close)
    pipeline = PolicyPipeline(
        settings_in_force,
        active_pipeline,
        kinds=lambda: plugin_kinds(spawner),
        audit=audit,
        clock=clock,
        ids=ids,
        guard=readiness.guard("policies"),
        traces=traces,
    )
    closing.push_async_callback(pipeline.close)
    approvals = CallApprovals(
        inbox, ids, clock, lambda: float(state.settings.daemon.value.pipeline.ask_seconds)
    )
    uploads = PersonUploads(core.places.data_dir / "uploads")
    kept = KeptResults(core.places.data_dir / "results", lambda: ids.tagged("res"))
    sessions = build_sessions(
        store,
        audit,
        hub,
        clock=clock,
        ids=ids,
        ready=readiness.ready,
        closing=closing,
        uploads=uploads,
        kept=kept,
    )
    projects = ProjectService(store, audit, inbox, settings_in_force, readiness)
    access = AccessRequests(
        inbox,
        AccessGrants(store.access, ids, clock, sealing(settings.daemon.value.tools)),
        projects,
        ids,
        clock,
        lambda: float(state.settings.daemon.value.tools.ask_seconds),
    )
    undo_files = open_undo(core.places.data_dir, closing)
    registry = ToolRegistry()
    plugin_tools = PluginTools(registry)
    plugins = await build_plugins(
        settings_in_force,
        environ,
        spawner=spawner,
        store=store,
        audit=audit,
        inbox=inbox,
        clock=clock,
        ids=ids,
        active_pipeline=active_pipeline,
        labels=sessions.labels,
        on_notification=lambda plugin, kind, params: _forward(hub, plugin, kind, params),
        reload_project=projects.reload_edited,
        on_tools=plugin_tools.refresh,
        ready=readiness.ready,
        guard=readiness.guard("plugins", each_project=True),
    )
    closing.push_async_callback(plugins.stop)
    agent_tools = AgentToolService(
        audit,
        clock,
        ids,
        plugins_of=plugins.names_on,
        pipeline=lambda: active_pipeline.pipeline,
        registry=registry,
        outcomes=(OutcomeStream(hub), sessions.calls, sessions.service.reviewed),
        starts=(sessions.calls,),
        labels=sessions.labels,
        approvals=approvals,
        quotas=quota_rules(settings.daemon.value.tools),
        sealed=sealed_folder(settings.daemon.value.tools),
        rules=protected_rules(settings.daemon.value.tools),
        on_reviewed=lambda run, path: sessions.service.reviewed.note(run, "to_review", path),
        asking=AskingGate(access),
        undo_files=undo_files,
        file_wait_s=settings.daemon.value.tools.limits.file_wait_seconds,
        refuse_hard_links=settings.daemon.value.tools.refuse_hard_links,
        cages_off=lambda: state.settings.daemon.value.sandbox.no_sandbox,
        on_session=lambda session_id, project_id, ownership: store.sessions.ensure(
            session_id, project_id, ownership=ownership
        ),
        ready=readiness.ready,
        results=ShownResults(kept, lambda: result_budget(state.settings)),
    )

    skills = await build_skills(settings_in_force, inbox=inbox, audit=audit, closing=closing)

    # People's accounts: who may use them, through which providers.
    accounts = await build_services(
        settings,
        environ,
        spawner=spawner,
        store=store,
        audit=audit,
        fingerprints=core.key.fingerprints,
        hub=hub,
        inbox=inbox,
        skill_metadata=skills.operator_metadata,
        grant_of=lambda person: (
            core.services.service_accounts.grant_of(person) or state.grant_of(person)
        ),
        pipeline=lambda: active_pipeline.pipeline,
        labels=sessions.labels,
        approvals=approvals,
        project_name=projects.name_of,
        clock=clock,
        closing=closing,
    )
    credentials = build_credentials(
        settings_in_force,
        environ,
        spawner=spawner,
        keeper=accounts.secrets,
        audit=audit,
        clock=clock,
    )
    models = build_models(settings_in_force, environ, clock=clock, ids=ids, closing=closing)

    # What is worked on in projects: issues, todos, workflows, questions to the operator.
    work_projects = WorkProjects()
    work = build_project_work(
        store,
        work_projects,
        inbox,
        clock=clock,
        ids=ids,
        tasks=tasks,
        ready=readiness.ready,
        uploads=uploads,
    )
    language_services = LanguageServices(
        spawner,
        settings_in_force,
        agent_tools.workspace_of,
        trusted=projects.trusted,
        audit=audit,
        clock=clock,
        ids=ids,
        # Servers and debuggers of the host inherit its variables, but none that signs for people,
        # and none that is kept from the commands of agents.
        environ=without(environ, ("ASH_*", *OWN_VARIABLES, *settings.daemon.value.tools.scrub_env)),
    )
    background = BackgroundCommands(ids, clock)
    with gates.passing("tools", "The tools of agents, with the engines behind them.") as gate:
        tools, gate.found = open_toolboxes(
            spawner,
            work,
            settings.daemon.value.tools,
            language_services,
            skills,
            store.session_skills,
            clock=clock,
            closing=closing,
            attach=with_credentials(
                credentials.kits,
                projects.names_of,
                SandboxChannels(
                    accounts.rpc,
                    accounts.tokens,
                    lambda: stock_ash(settings.places.cache_dir),
                    post=audit.post,
                ).attach,
            ),
            kept=kept,
            background=background,
        )
        agent_tools.register(tools)
    mcp = build_mcp(
        settings_in_force,
        agent_tools,
        work,
        spawner=spawner,
        kits=credentials.kits,
        sessions=sessions,
        audit=audit,
        hub=hub,
        inbox=inbox,
        pipeline=lambda: active_pipeline.pipeline,
        clock=clock,
        ids=ids,
        closing=closing,
        app=app,
        ready=readiness.ready,
        guard=readiness.guard("mcp approvals"),
    )
    loop = open_loop(
        sessions,
        agent_tools,
        plugins,
        work_projects,
        settings=settings_in_force,
        models=models,
        routing=AgentRouting(
            skills, accounts.usable, only_skills=settings.daemon.value.capabilities.require_skill
        ),
        audit=audit,
        pipeline=lambda: active_pipeline.pipeline,
        run_ended=[language_services.run_ended, access.run_ended],
        ready=readiness.ready,
        renew_actor=core.services.renew_actor,
        clock=clock,
        ids=ids,
        closing=closing,
    )
    scripts = build_scripts(
        settings_in_force,
        environ,
        agent_tools.workspace_of,
        sessions,
        loop.transforms,
        registry,
        spawner=spawner,
        audit=audit,
        hub=hub,
        inbox=inbox,
        clock=clock,
        ids=ids,
        closing=closing,
        ready=readiness.ready,
        guard=readiness.guard("scripts", each_project=True),
        pipeline=lambda: active_pipeline.pipeline,
    )
    # Runs end before anything that guards them.
    closing.push_async_callback(loop.driver.close)

    # Everything is built. Now those are told of each other who were built before the other was.
    plugin_tools.connect(plugins.supervisor)
    models.connect(scripts.ask_model, scripts.stated_window)
    pipeline.connect(models.identity, projects.ids_of)
    plugins.connect(active_sessions=loop.driver.active_in)
    work.workflows.connect(loop.workflows)
    work.interactions.connect(loop.driver.takes_over, loop.driver.answered)
    agent_tools.connect(
        ToolLinks(
            delegate=loop.delegate,
            fixed=loop.driver.fixed_tools,
            outside=lambda owner, project_id, agent, tree: (
                skills.admits(owner, project_id)
                and scripts.tools.admits(owner, project_id)
                and mcp.admits(owner, project_id, agent, tree)
            ),
            run_ended=(language_services.run_ended, access.run_ended),
            session_ended=background.session_ended,
        )
    )
    sessions.service.connect(background.session_ended)
    projects.connect(
        ProjectListeners(
            loaded=(
                plugins.project_loaded,
                work_projects.project_loaded,
                skills.project_loaded,  # agents of a project with skills have tools for them
                agent_tools.project_loaded,
                language_services.project_loaded,
                mcp.project_loaded,
                scripts.project_loaded,
                StaleFileSweeper(tasks, clock).project_loaded,
            ),
            unloaded=(
                plugins.project_unloaded,
                work_projects.project_unloaded,
                agent_tools.project_unloaded,
                skills.project_unloaded,
                language_services.project_unloaded,
                mcp.project_unloaded,
                scripts.project_unloaded,
                loop.driver.project_unloaded,
                background.project_unloaded,
            ),
            revoked=(loop.driver.project_unloaded, background.project_unloaded),
            pending=plugins.projects.pending,
        )
    )

    _watch(core, projects, mcp)
    core.services.metrics.collect(PluginCollector(plugins.list), ToolCollector(agent_tools.metrics))
    cage_check = CageCheck(clock)

    async def doctor() -> Sequence[CheckRow]:
        live = Live(state.settings, store, audit, core.key, gates.rows, pipeline.row)
        return [
            *await examine(core.places, environ, live=live, probe=cage_check.rows),
            people_row(state.settings.daemon, await store.projects.names()),
            mcp.row(),
            skills.row(),
            await plugins.kept_row(),
            await core.services.sign_in.check(),
            *await accounts.checks(),
            await credentials.service.row(),
        ]

    await sessions.service.recover()
    with gates.passing("projects", "The projects that were loaded when the daemon ended.") as gate:
        await projects.restore()
        gate.found = f"{len(projects)} loaded"
    await work.workflows.recover()

    # The trial runs of the gate are let finish, and guests end, before gate and spawner close.
    gate_start = tasks.start(net_gate.start(bwrap=cage_settings(settings).bwrap), "network gate")
    closing.push_async_callback(asyncio.wait, {gate_start})

    async def run_guests() -> None:
        await asyncio.shield(gate_start)
        await pipeline.load()
        scripts.run()
        await asyncio.gather(mcp.load(), plugins.run(), accounts.run())

    guests = Tasks("guests", readiness.fail)
    closing.push_async_callback(guests.close)
    guests.start(run_guests(), "plugins")
    guests.start(loop.driver.recover(), "answers")
    guests.start(inbox.run(), "inbox")
    closing.push_async_callback(inbox.close)
    subsystems = Subsystems(
        projects=projects,
        status=lambda: status_of(
            state,
            store,
            audit,
            hub,
            len(projects),
            limits=describe_limits(spawner.backend),
            opening=projects.opening(),
            more_warnings=[
                *pipeline.warnings(),
                *mcp.warnings(),
                *accounts.warnings(),
                *projects.warnings(),
            ],
        ),
        doctor=doctor,
        plugins=plugins,
        tools=agent_tools,
        work=work,
        code=language_services,
        undo=UndoService(
            agent_tools.workspace_of, audit, store.sessions.allowed, spawner.operator_had
        ),
        models=models,
        sessions=sessions,
        lua=scripts,
        accounts=accounts,
        credentials=credentials.service,
        skills=skills,
        inbox=inbox,
        traces=traces,
        access=access,
    )
    return StartedSubsystems(subsystems, pipeline, mcp)


def _watch(core: DaemonCore, projects: ProjectService, mcp: McpService) -> None:
    core.services.metrics.watch(
        "kaged_mcp_clients", "MCP clients that are connected.", lambda: mcp.endpoint.client_sessions
    )
    core.services.metrics.watch(
        "kaged_projects", "Projects that are loaded.", lambda: len(projects)
    )


def _forward(hub: EventHub, plugin: str, kind: str, params: JsonValue) -> None:
    hub.publish(f"plugin:{plugin}", kind, {"plugin": plugin, "params": params})
