"""The search tools as a tuple, for dispatch."""

from __future__ import annotations

from kaged.base import Clock, SystemClock
from kaged.toolbox.search.engine import SearchEngine, SearchSettings
from kaged.toolbox.search.glob import glob_tool
from kaged.toolbox.search.grep import grep_tool
from kaged.tools import Tool


def search_tools(
    engine: SearchEngine, settings: SearchSettings | None = None, clock: Clock | None = None
) -> tuple[Tool, ...]:
    """Return `search.grep` and `search.glob`."""
    chosen = settings or SearchSettings()
    return grep_tool(engine, chosen), glob_tool(engine, chosen, clock or SystemClock())
