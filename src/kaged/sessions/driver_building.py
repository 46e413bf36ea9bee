"""`build_driver`: the agent loop, put together from its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kaged.base.lazy_dataclass import dataclass
from kaged.sessions.agent_run_factory import AgentRunFactory
from kaged.sessions.changed_files import ChangedFiles
from kaged.sessions.compacting import Compactor
from kaged.sessions.driver import RenewActor, RunEnded, SessionDriver
from kaged.sessions.instructions import ProjectInstructions
from kaged.sessions.loop import LoopParts
from kaged.sessions.policies import Policies
from kaged.sessions.queued_requests import QueuedRequests
from kaged.sessions.resume import Resumption
from kaged.sessions.session_cache import SessionCache, TakeSnapshot
from kaged.sessions.subagents import Delegations
from kaged.sessions.todo_work import LoopTodos
from kaged.sessions.toolcalls import ToolRunner
from kaged.sessions.transforms import Transforms

if TYPE_CHECKING:
    from kaged.base import Clock, Ids
    from kaged.pipeline.pipeline import Pipeline
    from kaged.projects.readiness import Ready
    from kaged.sessions.agent_run import RunState
    from kaged.sessions.hooks import SessionHooks
    from kaged.sessions.lifecycle import Lifecycle
    from kaged.sessions.navigation import Navigation
    from kaged.sessions.needs import AuditPost, Models, Routing
    from kaged.sessions.session_service import SessionService
    from kaged.sessions.transcript import Transcript
    from kaged.store import Store
    from kaged.toolbox.project import TodoService
    from kaged.tools.definition import Handler
    from kaged.tools.dispatch import ToolDispatcher
    from kaged.tools.session_labels import SessionLabels
    from kaged.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Driving:
    """The loop and what others need of it: `delegate` answers `agent-<key>`."""

    driver: SessionDriver
    delegate: Handler
    transforms: Transforms


def build_driver(
    store: Store,
    transcript: Transcript,
    service: SessionService,
    navigation: Navigation,
    lifecycle: Lifecycle,
    *,
    dispatcher: ToolDispatcher,
    take_snapshot: TakeSnapshot,
    workspace_of: Callable[[str], Workspace],
    hooks: SessionHooks,
    models: Models,
    routing: Routing,
    todos: TodoService,
    audit: AuditPost,
    pipeline: Callable[[], Pipeline | None],
    labels: SessionLabels,
    run_ended: Sequence[RunEnded],
    ready: Ready,
    renew_actor: RenewActor,
    idle_s: Callable[[], float],
    clock: Clock,
    ids: Ids,
) -> Driving:
    """Put the loop together; nothing runs yet."""
    transforms = Transforms()
    policies = Policies(pipeline, labels, clock, ids)
    runs: dict[str, RunState] = {}

    async def between_turns(session_id: str) -> bool:
        outcome = await navigation.apply(session_id, between_turns=True)
        return outcome is not None and outcome.moved

    tools = ToolRunner(dispatcher, transcript, transforms, lifecycle.emit)
    instructions = ProjectInstructions(workspace_of, dispatcher.permissions.compiled, transcript)
    parts = LoopParts(
        transcript=transcript,
        tools=tools,
        compactor=Compactor(
            transcript,
            hooks,
            audit,
            lifecycle.emit,
            transforms,
            clock=clock,
            ids=ids,
            results=dispatcher.results,
        ),
        todos=LoopTodos(todos, store.sessions, audit),
        changed_files=ChangedFiles(workspace_of),
        instructions=instructions,
        transforms=transforms,
        policies=policies,
        announce=lifecycle.emit,
        clock=clock,
        ids=ids,
        between_turns=between_turns,
        queued=QueuedRequests(),
    )
    run_factory = AgentRunFactory(models, transcript, policies, routing, instructions)
    children = Delegations(run_factory, parts, runs)
    driver = SessionDriver(
        store,
        service,
        SessionCache(store, transcript, hooks, take_snapshot),
        run_factory,
        parts,
        Resumption(store.interactions, tools, children),
        hooks,
        models,
        runs=runs,
        idle_s=idle_s,
        run_ended=run_ended,
        ready=ready,
        renew_actor=renew_actor,
        clock=clock,
        ids=ids,
    )
    return Driving(driver, children.delegate, transforms)
