"""`PluginProjects`: what projects want of plugins, worked off one after the other.

load → the plugins it lacks become questions to the operator; the others are told about it. Two
lines, so that a plugin that is slow to restart does not keep a question from being asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.agents import AgentTree
from kaged.plugins.admission import admit_project
from kaged.plugins.consent import ConsentService
from kaged.plugins.declarations import Declaration, declarations_of
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.supervisor import PluginSupervisor
from kaged.projects.readiness import Guard

START_PATIENCE_S: Final = 15.0
"""How long a project waits for plugins that are still starting."""

_log = get_logger("kaged.plugins")


@dataclass(frozen=True, slots=True)
class _News:
    """A project that was loaded, or is gone; with `done` only a place in the line."""

    project_id: str = ""
    tree: AgentTree | None = None
    again: bool = True
    done: asyncio.Future[None] | None = None


class PluginProjects:
    """Keeps plugins and open questions in step with the loaded projects."""

    def __init__(
        self,
        supervisor: PluginSupervisor,
        consents: ConsentService,
        may_use: Callable[[str, HostedPlugin], bool],
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard or Guard("plugins", each_project=True)
        self._supervisor = supervisor
        self._consents = consents
        self._may_use = may_use
        self._trees: dict[str, AgentTree] = {}
        self._open = False
        self._telling: asyncio.Queue[_News] = asyncio.Queue()
        self._asking: asyncio.Queue[_News] = asyncio.Queue()

    # -- news ----------------------------------------------------------------------------------

    def loaded(self, project_id: str, tree: AgentTree) -> None:
        """Take note that a project was loaded or read anew.

        One that declares plugins is guarded once they have heard of it. A plugin that takes too
        long to start is done without, as by sessions.
        """
        self._trees[project_id] = tree
        if next(declarations_of(project_id, tree), None) is None:
            self._guard.stand(project_id)
        elif not self._guard.stands(project_id):
            loop = asyncio.get_running_loop()
            loop.call_later(START_PATIENCE_S, self._reached, project_id, tree)
        self._put(_News(project_id, tree, again=self._open))

    def unloaded(self, project_id: str) -> None:
        """Take note that a project is gone."""
        self._trees.pop(project_id, None)
        self._put(_News(project_id))

    def plugin_changed(self, plugin: str) -> None:
        """Take in again the projects that declare a plugin: it came, went or is another version."""
        for project_id, tree in self._trees.items():
            if any(one.plugin_name == plugin for _, one in declarations_of(project_id, tree)):
                self._put(_News(project_id, tree, again=False))

    async def settled(self) -> None:
        """Wait until everything that was news up to now has reached the plugins."""
        await self._passed(self._telling)

    async def asked(self) -> None:
        """Wait until the questions of everything that was news up to now are asked."""
        await self._passed(self._asking)

    def pending(self, project_id: str) -> bool:
        """Return whether a loaded project lacks a plugin that it declares."""
        tree = self._trees.get(project_id)
        return self._open and tree is not None and bool(self._missing(project_id, tree))

    # -- work ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take back the questions of the last run; from now on plugins are known."""
        try:
            await self._consents.restore()
        except KagedError as error:
            # The questions are asked again; an answer that was given is in the store, not here.
            _log.warning("consents.unreadable", problem=str(error))
        for one in self._consents.requests():
            if one.project_id not in self._trees:
                await self._consents.request(one.project_id, ())
        self._open = True

    async def run(self, started: Awaitable[None]) -> None:
        """Work both lines off, for as long as the daemon runs; plugins are told once `started`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._work(self._asking, self._ask))
            try:
                await started
            except Exception:  # noqa: BLE001 - the boundary: projects are served all the same
                _log.exception("plugins.start_failed")
            group.create_task(self._work(self._telling, self._tell))

    async def _work(
        self, line: asyncio.Queue[_News], handle: Callable[[_News], Awaitable[None]]
    ) -> None:
        while True:
            news = await line.get()
            if news.done is not None:
                if not news.done.done():
                    news.done.set_result(None)
                continue
            try:
                await handle(news)
            except (KagedError, OSError) as error:
                _log.warning("plugins.project_failed", project=news.project_id, problem=str(error))
            except Exception:  # noqa: BLE001 - the boundary: one project's fault must not end it
                _log.exception("plugins.project_failed", project=news.project_id)

    async def _tell(self, news: _News) -> None:
        if news.tree is None:
            await self._supervisor.unload_project(news.project_id)
        else:
            try:
                await self._supervisor.load_project(news.project_id, news.tree)
            finally:
                self._reached(news.project_id, news.tree)

    async def _ask(self, news: _News) -> None:
        missing = () if news.tree is None else self._missing(news.project_id, news.tree)
        await self._consents.request(news.project_id, missing, again=news.again)

    # -- own -----------------------------------------------------------------------------------

    def _reached(self, project_id: str, tree: AgentTree) -> None:
        """Take note that plugins know a project; older news of it does not count."""
        if self._trees.get(project_id) is tree:
            self._guard.stand(project_id)

    def _missing(self, project_id: str, tree: AgentTree) -> tuple[Declaration, ...]:
        plugins = self._supervisor.plugins
        return admit_project(project_id, tree, plugins, self._may_use).missing

    def _put(self, news: _News) -> None:
        self._telling.put_nowait(news)
        self._asking.put_nowait(news)

    async def _passed(self, line: asyncio.Queue[_News]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.put_nowait(_News(done=done))
        await done
