"""`search.ast`: find code by its structure."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.ast.engine import AstEngine, AstJob, AstSettings
from kaged.toolbox.ast.languages import LANGUAGES, is_of, names_of
from kaged.toolbox.ast.shown import matches_text
from kaged.toolbox.ast.sources import FileFinder, Sources
from kaged.tools import PathParam, Tool, ToolDefinition, ToolInvocation
from kaged.tools.fields import array, closed, integer, text
from kaged.tools.result_text import ResultView

MAX_CONTEXT: Final = 100
MAX_PATTERN_CHARS: Final = 32 * 1024
MAX_COUNTED: Final = 1_000
"""How many files are listed with their counts."""

_TURN: Final = 200

PARAMETERS: Final[JsonObject] = closed(
    {
        "pattern": text(
            "Code with meta-variables: $NAME is one node, $$$NAME any number. Must "
            "be one complete expression or statement, e.g. console.log($MSG).",
            maxLength=MAX_PATTERN_CHARS,
        ),
        "lang": text(
            "Language of the pattern; files are chosen by its extensions.", enum=list(LANGUAGES)
        ),
        "paths": array(
            {"type": "string"},
            "Directories or files, relative to the project root.",
            minItems=1,
            maxItems=100,
            default=["./"],
        ),
        "globs": array(
            {"type": "string", "minLength": 1},
            "Only files that fit one of these; a leading ! leaves files out.",
            maxItems=100,
            default=[],
        ),
        "context": integer(
            "Source lines before and after each match (at most 100).", minimum=0, default=0
        ),
        "limit": integer("List at most so many matches; all are counted.", minimum=1),
        "output_mode": text(
            "matches, or only how many in which file.",
            enum=["matches", "count"],
            default="matches",
        ),
        "strictness": text(
            "How literally the pattern is taken; smart suits most searches.",
            enum=["smart", "cst", "ast", "relaxed", "signature"],
            default="smart",
        ),
    },
    ["pattern", "lang"],
)
_LINES: Final[JsonObject] = {"type": "array", "items": {"type": "string"}}
RETURNS: Final[JsonObject] = closed(
    {
        "matches": {
            "type": "array",
            "items": closed(
                {
                    "file": {"type": "string"},
                    "line": {"type": "integer"},
                    "content": {"type": "string"},
                    "meta_variables": {
                        "type": "object",
                        "additionalProperties": {"type": "string"},
                    },
                    "context_before": _LINES,
                    "context_after": _LINES,
                    "outside_cage": {"type": "boolean"},
                },
                ["file", "line"],
            ),
        },
        "count": {"type": "integer"},
        "at_least": {"type": "integer"},
        "total_files": {"type": "integer"},
        "file_counts": {
            "type": "array",
            "items": closed(
                {
                    "file": {"type": "string"},
                    "count": {"type": "integer"},
                    "outside_cage": {"type": "boolean"},
                },
                ["file", "count"],
            ),
        },
        "truncated": {"type": "boolean"},
        "timed_out": {"type": "boolean"},
    },
    ["matches", "count"],
)
DEFINITION: Final = ToolDefinition(
    name="search.ast",
    namespace="search",
    description=(
        "Find code by structure instead of text: the pattern is code, formatting does not matter, "
        "and comments and strings never match. $NAME captures one node, $$$NAME any number; using "
        "a name twice demands equal code. Each match has its meta_variables. count is all matches; "
        "where the search stopped early it is those listed, and at_least is what was seen. "
        "truncated true means that there is more. Use edit.ast to rewrite what you found."
    ),
    parameters=PARAMETERS,
    returns=RETURNS,
    requires=(FsRequirement(FsMode.RO),),
)


def search_ast_tool(
    engine: AstEngine, finder: FileFinder, settings: AstSettings, clock: Clock
) -> Tool:
    """Return the tool, matching with this engine in the files of this finder."""
    run = _SearchAst(engine, finder, settings, clock).run
    return Tool(
        DEFINITION,
        run,
        paths=_paths,
        aliases={"search.ast_grep": {}},  # AT-REG-25
        view=ResultView(write=matches_text),
    )


def _paths(args: JsonObject) -> tuple[PathParam, ...]:
    return tuple(PathParam("paths", path, search=True) for path in cast("list[str]", args["paths"]))


@dataclass(frozen=True, slots=True)
class _SearchAst:
    _engine: AstEngine
    _finder: FileFinder
    _settings: AstSettings
    _clock: Clock

    async def run(self, call: ToolInvocation) -> JsonValue:
        """Check the pattern, find files that could match, parse those."""
        settings = self._settings
        started = self._clock.monotonic_s()
        lang = cast("str", call.args["lang"])
        job = AstJob(
            lang=lang,
            patterns=(cast("str", call.args["pattern"]),),
            strictness=cast("str", call.args["strictness"]),
            context=min(cast("int", call.args["context"]), MAX_CONTEXT),
        )
        (facts,) = await self._engine.prepare(job)
        starts = tuple(dict.fromkeys(call.search_start(path, "paths")[0] for path in call.paths))
        found, complete = await self._finder.find_files(
            call.workspace.root,
            starts,
            names=names_of(lang),
            globs=tuple(cast("list[str]", call.args["globs"])),
            literal=facts.literal,
            time_s=settings.time_s,
        )
        # A file that was named by itself comes whatever its name; so it is looked at here.
        sources = Sources(call, [path for path in found if is_of(os.fsdecode(path), lang)])
        results = _Results(settings, sources)
        limit = cast("int | None", call.args.get("limit"))
        left_s = settings.time_s - (self._clock.monotonic_s() - started)
        if len(sources):
            complete = complete and await self._engine.scan(
                job, len(sources), results.read, results.take, max(left_s, 0.0)
            )
        if call.args["output_mode"] == "count":
            return results.counted(limit, complete=complete)
        return await results.answer(limit, complete=complete)


class _Results:
    """Collects matches; called from the threads that scan, one at a time."""

    def __init__(self, settings: AstSettings, sources: Sources) -> None:
        self._settings = settings
        self._sources = sources
        self._by_file: dict[int, Any] = {}
        self._readable: dict[int, bool] = {}
        self._sizes: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._held = 0
        self._last = len(sources)
        self.count = 0

    def read(self, index: int) -> bytes | None:
        self._readable[index] = self._sources.readable(index)
        if self._settings.omit_outside and not self._readable[index]:
            return None
        data = self._sources.read(index, self._settings.file_bytes)
        return data if isinstance(data, bytes) else None

    def take(self, index: int, result: JsonObject) -> bool:
        if result.get("found") and index <= self._last:
            self._by_file[index] = result.get("matches", [])
            self._sizes[index] = cast("int", result.get("used", 0))
            self._held += self._sizes[index]
            if self._held > 4 * self._settings.output_bytes:
                self._drop_last()
        found = cast("int", result.get("found", 0))
        if found:
            self._counts[index] = found
        self.count += found
        return self.count <= self._settings.max_matches

    def _drop_last(self) -> None:
        """Let go of matches behind those that fill the answer; they are counted all the same."""
        size = 0
        for index in sorted(self._sizes):
            if size > 2 * self._settings.output_bytes:
                del self._by_file[index], self._sizes[index]
            else:
                size += self._sizes[index]
                self._last = index
        self._held = size

    async def answer(self, limit: int | None, *, complete: bool) -> JsonObject:
        """Return the matches that fit, and how many there are."""
        entries: list[JsonValue] = []
        size = 2
        for name, match, readable in self._matches():
            entry = _entry(name, match, readable=readable)
            size += len(json.dumps(entry)) + 2
            if size > self._settings.output_bytes or len(entries) == limit:
                break
            entries.append(entry)
            if len(entries) % _TURN == 0:
                await asyncio.sleep(0)
        return self._with_totals({"matches": entries}, len(entries), complete=complete)

    def counted(self, limit: int | None, *, complete: bool) -> JsonObject:
        """Return how many matches each file has; `limit` is of files here."""
        counts: list[JsonValue] = []
        listed = 0
        for index in sorted(self._counts)[: min(limit or MAX_COUNTED, MAX_COUNTED)]:
            listed += self._counts[index]
            one: JsonObject = {"file": self._sources.name(index), "count": self._counts[index]}
            counts.append(one if self._readable[index] else {**one, "outside_cage": True})
        result: JsonObject = {"matches": [], "file_counts": counts}
        return self._with_totals(result, listed, complete=complete)

    def _matches(self) -> Iterator[tuple[str, list[JsonValue], bool]]:
        for index in sorted(self._by_file):
            matches = self._by_file[index]  # which an engine may have left as text
            for match in msgspec.json.decode(matches) if isinstance(matches, str) else matches:
                yield self._sources.name(index), match, self._readable[index]

    def _with_totals(self, result: JsonObject, listed: int, *, complete: bool) -> JsonObject:
        """Add the numbers; one that may be too small has another name (AT-AST-04)."""
        if complete and self.count <= self._settings.max_matches:
            result |= {"count": self.count, "total_files": len(self._counts)}
        else:
            result |= {"count": listed, "at_least": self.count}
        if not complete or listed < self.count or self.count > self._settings.max_matches:
            result["truncated"] = True
        if not complete:
            result["timed_out"] = True
        return result


def _entry(name: str, match: list[JsonValue], *, readable: bool) -> JsonObject:
    line, content, variables, before, after = match
    if not readable:
        return {"file": name, "line": line, "outside_cage": True}
    return {
        "file": name,
        "line": line,
        "content": content,
        "meta_variables": variables,
        "context_before": before,
        "context_after": after,
    }
