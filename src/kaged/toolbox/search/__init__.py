"""Text search: `search.grep` and `search.glob` over a `SearchEngine`, which is ripgrep.

grep, glob (tools) → engine (values) → ripgrep (command lines) → children (processes), records
"""

from kaged.base import Clock, SystemClock
from kaged.toolbox.search.children import EngineRunner
from kaged.toolbox.search.engine import (
    GrepMode,
    GrepOutcome,
    GrepQuery,
    ListOutcome,
    OutsideHits,
    Scope,
    SearchEngine,
    SearchSettings,
)
from kaged.toolbox.search.glob import glob_tool
from kaged.toolbox.search.grep import grep_tool
from kaged.toolbox.search.ripgrep import RipgrepEngine, find_ripgrep
from kaged.tools import Tool
from kaged.tools.kept_results import KeptResults

__all__ = [
    "EngineRunner",
    "GrepMode",
    "GrepOutcome",
    "GrepQuery",
    "ListOutcome",
    "OutsideHits",
    "RipgrepEngine",
    "Scope",
    "SearchEngine",
    "SearchSettings",
    "find_ripgrep",
    "search_tools",
]


def search_tools(
    engine: SearchEngine,
    settings: SearchSettings | None = None,
    clock: Clock | None = None,
    kept: KeptResults | None = None,
) -> tuple[Tool, ...]:
    """Return `search.grep` and `search.glob`."""
    chosen = settings or SearchSettings()
    return grep_tool(engine, chosen, kept), glob_tool(engine, chosen, clock or SystemClock())
