"""`build_scripts`: the Lua scripts of projects, tied to the sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from kaged.audit import AuditLog
from kaged.base import Clock, Ids
from kaged.cage import Spawner
from kaged.config.settings import Settings
from kaged.events import EventHub
from kaged.inbox import Inbox
from kaged.lua.script_service import ScriptService
from kaged.pipeline.pipeline import Pipeline
from kaged.projects.readiness import Guard, Ready
from kaged.sessions.session_services import SessionServices
from kaged.sessions.transforms import Transforms
from kaged.tools.registry import ToolRegistry
from kaged.workspace import Workspace


def build_scripts(
    settings: Callable[[], Settings],
    environ: Mapping[str, str],
    workspace_of: Callable[[str], Workspace],
    sessions: SessionServices,
    transforms: Transforms | None,
    registry: ToolRegistry,
    *,
    spawner: Spawner,
    audit: AuditLog,
    hub: EventHub,
    inbox: Inbox,
    clock: Clock,
    ids: Ids,
    closing: AsyncExitStack,
    ready: Ready,
    guard: Guard,
    pipeline: Callable[[], Pipeline | None],
) -> ScriptService:
    """Build the scripts' home and tie it to the sessions; nothing starts before `run`."""
    scripts = ScriptService(
        settings,
        environ,
        workspace_of,
        sessions,
        registry,
        spawner=spawner,
        audit=audit,
        hub=hub,
        inbox=inbox,
        clock=clock,
        ids=ids,
        ready=ready,
        guard=guard,
        pipeline=pipeline,
    )
    closing.push_async_callback(scripts.close)
    closing.callback(scripts.forward_events(transforms).close)
    return scripts
