"""The structural tools as a tuple, for dispatch."""

from __future__ import annotations

from kaged.base import Clock, SystemClock
from kaged.toolbox.ast.engine import AstEngine, AstSettings
from kaged.toolbox.ast.rewrite import edit_ast_tool
from kaged.toolbox.ast.search import search_ast_tool
from kaged.toolbox.ast.sources import FileFinder
from kaged.tools import Tool


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
