"""Structural search and rewriting: `search.ast`, `edit.ast` over an `AstEngine` of processes.

search, rewrite (tools) → sources (files), plan (edits) → engine → workers → worker_main
"""

from kaged.toolbox.ast.engine import AstEngine, AstJob, AstSettings, PatternFacts, WorkerEngine
from kaged.toolbox.ast.errors import AstEngineUnavailable, InvalidAstPattern, SourceUnparsable
from kaged.toolbox.ast.languages import LANGUAGES
from kaged.toolbox.ast.sources import FileFinder
from kaged.toolbox.ast.tools import ast_tools
from kaged.toolbox.ast.workers import AstWorkers

__all__ = [
    "LANGUAGES",
    "AstEngine",
    "AstEngineUnavailable",
    "AstJob",
    "AstSettings",
    "AstWorkers",
    "FileFinder",
    "InvalidAstPattern",
    "PatternFacts",
    "SourceUnparsable",
    "WorkerEngine",
    "ast_tools",
]
