#!/usr/bin/env python3
"""Print what is declared or written and not reached: `make reachability`.

UPDATE=1 takes names that whole tests show now out of `tests/reachability/not-seen-whole.txt`; that
list may only become shorter. Exit code 1 when `tests/unit/reachability` would fail.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from reachability.declared import not_seen_yet
from reachability.programs import NOT_WIRED
from reachability.report import lines, report, shrink


def main() -> int:
    """Print the report; shrink the list if asked to."""
    found = report()
    for line in lines(found):
        print(line)
    if "--update" in sys.argv[1:]:
        for name in shrink(found):
            print(f"neither shown by a whole test nor listed: {name}")
    listed = set(not_seen_yet())
    good = (
        set(found.uncalled) == set(NOT_WIRED)
        and not found.protocol_methods
        and not found.unused
        and {str(one) for one in found.not_seen} == listed
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
