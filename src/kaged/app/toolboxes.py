"""`open_toolboxes`: the built-in tools with the engines behind them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from kaged.app.bridges import Bridges
from kaged.base import Clock
from kaged.cage import Spawner
from kaged.config.desksection import OutsideHitsWord, ToolsSection
from kaged.toolbox.ast import AstSettings, AstWorkers, WorkerEngine, ast_tools
from kaged.toolbox.files import file_tools
from kaged.toolbox.project import ProjectWork, project_tools
from kaged.toolbox.search import (
    EngineRunner,
    OutsideHits,
    RipgrepEngine,
    SearchSettings,
    search_tools,
)
from kaged.toolbox.shell import Attach, PtyBroker, caged_launcher, shell_tools
from kaged.tools import Tool
from kaged.tools.quotas import QuotaRule


def open_toolboxes(
    spawner: Spawner,
    work: ProjectWork,
    section: ToolsSection,
    bridges: Bridges,
    *,
    clock: Clock,
    closing: AsyncExitStack,
    attach: Attach,
) -> tuple[Sequence[Tool], str]:
    """Give the built-in tools, and in words how many there are. Starts no process.

    `attach` says what each caged command of the shell gets on top.

    Raises:
        KagedError: a search engine is missing.
    """
    searching = RipgrepEngine(EngineRunner(spawner), clock=clock)
    workers = AstWorkers(spawner)
    closing.push_async_callback(workers.close)
    parsing = WorkerEngine(workers)
    omit = section.outside_hits is OutsideHitsWord.OMIT
    broker = PtyBroker()
    closing.push_async_callback(broker.dispose_all)
    # Closed in reverse: when the terminals go, no server or debugger is left (AT-LSP-11).
    closing.push_async_callback(bridges.close)
    tools = (
        *file_tools(),
        *search_tools(
            searching, SearchSettings(outside=OutsideHits(section.outside_hits)), clock=clock
        ),
        *ast_tools(parsing, searching, AstSettings(omit_outside=omit), clock=clock),
        *shell_tools(broker, spawner, caged_launcher(spawner, attach), clock=clock),
        *project_tools(work),
        *bridges.tools(),
    )
    return tools, f"{len(tools)} built-in tools"


def quota_rules(section: ToolsSection) -> Sequence[QuotaRule]:
    """Give the operator's limits on calls as the desk counts them."""
    return [QuotaRule(one.tools, one.calls, one.per) for one in section.quotas]


__all__ = ["open_toolboxes", "quota_rules"]
