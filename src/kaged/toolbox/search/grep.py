"""`search.grep`: find text in the project's files by regular expression."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.search.context import MAX_CONTEXT, Around, around, lines_around
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
from kaged.toolbox.search.shown import grep_text
from kaged.tools import InvalidToolParams, Tool, ToolDefinition, ToolInvocation
from kaged.tools.fields import closed, flag, integer, text
from kaged.tools.kept_results import KeptResults, path_or_result, requires_unless_result
from kaged.tools.result_text import ResultView

_T = TypeVar("_T")

MAX_PAGE: Final = 5_000
MAX_OFFSET: Final = 1_000_000
PAGE: Final = 250
"""How many entries a page has when only `offset` is given."""

_SNIFF_BYTES: Final = 8 * 1024
_KIND: Final = "^[a-z0-9][a-z0-9+_-]{0,31}$"
_LINES: Final[JsonObject] = {"type": "array", "items": {"type": "string"}}

PARAMETERS: Final[JsonObject] = closed(
    {
        "pattern": text(
            "Regular expression (Rust syntax; look-around and back-references work "
            "too). Case-sensitive; start with (?i) to ignore case. \\n in it matches across lines."
        ),
        "path": text(
            "Directory or single file to search, relative to the project root, or the handle of a "
            "kept result (result:/…).",
            default="./",
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
        "type": text(
            "Only files of this type, as ripgrep names them: py, ts, js, rust, go, java, c, md.",
            pattern=_KIND,
        ),
        "head_limit": integer(
            "At most so many entries, a fair share of each file; total_matches still counts all.",
            minimum=1,
        ),
        "limit": integer(
            "Page through the entries: at most so many, in order. next_offset leads to the next "
            "page.",
            minimum=1,
            maximum=MAX_PAGE,
        ),
        "offset": integer("How many entries to pass over first.", minimum=0, maximum=MAX_OFFSET),
        "context": integer(
            "Lines to show before and after each match (content only).",
            minimum=0,
            maximum=MAX_CONTEXT,
        ),
        "before": integer("Lines to show before each match.", minimum=0, maximum=MAX_CONTEXT),
        "after": integer("Lines to show after each match.", minimum=0, maximum=MAX_CONTEXT),
        "multiline": flag(
            "Let a match go on over lines: . is any character, newlines too.", default=False
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
        "before": _LINES,
        "after": _LINES,
        "outside_cage": {"type": "boolean"},
    },
    ["file"],
)
RETURNS: Final[JsonObject] = closed(
    {
        "matches": {"type": "array", "items": _ENTRY},
        "total_matches": {"type": "integer"},
        "total_files": {"type": "integer"},
        "next_offset": {"type": "integer"},
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
        "output_mode content returns the lines with their numbers (context adds lines around), "
        "count how many per file. Page with limit and offset. Skips "
        "binary files, .git and what .gitignore names. Results are sorted by path. truncated "
        "true means that there is more: narrow path, include or pattern. Entries with "
        "outside_cage true are in files that you may not read. Use search.ast for code structure."
    ),
    parameters=PARAMETERS,
    returns=RETURNS,
    requires=(FsRequirement(FsMode.RO),),
)


def grep_tool(engine: SearchEngine, settings: SearchSettings, kept: KeptResults | None) -> Tool:
    """Return the tool, searching with this engine; `kept` are the results that it looks into."""
    return Tool(
        DEFINITION,
        _Grep(engine, settings, kept).run,
        paths=path_or_result(search=True),
        requires_for=requires_unless_result(DEFINITION),
        view=ResultView(write=grep_text),
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """Which entries are wanted. `paged`: in order, from an offset; else a fair share of all."""

    offset: int = 0
    limit: int | None = None
    paged: bool = False

    @classmethod
    def of(cls, args: JsonObject) -> _Page:
        offset = cast("int | None", args.get("offset"))
        limit = cast("int | None", args.get("limit"))
        if offset is None and limit is None:
            return cls(limit=cast("int | None", args.get("head_limit")))
        return cls(offset or 0, limit or PAGE, paged=True)

    def of_all(self, items: Sequence[_T]) -> list[_T]:
        """Return the items of this page."""
        end = None if self.limit is None else self.offset + self.limit
        return list(items[self.offset : end])


@dataclass(frozen=True, slots=True)
class _Grep:
    _engine: SearchEngine
    _settings: SearchSettings
    _kept: KeptResults | None

    async def run(self, call: ToolInvocation) -> JsonValue:
        """Search, then show each hit as far as the caller may see it."""
        args = call.args
        if not call.paths:
            return await self._in_result(call)
        mode = GrepMode(cast("str", args["output_mode"]))
        place = SearchRoot(*call.search_start(call.paths[0]))
        sight = Sight(call)
        include = args.get("include")
        glob = compile_glob(include) if isinstance(include, str) else None
        if place.is_file and not await self._worth_reading(call, place, glob):
            return _result([], 0, files=0, truncated=False)
        scope = _scope(call, place, glob)
        query = GrepQuery(
            scope=scope,
            pattern=cast("str", args["pattern"]),
            mode=mode,
            max_hits=self._settings.max_hits,
            time_s=self._settings.time_s,
            keep=self._keep(place, glob, sight, by_name=scope.kind is None),
            multiline=bool(args["multiline"]),
        )
        outcome = await self._engine.grep(query)
        if mode is GrepMode.CONTENT:
            return await self._lines(call, outcome, sight, _Page.of(args))
        counted = mode is GrepMode.COUNT
        return await self._files(outcome, sight.readable, shown, _Page.of(args), counted=counted)

    async def _in_result(self, call: ToolInvocation) -> JsonValue:
        """Search in a kept result of the caller's own; nothing else is looked at."""
        args = call.args
        handle = cast("str", args["path"])
        if self._kept is None:
            raise InvalidToolParams.of_field("path", "no results are kept here")
        found = await asyncio.to_thread(self._kept.path, call.context, handle)
        mode = GrepMode(cast("str", args["output_mode"]))
        query = GrepQuery(
            scope=Scope(str(found.parent), (f"./{found.name}",), gitignore=False),
            pattern=cast("str", args["pattern"]),
            mode=mode,
            max_hits=self._settings.max_hits,
            time_s=self._settings.time_s,
            multiline=bool(args["multiline"]),
        )
        outcome, page = await self._engine.grep(query), _Page.of(args)
        if mode is not GrepMode.CONTENT:
            counted = mode is GrepMode.COUNT
            return await self._files(
                outcome, lambda _: True, lambda _: handle, page, counted=counted
            )
        hits = sorted(outcome.hits)
        chosen = page.of_all(hits)
        before, after = _around(args)
        lines = await asyncio.to_thread(found.read_bytes) if before or after else b""
        listed = lines.split(b"\n")

        def entry_of(hit: RawHit) -> JsonObject:
            entry: JsonObject = {"file": handle, "line": hit.line, "content": content_of(hit)}
            if before or after:
                entry |= around(listed, hit.line, before, after).as_json()
            return entry

        entries, fitted = await fill(chosen, entry_of, self._settings.output_bytes)
        following = page.offset + len(entries)
        cut = not fitted or outcome.capped or following < len(hits)
        return _result(
            entries,
            outcome.total,
            files=min(len(hits), 1),
            following=following if page.paged and following < len(hits) else None,
            truncated=cut,
            timed_out=outcome.timed_out,
        )

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

    def _keep(
        self, place: SearchRoot, glob: PathGlob | None, sight: Sight, *, by_name: bool
    ) -> Keep | None:
        tests: list[Keep] = []
        # The engine itself looks at names, but not beside a type of files.
        named = by_name and glob is not None and bool(glob.names) and glob.by_name
        if glob is not None and not place.is_file and not named:
            tests.append(_fits(glob, place))
        if sight.limited and self._settings.outside is OutsideHits.OMIT:
            tests.append(sight.readable)
        if not tests:
            return None
        return tests[0] if len(tests) == 1 else lambda path: all(test(path) for test in tests)

    async def _lines(
        self, call: ToolInvocation, outcome: GrepOutcome, sight: Sight, page: _Page
    ) -> JsonValue:
        settings, workspace = self._settings, call.workspace
        hits = sorted(outcome.hits)
        await asyncio.sleep(0)  # each of these steps takes milliseconds for thousands of hits
        asked = await self._chosen(hits, page)
        chosen = asked
        if sight.limited:
            chosen = await workspace.threads.run(lambda: reread(asked, sight, workspace))
        before, after = _around(call.args)
        near: dict[tuple[bytes, int], Around] = {}
        if before or after:
            listed = chosen
            near = await workspace.threads.run(
                lambda: lines_around(listed, before, after, sight, workspace)
            )

        def entry_of(hit: RawHit) -> JsonObject:
            if not sight.readable(hit.path):
                return {"file": shown(hit.path), "line": hit.line, "outside_cage": True}
            entry: JsonObject = {
                "file": shown(hit.path), "line": hit.line, "content": content_of(hit)
            }  # fmt: skip
            lines = near.get((hit.path, hit.line))
            return entry if lines is None else entry | lines.as_json()

        entries, fitted = await fill(chosen, entry_of, settings.output_bytes)
        following = page.offset + len(asked)
        if not fitted:
            # Of what was asked for, everything before the first that did not fit is dealt with.
            first = chosen[len(entries)]
            following = page.offset + sum((one.path, one.line) < first[:2] for one in asked)
        more = following < len(hits)
        hint = ""
        if outcome.capped:
            hint = (
                f"stopped after {settings.max_hits} matching lines, which come from an arbitrary "
                "part of the files; narrow the search, or ask for output_mode count"
            )
        sure = not (outcome.capped or outcome.timed_out)
        return _result(
            entries,
            outcome.total,
            files=len({hit.path for hit in hits}) if sure else None,
            following=following if page.paged and more else None,
            truncated=not fitted or outcome.capped or len(asked) < len(hits),
            timed_out=outcome.timed_out,
            hint=hint,
        )

    async def _chosen(self, hits: list[RawHit], page: _Page) -> list[RawHit]:
        """Return the hits of a page, or as many as fit, a fair share of each file."""
        if page.paged:
            return page.of_all(hits)
        output_bytes = self._settings.output_bytes
        sizes = sum([len(hit.path) + min(len(hit.text), 2000) + 48 for hit in hits])
        await asyncio.sleep(0)
        room = len(hits) if page.limit is None else page.limit
        if sizes > output_bytes:
            # Not all of them will fit; take as many as do on average, a fair share of each file.
            room = min(room, max(1, output_bytes * len(hits) // sizes))
        chosen = fair_share(hits, room)
        await asyncio.sleep(0)
        return chosen

    async def _files(
        self,
        outcome: GrepOutcome,
        readable: Keep,
        name_of: Callable[[bytes], str],
        page: _Page,
        *,
        counted: bool,
    ) -> JsonValue:
        counts = sorted(outcome.counts)
        chosen = page.of_all(counts)
        await asyncio.sleep(0)

        def entry_of(one: RawCount) -> JsonObject:
            entry: JsonObject = {"file": name_of(one.path)}
            if counted:
                entry["count"] = one.lines
            if not readable(one.path):
                entry["outside_cage"] = True
            return entry

        entries, fitted = await fill(chosen, entry_of, self._settings.output_bytes)
        following = page.offset + len(entries)
        more = following < len(counts)
        sure = not (outcome.dropped or outcome.timed_out)
        return _result(
            entries,
            outcome.total,
            files=len(counts) if sure else None,
            following=following if page.paged and more else None,
            truncated=not fitted or outcome.dropped or more,
            timed_out=outcome.timed_out,
        )


def _around(args: JsonObject) -> tuple[int, int]:
    """Return how many lines before and after a match are wanted."""
    both = cast("int", args.get("context", 0))
    return cast("int", args.get("before", both)), cast("int", args.get("after", both))


def _scope(call: ToolInvocation, place: SearchRoot, glob: PathGlob | None) -> Scope:
    negated = glob is not None and glob.negated
    names: tuple[str, ...] = ()
    kind = None if place.is_file else cast("str | None", call.args.get("type"))
    by_name = glob is not None and (glob.by_name or not negated)
    if glob is not None and kind is None and not place.is_file and by_name:
        names = glob.names
    return Scope(
        root=call.workspace.root,
        paths=(place.start,),
        hidden=bool(call.args["hidden"]),
        # A file that is named is meant, whatever ignores it.
        gitignore=bool(call.args["gitignore"]) and not place.is_file,
        names=() if negated else names,
        without=names if negated else (),
        kind=kind,
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
    files: int | None = None,
    following: int | None = None,
    truncated: bool,
    timed_out: bool = False,
    hint: str = "",
) -> JsonObject:
    result: JsonObject = {
        "matches": entries,
        "total_matches": total,
        "truncated": truncated or timed_out,
    }
    # A number that may be too small is not called a total.
    if files is not None:
        result["total_files"] = files
    if following is not None:
        result["next_offset"] = following
    if timed_out:
        result["timed_out"] = True
        hint = "the time was up before everything was searched; narrow path or include"
    if hint:
        result["hint"] = hint
    return result
