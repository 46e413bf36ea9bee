"""The page of protected paths: `rewrite` makes its two tables anew from the kernel's list."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from kaged.kernel.protected_list import PROTECTED, PathClass

_TABLE = re.compile(r"(<!-- (\w+): made from the code -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def rewrite(page: Path) -> None:
    """Write the made parts of the page."""
    page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")


def rewritten(text: str) -> str:
    """Return the page with its tables as the code has them."""
    return _TABLE.sub(lambda found: f"{found[1]}{_table(PathClass(found[2]))}{found[3]}", text)


def _table(kind: PathClass) -> str:
    entries = [one for one in PROTECTED if one.kind is kind]
    rows = ["| Paths | Why |", "|---|---|"]
    for why, group in groupby(entries, key=lambda one: one.why):
        rows.append(f"| {', '.join(f'`{one.pattern}`' for one in group)} | {why} |")
    return "\n".join(rows) + "\n"
