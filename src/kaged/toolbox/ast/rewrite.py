"""`edit.ast`: rewrite code by its structure, in many files at once, all or none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Final, cast

from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.projectpaths import KAGED_DIR
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.ast.engine import AstEngine, AstJob, AstSettings
from kaged.toolbox.ast.languages import (
    LANGUAGES,
    extension_of,
    guessable_names,
    is_of,
    language_of,
    languages_of,
    names_of,
)
from kaged.toolbox.ast.plan import FilePlan, RewritePlan, change_of, new_contents
from kaged.toolbox.ast.shown import rewrite_text
from kaged.toolbox.ast.sources import FileFinder, Sources
from kaged.toolbox.ast.worker_main import META
from kaged.tools import (
    InvalidToolParams,
    Tool,
    ToolCapabilityRefused,
    ToolDefinition,
    ToolInvocation,
    one_path,
)
from kaged.tools.errors import ToolError
from kaged.tools.fields import closed, flag, integer, text
from kaged.tools.result_text import ResultView
from kaged.workspace import Written

MAX_REWRITES: Final = 100
_TURN: Final = 500

PARAMETERS: Final[JsonObject] = closed(
    {
        "rewrites": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": MAX_REWRITES,
            "additionalProperties": {"type": "string"},
            "description": "Pattern to replacement, e.g. {'console.log($MSG)': "
            "'logger.debug($MSG)'}. Variables of the pattern may be used in the replacement; an "
            "empty one deletes.",
        },
        "lang": text(
            "Language; determined from the files when all are of one language.",
            enum=list(LANGUAGES),
        ),
        "path": text("File or directory, relative to the project root.", default="./"),
        "glob": text(
            "Only files that fit, e.g. *.ts (any depth); a leading ! leaves out.", minLength=1
        ),
        "dry_run": flag(
            "Only report what would change. Set false to write the files.", default=True
        ),
        "max_replacements": integer("Replace at most so many places.", minimum=1),
        "max_files": integer("Change at most so many files.", minimum=1),
        "limit": integer(
            "List at most so many changes in the answer; all are counted, per file too.", minimum=0
        ),
    },
    ["rewrites"],
)
_INTEGER: Final[JsonObject] = {"type": "integer"}
_STRING: Final[JsonObject] = {"type": "string"}
RETURNS: Final[JsonObject] = closed(
    {
        "changes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "path": _STRING,
                    "before": _STRING,
                    "after": _STRING,
                    "byte_start": _INTEGER,
                    "byte_end": _INTEGER,
                    "start_line": _INTEGER,
                    "start_column": _INTEGER,
                    "end_line": _INTEGER,
                    "end_column": _INTEGER,
                },
                "additionalProperties": False,
            },
        },
        "file_changes": {
            "type": "array",
            "items": {"type": "object", "properties": {"path": _STRING, "count": _INTEGER}},
        },
        "total_replacements": _INTEGER,
        "files_touched": _INTEGER,
        "files_searched": _INTEGER,
        "applied": {"type": "boolean"},
        "limit_reached": {"type": "boolean"},
        "parse_errors": {
            "type": "array",
            "items": {"type": "object", "properties": {"path": _STRING, "reason": _STRING}},
        },
        "timed_out": {"type": "boolean"},
    },
    [
        "changes",
        "file_changes",
        "total_replacements",
        "files_touched",
        "files_searched",
        "applied",
        "limit_reached",
        "parse_errors",
    ],
)
DEFINITION: Final = ToolDefinition(
    name="edit.ast",
    namespace="edit",
    description=(
        "Rewrite code by structure in one file or many. Patterns are code with meta-variables "
        "($NAME one node, $$$NAME any number) as in search.ast. By default a dry run: look at "
        "changes first, then call again with dry_run false to write. All rewrites see the "
        "original text; overlapping ones are skipped. Files with syntax errors are left alone and "
        "listed in parse_errors. Writing is all or nothing."
    ),
    parameters=PARAMETERS,
    returns=RETURNS,
    requires=(FsRequirement(FsMode.RW),),
)


def edit_ast_tool(
    engine: AstEngine, finder: FileFinder, settings: AstSettings, clock: Clock
) -> Tool:
    """Return the tool, rewriting with this engine in the files of this finder."""
    return Tool(
        DEFINITION,
        _EditAst(engine, finder, settings, clock).run,
        # A dry run may look from above the cage; for writing the kernel asks for the path itself.
        paths=one_path(search=True),
        requires_for=lambda args: (FsRequirement(FsMode.RW if _changes(args) else FsMode.RO),),
        changes=_changes,
        view=ResultView(write=rewrite_text),
    )


def _changes(args: JsonObject) -> bool:
    return args.get("dry_run") is False


@dataclass(frozen=True, slots=True)
class _EditAst:
    _engine: AstEngine
    _finder: FileFinder
    _settings: AstSettings
    _clock: Clock

    async def run(self, call: ToolInvocation) -> JsonValue:
        """Find the files, work out all edits, then write all of them or nothing."""
        settings, args = self._settings, call.args
        started = self._clock.monotonic_s()
        rewrites = cast("dict[str, str]", args["rewrites"])
        start, single = call.search_start(call.paths[0])
        lang, found, complete = await self._candidates(call, start, single=single)
        job = AstJob(lang, tuple(rewrites), templates=tuple(rewrites.values()))
        facts = await self._engine.prepare(job)
        for (pattern, template), one in zip(rewrites.items(), facts, strict=True):
            _require_bound(pattern, template, one.bound)
        sources = Sources(call, found)
        plan = RewritePlan(
            settings,
            sources,
            max_replacements=cast("int | None", args.get("max_replacements")),
            max_files=cast("int | None", args.get("max_files")),
        )
        left_s = settings.time_s - (self._clock.monotonic_s() - started)
        if len(sources):
            complete = complete and await self._engine.scan(
                job, len(sources), plan.read, plan.take, max(left_s, 0.0)
            )
        errors = plan.parse_errors()
        if errors and plan.examined == 1:
            raise ToolError(
                "the only candidate file cannot be parsed", code="parse_error", detail=errors[0]
            )
        plans, limited = plan.files()
        applied = _changes(args)
        if applied:
            if not complete:
                raise ToolError(
                    "the time was up before all files were looked at; nothing was changed",
                    code="ast_time_up",
                    fix="narrow path or glob, or set max_files",
                )
            await _apply(call, plans, sources)
        result = await _result(plans, sources, cast("int | None", args.get("limit")))
        result["files_searched"] = plan.examined
        result["applied"] = applied
        result["limit_reached"] = limited or not complete
        result["parse_errors"] = errors
        if not complete:
            result["timed_out"] = True
        return result

    async def _candidates(
        self, call: ToolInvocation, start: str, *, single: bool
    ) -> tuple[str, list[bytes], bool]:
        """Return the language and the files."""
        lang = cast("str | None", call.args.get("lang"))
        glob = cast("str | None", call.args.get("glob"))
        found, complete = await self._finder.find_files(
            call.workspace.root,
            (start,),
            names=guessable_names() if lang is None else names_of(lang),
            globs=() if glob is None else (glob,),
            literal=None,
            time_s=self._settings.time_s,
        )
        if single:
            if lang is None:
                lang = language_of(start)
                if lang is None:
                    raise _unknown_language(f"*.{extension_of(start)}")
            return lang, found, complete
        if lang is None:
            counts = languages_of(_own_files(start, found))
            if len(counts) != 1:
                raise _unclear_language(counts)
            (lang,) = counts
        return lang, [path for path in found if is_of(os.fsdecode(path), lang)], complete


def _own_files(start: str, found: list[bytes]) -> Iterator[str]:
    """Yield the files that say what language is meant: not the project's own description.

    Every project has one, in YAML; with it no project as a whole would be of one language.
    """
    described = f"./{KAGED_DIR}/"
    for path in map(os.fsdecode, found):
        if start.startswith(described.rstrip("/")) or not path.startswith(described):
            yield path


async def _apply(call: ToolInvocation, plans: list[FilePlan], sources: Sources) -> None:
    workspace = call.workspace
    refused: list[JsonValue] = [
        sources.name(plan.index)
        for plan in plans
        if not call.writable(sources.project_path(plan.index).resolved)
    ]
    if refused:
        raise ToolCapabilityRefused(
            f"not allowed: {len(refused)} of the files to change may not be written by you; "
            "nothing was changed",
            fix="narrow path or glob to files you may write",
            detail={"denied": [f"rw:fs:{path}" for path in refused], "files": refused},
        )
    if not plans:
        return
    paths = [sources.project_path(plan.index) for plan in plans]
    async with workspace.locks.mutating(paths):
        await workspace.threads.finish(
            lambda: workspace.write_all(new_contents(plans, sources, workspace)),
            lambda written: _settled(call, plans, sources, written),
        )


def _settled(
    call: ToolInvocation, plans: list[FilePlan], sources: Sources, written: tuple[Written, ...]
) -> None:
    call.workspace.settle(call.author, written)
    for plan in plans:
        call.emit(
            "file.edited",
            path=sources.name(plan.index),
            replacements=len(plan.edits),
            tool_name=call.tool_name,
        )


async def _result(plans: list[FilePlan], sources: Sources, limit: int | None) -> JsonObject:
    changes: list[JsonValue] = []
    file_changes: list[JsonValue] = []
    for plan in plans:
        name = sources.name(plan.index)
        file_changes.append({"path": name, "count": len(plan.edits)})
        for edit in plan.edits:
            if len(changes) == limit:
                break
            changes.append(change_of(name, edit))
            if len(changes) % _TURN == 0:
                await asyncio.sleep(0)
    return {
        "changes": changes,
        "file_changes": file_changes,
        "total_replacements": sum(len(plan.edits) for plan in plans),
        "files_touched": len(file_changes),
    }


def _require_bound(pattern: str, template: str, bound: frozenset[str]) -> None:
    for found in META.finditer(template):
        name = found[0].lstrip("$")
        if name and name not in bound:
            raise InvalidToolParams.of_field(
                "rewrites",
                f"the replacement of {pattern[:200]!r} uses {found[0]}, which the pattern does "
                "not bind",
            )


def _unknown_language(what: str) -> InvalidToolParams:
    return InvalidToolParams.of_field(
        "lang", f"cannot be determined from {what}", fix="name lang, or another file"
    )


def _unclear_language(counts: dict[str, int]) -> InvalidToolParams:
    if not counts:
        return _unknown_language("the files: there is none of a known language")
    listed = ", ".join(f"{lang} ({count})" for lang, count in sorted(counts.items()))
    return InvalidToolParams.of_field(
        "lang",
        f"cannot be determined from the files, which are of several languages: {listed}",
        fix="name lang, or narrow path or glob",
    )
