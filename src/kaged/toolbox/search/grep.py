"""`search.grep`: find text in the project's files by regular expression."""

from __future__ import annotations

import asyncio
import os
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.search.engine import (
    GrepMode,
    GrepOutcome,
    GrepQuery,
    OutsideHits,
    Scope,
    SearchEngine,
    SearchSettings,
)
from kaged.toolbox.search.globs import PathGlob, compile_glob
from kaged.toolbox.search.lines import content_of, fair_share, fill, reread
from kaged.toolbox.search.place import SearchRoot, Sight, shown
from kaged.toolbox.search.records import Keep, RawCount, RawHit
from kaged.tools import Tool, ToolDefinition, ToolInvocation, one_path
from kaged.tools.fields import closed, flag, integer, text

_SNIFF_BYTES: Final = 8 * 1024

PARAMETERS: Final[JsonObject] = closed(
    {
        "pattern": text(
            "Regular expression (Rust syntax; look-around and back-references work "
            "too). Case-sensitive; start with (?i) to ignore case. \\n in it matches across lines."
        ),
        "path": text(
            "Directory or single file to search, relative to the project root.", default="./"
        ),
        "include": text(
            "Only files that fit this glob, e.g. *.ts or *.{ts,tsx} (any depth) or "
            "src/**/*.py. A leading ! leaves them out instead.",
            minLength=1,
        ),
        "output_mode": text(
            "content: the matching lines; files_with_matches: the files; count: "
            "matching lines per file.",
            enum=["content", "files_with_matches", "count"],
            default="files_with_matches",
        ),
        "head_limit": integer(
            "At most so many entries; total_matches still counts all.", minimum=1
        ),
        "hidden": flag(
            "Also search files and directories whose name begins with a dot.", default=True
        ),
        "gitignore": flag(
            "Leave out what .gitignore names. Set false to look into build output or dependencies.",
            default=True,
        ),
    },
    ["pattern"],
)
_ENTRY: Final[JsonObject] = closed(
    {
        "file": {"type": "string"},
        "line": {"type": "integer"},
        "content": {"type": "string"},
        "count": {"type": "integer"},
        "outside_cage": {"type": "boolean"},
    },
    ["file"],
)
RETURNS: Final[JsonObject] = closed(
    {
        "matches": {"type": "array", "items": _ENTRY},
        "total_matches": {"type": "integer"},
        "truncated": {"type": "boolean"},
        "timed_out": {"type": "boolean"},
        "hint": {"type": "string"},
    },
    ["matches", "total_matches", "truncated"],
)
DEFINITION: Final = ToolDefinition(
    name="search.grep",
    namespace="search",
    description=(
        "Search file contents with a regular expression. By default returns the files that match; "
        "output_mode content returns the lines with their numbers, count how many per file. Skips "
        "binary files, .git and what .gitignore names. Results are sorted by path. truncated "
        "true means that there is more: narrow path, include or pattern. Entries with "
        "outside_cage true are in files that you may not read. Use search.ast for code structure."
    ),
    parameters=PARAMETERS,
    returns=RETURNS,
    requires=(FsRequirement(FsMode.RO),),
)


def grep_tool(engine: SearchEngine, settings: SearchSettings) -> Tool:
    """Return the tool, searching with this engine."""
    return Tool(DEFINITION, _Grep(engine, settings).run, paths=one_path(search=True))


@dataclass(frozen=True, slots=True)
class _Grep:
    _engine: SearchEngine
    _settings: SearchSettings

    async def run(self, call: ToolInvocation) -> JsonValue:
        """Search, then show each hit as far as the caller may see it."""
        args = call.args
        mode = GrepMode(cast("str", args["output_mode"]))
        place = SearchRoot(*call.search_start(call.paths[0]))
        sight = Sight(call)
        include = args.get("include")
        glob = compile_glob(include) if isinstance(include, str) else None
        if place.is_file and not await self._worth_reading(call, place, glob):
            return _result([], 0, truncated=False)
        query = GrepQuery(
            scope=_scope(call, place, glob),
            pattern=cast("str", args["pattern"]),
            mode=mode,
            max_hits=self._settings.max_hits,
            time_s=self._settings.time_s,
            keep=self._keep(place, glob, sight),
        )
        outcome = await self._engine.grep(query)
        limit = cast("int | None", args.get("head_limit"))
        if mode is GrepMode.CONTENT:
            return await self._lines(call, outcome, sight, limit)
        return await self._files(outcome, sight, limit, counted=mode is GrepMode.COUNT)

    async def _worth_reading(
        self, call: ToolInvocation, place: SearchRoot, glob: PathGlob | None
    ) -> bool:
        """Return whether a single file is one to search: a named one is not looked at by type."""
        name = place.start.removeprefix("./")
        if glob is not None and not glob.matches(name):
            return False

        def is_text() -> bool:
            handle = call.workspace.open_read(call.paths[0])
            try:
                head = os.read(handle, _SNIFF_BYTES)
            finally:
                os.close(handle)
            return b"\0" not in head or head.startswith((b"\xff\xfe", b"\xfe\xff"))

        return await call.workspace.threads.run(is_text)

    def _keep(self, place: SearchRoot, glob: PathGlob | None, sight: Sight) -> Keep | None:
        tests: list[Keep] = []
        if glob is not None and not place.is_file and not (glob.names and glob.by_name):
            tests.append(_fits(glob, place))
        if sight.limited and self._settings.outside is OutsideHits.OMIT:
            tests.append(sight.readable)
        if not tests:
            return None
        return tests[0] if len(tests) == 1 else lambda path: all(test(path) for test in tests)

    async def _lines(
        self, call: ToolInvocation, outcome: GrepOutcome, sight: Sight, limit: int | None
    ) -> JsonValue:
        settings = self._settings
        hits = sorted(outcome.hits)
        await asyncio.sleep(0)  # each of these steps takes milliseconds for thousands of hits
        sizes = sum([len(hit.path) + min(len(hit.text), 2000) + 48 for hit in hits])
        await asyncio.sleep(0)
        room = len(hits) if limit is None else limit
        if sizes > settings.output_bytes:
            # Not all of them will fit; take as many as do on average, a fair share of each file.
            room = min(room, max(1, settings.output_bytes * len(hits) // sizes))
        chosen = fair_share(hits, room)
        await asyncio.sleep(0)
        if sight.limited:
            chosen = await call.workspace.threads.run(lambda: reread(chosen, sight, call.workspace))

        def entry_of(hit: RawHit) -> JsonObject:
            if sight.readable(hit.path):
                return {"file": shown(hit.path), "line": hit.line, "content": content_of(hit)}
            return {"file": shown(hit.path), "line": hit.line, "outside_cage": True}

        entries, fitted = await fill(chosen, entry_of, settings.output_bytes)
        cut = not fitted or outcome.capped or len(chosen) < len(hits)
        hint = ""
        if outcome.capped:
            hint = (
                f"stopped after {settings.max_hits} matching lines, which come from an arbitrary "
                "part of the files; narrow the search, or ask for output_mode count"
            )
        return _result(
            entries, outcome.total, truncated=cut, timed_out=outcome.timed_out, hint=hint
        )

    async def _files(
        self, outcome: GrepOutcome, sight: Sight, limit: int | None, *, counted: bool
    ) -> JsonValue:
        counts = sorted(outcome.counts)
        chosen = counts if limit is None else counts[:limit]
        await asyncio.sleep(0)

        def entry_of(one: RawCount) -> JsonObject:
            entry: JsonObject = {"file": shown(one.path)}
            if counted:
                entry["count"] = one.lines
            if not sight.readable(one.path):
                entry["outside_cage"] = True
            return entry

        entries, fitted = await fill(chosen, entry_of, self._settings.output_bytes)
        cut = not fitted or outcome.dropped or len(chosen) < len(counts)
        return _result(entries, outcome.total, truncated=cut, timed_out=outcome.timed_out)


def _scope(call: ToolInvocation, place: SearchRoot, glob: PathGlob | None) -> Scope:
    negated = glob is not None and glob.negated
    names: tuple[str, ...] = ()
    if glob is not None and not place.is_file and (glob.by_name or not negated):
        names = glob.names
    return Scope(
        root=call.workspace.root,
        paths=(place.start,),
        hidden=bool(call.args["hidden"]),
        # A file that is named is meant, whatever ignores it.
        gitignore=bool(call.args["gitignore"]) and not place.is_file,
        names=() if negated else names,
        without=names if negated else (),
    )


def _fits(glob: PathGlob, place: SearchRoot) -> Keep:
    cut = len(os.fsencode(place.below))

    def fits(path: bytes) -> bool:
        if glob.matches(os.fsdecode(path[cut:])):
            return not glob.negated or cut == 2 or glob.matches(os.fsdecode(path[2:]))
        # Many write such a pattern from the project root, whatever `path` says.
        return not glob.negated and cut > 2 and glob.matches(os.fsdecode(path[2:]))

    return fits


def _result(
    entries: list[JsonValue],
    total: int,
    *,
    truncated: bool,
    timed_out: bool = False,
    hint: str = "",
) -> JsonObject:
    result: JsonObject = {
        "matches": entries,
        "total_matches": total,
        "truncated": truncated or timed_out,
    }
    if timed_out:
        result["timed_out"] = True
        hint = "the time was up before everything was searched; narrow path or include"
    if hint:
        result["hint"] = hint
    return result
