"""`AstSettings`: the limits of structural search and rewriting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AstSettings:
    """What the operator may set.

    `time_s` is how long one call may take, `output_bytes` how much of its matches is returned,
    serialized. `max_matches` ends a search early, `max_changes` a rewrite. `file_bytes` is the
    largest file that is parsed. With `omit_outside` hits outside a caller's cage are left out
    instead of shown as path and line.
    """

    time_s: float = 60.0
    output_bytes: int = 256 * 1024
    max_matches: int = 5_000
    max_changes: int = 50_000
    file_bytes: int = 5 * 1024 * 1024
    omit_outside: bool = False
