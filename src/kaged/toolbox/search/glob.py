"""`search.glob`: find files by name, newest first."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.search.engine import OutsideHits, Scope, SearchEngine, SearchSettings
from kaged.toolbox.search.globs import PathGlob, climbs, compile_glob
from kaged.toolbox.search.listing import Listing, Newest, find_link_directories
from kaged.toolbox.search.place import SearchRoot, Sight, shown
from kaged.toolbox.search.records import Keep, Sieve
from kaged.toolbox.search.shown import glob_text
from kaged.tools import InvalidToolParams, Tool, ToolDefinition, ToolInvocation, one_path
from kaged.tools.fields import closed, flag, integer, text
from kaged.tools.result_text import ResultView

MAX_OFFSET: Final = 100_000

PARAMETERS: Final[JsonObject] = closed(
    {
        "pattern": text(
            "Glob: * ? [a-z] {a,b} and ** across directories. *.ts finds them at "
            "any depth, src/*.ts only right in src, src/**/*.ts below it. A leading ! gives all "
            "files but these. Hidden files only when the pattern writes their dot."
        ),
        "path": text("Directory to look in, relative to the project root.", default="./"),
        "gitignore": flag("Leave out what .gitignore names.", default=True),
        "offset": integer(
            "How many files to pass over first, newest first.",
            minimum=0,
            maximum=MAX_OFFSET,
            default=0,
        ),
        "limit": integer("At most so many files (never more than 100).", minimum=1, maximum=100),
    },
    ["pattern"],
)
_PATHS: Final[JsonObject] = {"type": "array", "items": {"type": "string"}}
RETURNS: Final[JsonObject] = closed(
    {
        "files": _PATHS,
        "count": {"type": "integer"},
        "total": {"type": "integer"},
        "next_offset": {"type": "integer"},
        "truncated": {"type": "boolean"},
        "outside_cage": _PATHS,
        "timed_out": {"type": "boolean"},
    },
    ["files", "count", "truncated"],
)
DEFINITION: Final = ToolDefinition(
    name="search.glob",
    namespace="search",
    description=(
        "Find files by name pattern, most recently modified first, at most 100. Skips .git and "
        "what .gitignore names. total counts all that fit; truncated true means that there are "
        "more: go on at next_offset, or narrow the pattern. "
        "outside_cage lists files that exist but that you may not read."
    ),
    parameters=PARAMETERS,
    returns=RETURNS,
    requires=(FsRequirement(FsMode.RO),),
)


def glob_tool(engine: SearchEngine, settings: SearchSettings, clock: Clock) -> Tool:
    """Return the tool, listing with this engine."""
    return Tool(
        DEFINITION,
        _GlobTool(engine, settings, clock).run,
        paths=one_path(search=True),
        check=_check,
        view=ResultView(write=glob_text),
    )


def _check(args: JsonObject) -> None:
    if climbs(cast("str", args["pattern"])):
        raise InvalidToolParams.of_field(
            "pattern",
            "must stay inside the directory it starts from",
            fix="write it relative, without .. and without a leading /; set path to the directory",
        )


@dataclass(frozen=True, slots=True)
class _GlobTool:
    _engine: SearchEngine
    _settings: SearchSettings
    _clock: Clock

    async def run(self, call: ToolInvocation) -> JsonValue:
        """List, look up, sort, cut; in this order, so that the newest are never cut."""
        settings = self._settings
        started = self._clock.monotonic_s()
        glob = compile_glob(cast("str", call.args["pattern"]), hidden=False)
        place = SearchRoot(*call.search_start(call.paths[0]))
        if place.is_file:
            raise InvalidToolParams.of_field(
                "path", "must be a directory", fix="name its directory"
            )
        sight = Sight(call)
        root = call.workspace.root
        gitignore = bool(call.args["gitignore"])
        scope = Scope(root, (place.start,), glob.dotted, gitignore, depth=glob.depth)
        directories: set[bytes] = {os.fsencode(place.below)}
        fits = _fits(glob, place)
        offset = cast("int", call.args["offset"])
        limit = min(cast("int", call.args.get("limit", settings.glob_files)), settings.glob_files)
        result = Listing(
            Newest(offset + limit),
            Newest(limit),
            omit_outside=settings.outside is OutsideHits.OMIT,
        )
        noting = _noting(fits, directories)
        complete = await self._look(
            call, scope, lambda paths: result.take(noting(paths), root, sight)
        )
        linking = await call.workspace.threads.run(lambda: find_link_directories(directories, root))
        left_s = settings.time_s - (self._clock.monotonic_s() - started)
        if linking and complete and left_s > 0:
            places = tuple(os.fsdecode(one) for one in linking)
            scope = Scope(root, places, glob.dotted, gitignore)
            links = await self._engine.files(scope, left_s, fits, links=True)
            complete = links.complete
            await call.workspace.threads.run(lambda: result.take_links(links.paths, root, sight))
        return _result(result, offset, limited=sight.limited, complete=complete)

    async def _look(
        self, call: ToolInvocation, scope: Scope, take: Callable[[list[bytes]], None]
    ) -> bool:
        """List files and have them taken in a thread, the first ones while the engine still walks.

        Says whether all were listed.
        """
        threads = call.workspace.threads
        waiting: deque[list[bytes]] = deque()
        looking: asyncio.Task[None] | None = None

        def look() -> None:
            while waiting:
                take(waiting.popleft())

        def sieve(paths: list[bytes]) -> list[bytes]:
            nonlocal looking
            waiting.append(paths)
            # One thread at a time: several would only fight for the interpreter.
            if looking is None or looking.done():
                looking = tasks.create_task(threads.run(look))
            return []

        try:
            async with asyncio.TaskGroup() as tasks:
                listed = await self._engine.files(scope, self._settings.time_s, sieve)
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        waiting.append(listed.paths)  # an engine need not have used the sieve
        await threads.run(look)
        return listed.complete


def _fits(glob: PathGlob, place: SearchRoot) -> Sieve:
    """Return what finds the files that fit, as much of it as possible without looking at each."""
    suffixes = tuple(os.fsencode(name[1:]) for name in glob.names)
    by_suffix = bool(suffixes) and all(re.fullmatch(r"\*[^*?]+", name) for name in glob.names)
    if not by_suffix or glob.negated or glob.dotted:
        keep = _fits_one(glob, place)
        return lambda paths: list(filter(keep, paths))
    if glob.by_name:
        # Nothing hidden is listed, so the end of the name says it all.
        return lambda paths: [path for path in paths if path.endswith(suffixes)]
    keep = _fits_one(glob, place)
    return lambda paths: [path for path in paths if path.endswith(suffixes) and keep(path)]


def _fits_one(glob: PathGlob, place: SearchRoot) -> Keep:
    cut = len(os.fsencode(place.below))
    from_root = cut > 2 and glob.first is not None and place.start.split("/")[1] == glob.first
    matches = glob.regex.fullmatch
    negated = glob.negated
    decode = os.fsdecode

    def fits(path: bytes) -> bool:
        found = matches(decode(path[cut:])) is not None
        # Many write such a pattern from the project root, whatever `path` says.
        if not found and from_root:
            found = matches(decode(path[2:])) is not None
        return found is not negated

    return fits


def _noting(fits: Sieve, directories: set[bytes]) -> Sieve:
    def sieve(paths: list[bytes]) -> list[bytes]:
        directories.update([path[: path.rfind(b"/") + 1] for path in paths])
        return fits(paths)

    return sieve


def _result(listing: Listing, offset: int, *, limited: bool, complete: bool) -> JsonObject:
    files: list[JsonValue] = [shown(path) for path in listing.inside.paths()[offset:]]
    result: JsonObject = {"files": files, "count": len(files), "truncated": False}
    if limited and not listing.omit_outside:
        result["outside_cage"] = [shown(path) for path in listing.outside.paths()]
    result["truncated"] = listing.inside.more or listing.outside.more or not complete
    if complete:
        # A number that may be too small is not called a total.
        result["total"] = listing.inside.total
        if listing.inside.more:
            result["next_offset"] = offset + len(files)
    else:
        result["timed_out"] = True
    return result
