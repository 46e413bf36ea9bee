"""`SearchSettings`: the limits of a search, and what callers in a cage learn about the rest."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
