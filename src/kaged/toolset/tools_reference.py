"""The list of built-in tools for `docs/reference/tools.md`, made from their definitions.

`python -m kaged.toolset.tools_reference docs/reference/tools.md` rewrites the generated part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.kernel.requirements import ToolRequirement
from kaged.toolbox.ast import ast_tools
from kaged.toolbox.dap import dap_tools
from kaged.toolbox.files import file_tools
from kaged.toolbox.lsp import lsp_tools
from kaged.toolbox.project import ProjectWork, project_tools
from kaged.toolbox.search import search_tools
from kaged.toolbox.shell import CommandRunner, shell_tools
from kaged.toolbox.web import web_tools
from kaged.tools import Tool
from kaged.toolset.skill_tools import LoadedSkills, skill_tools

BEGIN: Final = "<!-- made from the definitions: python -m kaged.toolset.tools_reference -->"
END: Final = "<!-- end of the made part -->"
_CELL_CHARS: Final = 300


def builtin_definitions() -> Sequence[Tool]:
    """Return every built-in tool, unfit to be called: there is nothing behind them."""
    nobody: Any = cast("Any", None)
    work = ProjectWork(nobody, nobody, nobody, nobody, nobody)
    runner = CommandRunner(nobody, nobody, None)
    tools = (
        *file_tools(),
        *search_tools(nobody),
        *ast_tools(nobody, nobody),
        *shell_tools(runner),
        *skill_tools(nobody, runner, LoadedSkills(nobody, nobody)),
        *project_tools(work),
        *lsp_tools(lambda _: None),
        *dap_tools(lambda _: None),
        *web_tools(nobody, nobody),
    )
    return sorted(tools, key=lambda one: one.definition.name)


def render(tools: Iterable[Tool]) -> str:
    """Write the generated part of the page."""
    sections = [_section(tool) for tool in tools]
    return "\n".join([BEGIN, "", *sections, END])


def rewrite(page: Path) -> None:
    """Put the generated part into a page, in place of the old one."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + render(builtin_definitions()) + after, encoding="utf-8")


def _section(tool: Tool) -> str:
    definition = tool.definition
    lines = [f"### {definition.name}", "", definition.description.strip(), ""]
    needs = ", ".join(_need(one) for one in definition.requires) or "nothing of the cage"
    if tool.requires_for is not None:
        needs += " (more, depending on the arguments)"
    lines.append(f"Needs: {needs}." + (" Root agent only." if definition.root_only else ""))
    if tool.aliases:
        lines[-1] += f" Also: {', '.join(f'`{name}`' for name in tool.aliases)}."
    rows = [
        _row(name, schema, definition.parameters) for name, schema in _fields(definition.parameters)
    ]
    if rows:
        lines += ["", "| Parameter | Type | Default | Meaning |", "|---|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def _fields(schema: JsonObject) -> list[tuple[str, JsonObject]]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    return [(name, one) for name, one in properties.items() if isinstance(one, dict)]


def _row(name: str, schema: JsonObject, whole: JsonObject) -> str:
    required = whole.get("required")
    needed = isinstance(required, list) and name in required
    default = (
        "required" if needed else f"`{_text(schema['default'])}`" if "default" in schema else ""
    )
    described = schema.get("description")
    meaning = _cell(described) if isinstance(described, str) else ""
    return f"| `{name}` | {_cell(_type(schema))} | {default} | {meaning} |"


def _type(schema: JsonObject) -> str:
    options = schema.get("enum")
    if isinstance(options, list):
        return ", ".join(f"`{_text(one)}`" for one in options)
    kind = schema.get("type", "any")
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _text(value: JsonValue) -> str:
    match value:
        case True:
            return "true"
        case False:
            return "false"
        case None:
            return "null"
        case _:
            return str(value)


def _need(requirement: ToolRequirement) -> str:
    said = requirement.as_json()
    return " ".join(str(said[key]) for key in said if key != "path")


def _cell(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= _CELL_CHARS else f"{flat[:_CELL_CHARS]}…"


if __name__ == "__main__":
    rewrite(Path(sys.argv[1]))
