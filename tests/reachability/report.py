"""What is not reached, gathered once for the tests and for `make reachability`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from reachability.callers import uncalled, uncalled_protocol_methods
from reachability.declared import (
    NOT_SEEN,
    REASON,
    Declared,
    declared,
    is_seen_whole,
    not_seen_yet,
    unused,
)
from reachability.programs import NOT_WIRED, PACKAGES, reached_of, source_tree

HEAD = """\
# Declared names that no whole test shows: kind and name, below the reason (`## …`) why not.
# The list may only become shorter: `make reachability UPDATE=1` takes out what is shown by now.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is not reached."""

    uncalled: tuple[str, ...]
    protocol_methods: tuple[str, ...]
    unused: tuple[Declared, ...]
    not_seen: tuple[Declared, ...]
    all: tuple[Declared, ...]


@cache
def report() -> Report:
    """Look at the source, the declarations and the whole tests."""
    tree = source_tree()
    reached = reached_of(tree)
    names = tuple(declared())
    return Report(
        tuple(one.key for one in uncalled(tree, reached, PACKAGES)),
        tuple(one.key for one in uncalled_protocol_methods(tree, reached)),
        tuple(unused(iter(names), reached)),
        tuple(one for one in names if not is_seen_whole(one)),
        names,
    )


def lines(found: Report) -> Iterator[str]:
    """Yield the report, line by line."""
    seen = Counter(one.kind for one in found.all)
    missing = Counter(one.kind for one in found.not_seen)
    idle = Counter(one.kind for one in found.unused)
    yield f"{'declared':<18}{'names':>8}{'unused':>8}{'shown whole':>14}"
    for kind in sorted(seen):
        yield f"{kind:<18}{seen[kind]:>8}{idle[kind]:>8}{seen[kind] - missing[kind]:>14}"
    yield ""
    for title, keys in (
        ("public, and called by tests only", found.uncalled),
        ("methods of Protocols that only fakes call", found.protocol_methods),
        ("declared, and neither produced nor read", tuple(map(str, found.unused))),
    ):
        yield f"{title}: {len(keys)}"
        yield from (
            f"  {key}{f' (known: {NOT_WIRED[key]})' if key in NOT_WIRED else ''}" for key in keys
        )
    yield f"not shown by a whole test: {len(found.not_seen)} (listed in {NOT_SEEN.name})"


def shrink(found: Report) -> list[str]:
    """Take out of the kept list what whole tests show now; returns what still must be shown."""
    missing = {str(one) for one in found.not_seen}
    kept = {name: why for name, why in not_seen_yet().items() if name in missing}
    groups = {why: sorted(name for name in kept if kept[name] == why) for why in kept.values()}
    parts = ["\n".join([f"{REASON}{why}", *names]) for why, names in groups.items()]
    NOT_SEEN.write_text(HEAD + "".join(f"\n{part}\n" for part in parts), encoding="utf-8")
    return sorted(missing - set(kept))
