"""The agent loop on a real store, desk and transcript; models and plugin hooks are the test's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from fakes.agent_trees import load_tree
from fakes.played_model import PlayedModel, PlayedModels
from fakes.readiness import always_ready
from fakes.store_home import StoreHome
from fakes.tool_lab import RecordedAudit
from kaged.audit import AuditEvent
from kaged.base import Clock, Ids, JsonObject, ManualClock, Tasks
from kaged.config.agents import AgentTree
from kaged.inbox import Inbox
from kaged.kernel.identity import EVERYTHING, Actor
from kaged.kernel.kept_actor import KeptActor
from kaged.pipeline.pipeline import Pipeline
from kaged.plugins.hooks import CompactionEvent, HookRunner, Participant, PreCompactOutcome
from kaged.plugins.observers import Observed
from kaged.projects.work_projects import WorkProjects
from kaged.sessions.agent_run import RunState
from kaged.sessions.agent_tools import AgentToolService, ToolLinks
from kaged.sessions.driver_building import build_driver
from kaged.sessions.hooks import SessionHooks
from kaged.sessions.label_entries import open_labels
from kaged.sessions.lifecycle import Lifecycle, SessionEvent
from kaged.sessions.navigation import Navigation
from kaged.sessions.run_values import RunEnd
from kaged.sessions.session_service import SessionService
from kaged.sessions.snapshot import AgentSnapshot, SessionSnapshot
from kaged.sessions.transcript import Transcript
from kaged.sessions.workflow_runner import LoopWorkflows
from kaged.store import Store
from kaged.toolbox.project import (
    InteractionService,
    IssueService,
    PersonUploads,
    ProjectWork,
    TodoService,
    WorkflowService,
    project_tools,
)
from kaged.tools import Tool
from kaged.tools.outcomes import ToolOutcome
from kaged.tools.shown_results import ShownResults
from kaged.wire.context import WireContext

PROJECT = "prj_1"
PLAIN = "primary: {model: default, system_prompt: You help.}\n"


class PlayedHooks:
    """Plugin hooks that the test answers; `fired` is what was fired, with its parameters."""

    def __init__(self) -> None:
        self.fired: list[tuple[str, WireContext, Any]] = []
        self.inject: tuple[str, ...] = ()
        self.outcome = PreCompactOutcome(Observed())
        self.after = Observed()
        self.takes_part = True

    def participants(self, project_id: str, agent_path: str) -> Sequence[Participant]:
        return cast("list[Participant]", [object()]) if self.takes_part else []

    async def session_start(self, participants: Any, context: WireContext) -> Observed:
        self.fired.append(("on_session_start", context, None))
        return Observed(self.inject)

    async def session_idle(
        self, participants: Any, context: WireContext, transcript: Sequence[JsonObject]
    ) -> None:
        self.fired.append(("on_session_idle", context, list(transcript)))

    async def pre_compact(
        self, participants: Any, context: WireContext, event: CompactionEvent
    ) -> PreCompactOutcome:
        self.fired.append(("pre_compact", context, event))
        return self.outcome

    async def post_compact(
        self, participants: Any, context: WireContext, event: CompactionEvent
    ) -> Observed:
        self.fired.append(("post_compact", context, event))
        return self.after

    def names(self) -> list[str]:
        return [name for name, _, _ in self.fired]


async def no_routing(run: RunState, snapshot: AgentSnapshot) -> str:
    """Return nothing about skills and accounts: there are none."""
    del run, snapshot
    return ""


class LoopLab:
    """One daemon's sessions. `restarted` returns another on the same store."""

    def __init__(
        self,
        root: Path,
        store: Store,
        clock: Clock,
        ids: Ids,
        *,
        models: PlayedModels,
        tools: Iterable[Tool] = (),
        project: str = PLAIN,
        pipeline: Callable[[], Pipeline | None] = lambda: None,
        idle_s: float = 300.0,
        hooks: SessionHooks | None = None,
        plugins_of: Callable[[str, str], Sequence[str]] = lambda _project, _agent: (),
        results: ShownResults | None = None,
    ) -> None:
        self.root = root
        self.store = store
        self.clock = clock
        self.models = models
        self.audit = RecordedAudit()
        self.hooks = PlayedHooks()
        self.events: list[SessionEvent] = []
        self.announced: list[tuple[str, JsonObject]] = []
        self.recorded: list[AuditEvent] = []
        self.outcomes: list[ToolOutcome] = []
        self.cleaned: list[tuple[str, str]] = []
        self.failures: list[BaseException] = []
        self._tasks = Tasks("lab", lambda _, error: self.failures.append(error))
        self.lifecycle = Lifecycle()
        self.lifecycle.subscribe(self.events.append)
        self.transcript = Transcript(store, self.lifecycle, clock=clock, ids=ids)
        self.service = SessionService(store, self.transcript, self.lifecycle)
        self.navigation = Navigation(
            store, self.transcript, self.service, self.lifecycle, ready=always_ready
        )
        self.agent_tools = AgentToolService(
            cast("Any", self.audit),
            clock,
            ids,
            ready=always_ready,
            plugins_of=plugins_of,
            pipeline=pipeline,
            outcomes=(self,),
            results=results,
        )
        self.projects = WorkProjects()
        todos = TodoService(store, ids)
        self.driving = build_driver(
            store,
            self.transcript,
            self.service,
            self.navigation,
            self.lifecycle,
            dispatcher=self.agent_tools.dispatcher,
            take_snapshot=self._snapshot,
            workspace_of=self.agent_tools.workspace_of,
            hooks=hooks or SessionHooks(cast("HookRunner", self.hooks), self.hooks.participants),
            models=models,
            routing=no_routing,
            todos=todos,
            audit=self.audit,
            pipeline=pipeline,
            labels=open_labels(store, self.transcript, cast("Any", self.audit)),
            run_ended=[lambda project_id, run_id: self.cleaned.append((project_id, run_id))],
            ready=always_ready,
            renew_actor=self._renew,
            idle_s=lambda: idle_s,
            clock=clock,
            ids=ids,
        )
        self.driver = self.driving.driver
        self.agent_tools.connect(
            ToolLinks(delegate=self.driving.delegate, fixed=self.driver.fixed_tools)
        )
        self.runner = LoopWorkflows(
            lambda: self.driver, self.transcript, store.agent_runs, self.projects.root
        )
        self.inbox = Inbox(
            store.inbox,
            record=self._record,
            post=self.recorded.append,
            announce=lambda name, data: self.announced.append((name, data)),
            clock=clock,
        )
        uploads = PersonUploads(root / "uploads")
        self.work = ProjectWork(
            issues=IssueService(store, self.projects.workflows),
            todos=todos,
            workflows=WorkflowService(
                store,
                self.projects,
                clock=clock,
                ids=ids,
                tasks=self._tasks,
                ready=always_ready,
                uploads=uploads,
            ),
            interactions=InteractionService(
                store, self.inbox, ids=ids, root_of=self.projects.root, uploads=uploads
            ),
            uploads=uploads,
        )
        self.work.workflows.connect(self.runner)
        self.work.interactions.connect(self.driver.takes_over, self.driver.answered)
        self.agent_tools.register([*project_tools(self.work), *tools])
        self.load(project)

    async def _renew(self, kept: KeptActor) -> Actor | None:
        """Let everybody in again, as whoever they were."""
        return kept.person(kept.facts, EVERYTHING) if kept.is_person else kept.operator()

    async def _record(self, event: AuditEvent) -> None:
        self.recorded.append(event)

    def load(self, text: str) -> AgentTree:
        """Load the project, or its file written anew."""
        tree = load_tree(self.root, text)
        self.projects.project_loaded(PROJECT, tree)
        self.agent_tools.project_loaded(PROJECT, tree)
        return tree

    @property
    def model(self) -> PlayedModel:
        """The model of the agents that do not say otherwise."""
        return cast("PlayedModel", self.models.get("default"))

    async def session(self, **more: Any) -> str:
        """Begin a session; returns its id."""
        made = await self.transcript.create(PROJECT, cwd=str(self.root), model=None, **more)
        return made.id

    async def run(self, session_id: str, text: str, **more: Any) -> RunEnd:
        """Send a message and wait for the end of its run."""
        return await self.driver.wait(await self.driver.send(session_id, text, **more))

    async def talk(self, text: str, **more: Any) -> RunEnd:
        """Do the same in a new session."""
        return await self.run(await self.session(), text, **more)

    async def entries(self, session_id: str, agent: str | None = None) -> list[str]:
        """Return the messages of a session, each in a line."""
        lines: list[str] = []
        for entry in await self.transcript.entries(session_id):
            if entry.role is None or (agent is not None and entry.agent != agent):
                continue
            blocks = cast("list[dict[str, Any]]", entry.content["content"])
            said = " ".join(_shown(one) for one in blocks)
            lines.append(f"{entry.role.value}: {said}")
        return lines

    async def bound(self, *items: str) -> tuple[str, str]:
        """Begin a session bound to an issue with these todos; returns both ids."""
        session = await self.session()
        done = await self.work.issues.create(PROJECT, "A title", "A body", "operator")
        number = int(cast("Any", done.result)["number"])
        await self.store.sessions.bind(PROJECT, session, number)
        issue_id = await self.work.todos.issue_id(PROJECT, number)
        if items:
            await self.work.todos.act(issue_id, {"action": "set", "items": [*items]})
        return session, issue_id

    def told(self, *names: str) -> list[SessionEvent]:
        """Return the events of these names, in order."""
        return [one for one in self.events if one.name in names]

    def tool_calls_made(self, name: str) -> list[ToolOutcome]:
        """Return the calls of one tool that dispatch has seen end."""
        return [one for one in self.outcomes if one.tool_name == name]

    def tool_called(self, outcome: ToolOutcome) -> None:
        """Take note of a call, as the book does."""
        self.outcomes.append(outcome)

    async def close(self) -> None:
        await self.driver.close()
        await self._tasks.close()

    async def _snapshot(self, project_id: str) -> SessionSnapshot:
        return self.agent_tools.snapshot(project_id)


def _shown(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "tool_call":
            return f"<{block['name']}>"
        case "tool_result_block":
            return f"[{'error ' if block['is_error'] else ''}{block['name']}] {block['output']}"
        case _:
            return f"({block['type']})"


@asynccontextmanager
async def loop_lab(
    tmp_path: Path, model: PlayedModel | None = None, **more: Any
) -> AsyncGenerator[LoopLab]:
    """Open a lab below a folder; `more` are further models under `models`, and LoopLab's words."""
    clock = more.pop("clock", None) or ManualClock()
    ids = Ids(clock)
    others = more.pop("models", {})
    models = PlayedModels({"default": model or PlayedModel(), **others})
    root = tmp_path / "project"
    root.mkdir(exist_ok=True)
    home = StoreHome(tmp_path, clock, ids)
    lab = LoopLab(root, await home.store(), clock, ids, models=models, **more)
    try:
        yield lab
    finally:
        await lab.close()
        await home.close()


__all__ = ["PLAIN", "PROJECT", "LoopLab", "PlayedHooks", "loop_lab"]
