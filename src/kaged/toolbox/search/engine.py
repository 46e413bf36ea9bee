"""`SearchEngine`: what the search tools ask of an engine, and the values they talk in.

ripgrep in a child process is one engine; a binding in the daemon's own process could be another.
Neither the parameters of the tools nor their results would change.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.search.records import Keep, RawCount, RawHit, Sieve


class OutsideHits(StrEnum):
    """What becomes of hits outside a caller's cage: shown as path and line, or left out."""

    MARK = "mark"
    OMIT = "omit"


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What the operator may set.

    `time_s` is how long one search may take; `output_bytes` how much of its matches is returned,
    serialized. `max_hits` ends a search for lines early: whatever comes after that many could not
    be returned anyway. `glob_files` is the length of a file list. With `OutsideHits.OMIT` a caller
    in a cage cannot find out by patterns what is in files it may not read.
    """

    time_s: float = 60.0
    output_bytes: int = 256 * 1024
    max_hits: int = 5_000
    glob_files: int = 100
    outside: OutsideHits = OutsideHits.MARK


class GrepMode(StrEnum):
    """What is asked for: the lines, the files, or how many lines of which file."""

    CONTENT = "content"
    FILES = "files_with_matches"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Scope:
    """Where to look: below `root`, from these `./` paths, honouring ignore files or not.

    `names` are patterns of base names, of which one has to fit; `without` are such patterns of
    which none may fit. `depth` limits how many components below a path are looked at. `kind` is a
    type of files that the engine knows, such as `py`; there are no `names` beside it.
    """

    root: str
    paths: tuple[str, ...] = ("./",)
    hidden: bool = True
    gitignore: bool = True
    names: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    depth: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class GrepQuery:
    """One search of contents. `keep` is asked for each path before anything counts.

    With `multiline` a match may go on over lines, and `.` is any character.
    """

    scope: Scope
    pattern: str
    mode: GrepMode
    max_hits: int
    time_s: float
    literal: bool = False
    keep: Keep | None = None
    multiline: bool = False


@dataclass(frozen=True, slots=True)
class GrepOutcome:
    """What a search found, in no particular order.

    `hits` for lines, `counts` for the other modes. `total` counts everything found; it is a lower
    bound when `capped` or `timed_out`. `dropped`: there are entries that are not in `counts`.
    """

    hits: list[RawHit]
    counts: list[RawCount]
    total: int
    capped: bool = False
    timed_out: bool = False
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class ListOutcome:
    """Paths of regular files, in no particular order; not all of them when not `complete`."""

    paths: list[bytes]
    complete: bool


class SearchEngine(Protocol):
    """Finds text in files, and files."""

    async def grep(self, query: GrepQuery) -> GrepOutcome:
        """Search contents. Raises InvalidPattern when the engine cannot read the expression."""
        ...

    async def files(
        self, scope: Scope, time_s: float, sieve: Sieve | None = None, *, links: bool = False
    ) -> ListOutcome:
        """List files; with `links` also links to files, but then never below a linked directory."""
        ...
