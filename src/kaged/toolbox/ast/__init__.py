"""Structural search and rewriting: `search.ast`, `edit.ast` over an `AstEngine` of processes.

search, rewrite (tools) → sources (files), plan (edits) → engine → workers → worker_main
"""

from kaged.base import Clock, SystemClock
from kaged.toolbox.ast.engine import (
    AstEngine,
    AstJob,
    AstSettings,
    InvalidAstPattern,
    PatternFacts,
    WorkerEngine,
)
from kaged.toolbox.ast.languages import LANGUAGES
from kaged.toolbox.ast.rewrite import edit_ast_tool
from kaged.toolbox.ast.search import search_ast_tool
from kaged.toolbox.ast.sources import FileFinder
from kaged.toolbox.ast.workers import AstWorkers
from kaged.tools import Tool

__all__ = [
    "LANGUAGES",
    "AstEngine",
    "AstJob",
    "AstSettings",
    "AstWorkers",
    "FileFinder",
    "InvalidAstPattern",
    "PatternFacts",
    "WorkerEngine",
    "ast_tools",
]


def ast_tools(
    engine: AstEngine,
    finder: FileFinder,
    settings: AstSettings | None = None,
    clock: Clock | None = None,
) -> tuple[Tool, ...]:
    """Return `search.ast` and `edit.ast`; `finder` is the text search's way to list files."""
    chosen = settings or AstSettings()
    time = clock or SystemClock()
    return (
        search_ast_tool(engine, finder, chosen, time),
        edit_ast_tool(engine, finder, chosen, time),
    )
