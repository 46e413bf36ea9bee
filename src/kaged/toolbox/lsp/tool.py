"""`code.lsp`: one tool, seventeen actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement, ToolRequirement
from kaged.toolbox.lsp import admin
from kaged.toolbox.lsp.bridge import LspBridge
from kaged.toolbox.lsp.codeactions import suggest
from kaged.toolbox.lsp.diagnostics import find_problems
from kaged.toolbox.lsp.lookup import (
    describe_symbol,
    find_references,
    find_targets,
    list_symbols,
)
from kaged.toolbox.lsp.question import LspCall
from kaged.toolbox.lsp.rename import rename_file, rename_symbol
from kaged.toolbox.lsp.structure import show_calls, show_formatting, show_tokens
from kaged.tools import InvalidToolParams, PathParam, Tool, ToolDefinition, ToolInvocation
from kaged.tools.errors import ToolError
from kaged.tools.fields import closed, flag, integer, text

Action = Callable[[LspCall], Awaitable[JsonValue]]

ACTIONS: Final[Mapping[str, Action]] = {
    "diagnostics": find_problems,
    "definition": find_targets,
    "references": find_references,
    "symbols": list_symbols,
    "rename": rename_symbol,
    "rename_file": rename_file,
    "code_actions": suggest,
    "hover": describe_symbol,
    "type_definition": find_targets,
    "implementation": find_targets,
    "call_hierarchy": show_calls,
    "format": show_formatting,
    "semantic_tokens": show_tokens,
    "status": admin.show_status,
    "reload": admin.reload_servers,
    "capabilities": admin.show_capabilities,
    "request": admin.raw_request,
}
POSITION: Final = frozenset(
    {
        "definition",
        "references",
        "rename",
        "code_actions",
        "hover",
        "type_definition",
        "implementation",
        "call_hierarchy",
    }
)
PATHLESS: Final = frozenset({"status", "reload", "capabilities", "request"})
CHANGING: Final = frozenset({"rename", "rename_file"})

PARAMETERS: Final[JsonObject] = closed(
    {
        "action": text("What to do.", enum=list(ACTIONS)),
        "path": text("A file, or a directory for diagnostics and workspace symbols."),
        "line": integer("Line, counted from 1.", minimum=1),
        "character": integer(
            "Column in characters, counted from 0. `symbol` is easier.", minimum=0
        ),
        "symbol": text(
            "Instead of `character`: the name as it stands on the line; "
            "`name#2` for its second occurrence there.",
            minLength=1,
            maxLength=500,
        ),
        "severity": text(
            "diagnostics: only these.",
            enum=["error", "warning", "information", "hint", "all"],
            default="all",
        ),
        "include_declaration": flag("references: count the declaration too.", default=False),
        "scope": text(
            "symbols: of the file, or of the project by `query`.",
            enum=["document", "workspace"],
            default="document",
        ),
        "query": text("symbols: what to look for in the project."),
        "limit": integer(
            "symbols, semantic_tokens: how many at most.", minimum=1, maximum=1000, default=50
        ),
        "direction": text(
            "call_hierarchy: what calls it, or what it calls.",
            enum=["incoming", "outgoing"],
            default="incoming",
        ),
        "tab_size": integer("format: spaces per step.", minimum=1, maximum=16, default=4),
        "tabs": flag("format: indent with tabs.", default=False),
        "new_name": text("rename: the new name.", minLength=1),
        "new_path": text("rename_file: where to.", minLength=1),
        "include_diagnostics": flag(
            "code_actions: offer fixes for the problems at the position.", default=True
        ),
        "language": text("status, reload, capabilities, request: which server."),
        "method": text("request: the LSP method.", minLength=1),
        "params": {
            "type": ["object", "array"],
            "description": "request: its parameters.",
        },
    },
    ["action"],
)

DEFINITION: Final = ToolDefinition(
    name="code.lsp",
    namespace="code",
    description=(
        "Ask the project's language servers. Actions: diagnostics (errors and warnings of a file "
        "or directory), definition, type_definition, implementation, references, hover, symbols "
        "(of a file, or of the project with scope=workspace and query), rename (everywhere, "
        "atomically), rename_file (moves the file and updates imports), code_actions (fixes on "
        "offer; apply them with edit.text), call_hierarchy (direction incoming or outgoing), "
        "format (the edits of a formatter; apply them with edit.text), semantic_tokens, status, "
        "reload, capabilities, request (raw, for agents without a cage). Positions: `line` from 1 "
        "with `symbol` (the name on that line) or `character` from 0. Results outside your cage "
        "have a path and line only."
    ),
    parameters=PARAMETERS,
    returns={"type": "object"},
    requires=(FsRequirement(FsMode.RO),),
)


def lsp_tools(bridge_for: Callable[[ToolInvocation], LspBridge | None]) -> tuple[Tool, ...]:
    """Return `code.lsp`; `bridge_for` finds the bridge of a call's project."""

    async def handle(call: ToolInvocation) -> JsonValue:
        bridge = bridge_for(call)
        if bridge is None:
            raise ToolError(
                "there is no language-server bridge for this project",
                code="lsp_server_unavailable",
                fix="go on without code.lsp",
            )
        return await ACTIONS[_action(call.args)](LspCall(call, bridge))

    return (
        Tool(
            DEFINITION,
            handle,
            paths=_paths,
            requires_for=_requires,
            # A raw request may be one to execute a command of the server's.
            changes=lambda args: _action(args) in CHANGING or _action(args) == "request",
            check=_check,
        ),
    )


def _requires(args: JsonObject) -> tuple[ToolRequirement, ...]:
    # Dispatch sees to reading. What a rename writes is known only when the server has answered;
    # `rename` sees to writing (AT-REG-17, AT-LSP-24) and refuses with the list of files.
    return (FsRequirement(FsMode.RO),) if "path" in args else ()


def _paths(args: JsonObject) -> tuple[PathParam, ...]:
    path = args.get("path")
    return (PathParam("path", path, search=True),) if isinstance(path, str) else ()


def _check(args: JsonObject) -> None:
    action = _action(args)
    missing: list[str] = []
    if action not in PATHLESS:
        missing += ["path"] if "path" not in args else []
    if action in POSITION:
        missing += ["line"] if "line" not in args else []
        missing += ["character"] if "character" not in args and "symbol" not in args else []
    needed = {"rename": "new_name", "rename_file": "new_path", "request": "method"}.get(action)
    if needed is not None and needed not in args:
        missing.append(needed)
    if action == "symbols" and args.get("scope") == "workspace" and not args.get("query"):
        missing.append("query")
    if missing:
        raise InvalidToolParams.of_fields((one, f"is required for {action}") for one in missing)


def _action(args: JsonObject) -> str:
    return str(args["action"])
