"""Text search: `search.grep` and `search.glob` over a `SearchEngine`, which is ripgrep.

grep, glob (tools) → engine (values) → ripgrep (command lines) → children (processes), records
"""

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
from kaged.toolbox.search.errors import EngineUnavailable, InvalidSearchPattern
from kaged.toolbox.search.ripgrep import RipgrepEngine, find_ripgrep
from kaged.toolbox.search.tools import search_tools

__all__ = [
    "EngineRunner",
    "EngineUnavailable",
    "GrepMode",
    "GrepOutcome",
    "GrepQuery",
    "InvalidSearchPattern",
    "ListOutcome",
    "OutsideHits",
    "RipgrepEngine",
    "Scope",
    "SearchEngine",
    "SearchSettings",
    "find_ripgrep",
    "search_tools",
]
