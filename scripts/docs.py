"""Write the made parts of docs/reference anew, from the code: `make docs`.

Tests compare the pages with the code in both directions, so that neither can go without the other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import error_reference
import log_events
import protected_reference
import sdk_reference

import kaged.lua.reference
from kaged import __version__
from kaged.audit.reference import render_reference
from kaged.config.reference import rewrite_pages
from kaged.toolset import tools_reference

DOCS = Path(__file__).resolve().parent.parent / "docs"
VERSION_LINE = re.compile(r"^These pages describe kaged .*$", re.MULTILINE)


def main() -> int:
    """Rewrite every page; prints which of them changed."""
    pages = DOCS / "reference"
    with _telling(pages):
        rewrite_pages(pages)
        kaged.lua.reference.rewrite(pages)
        tools_reference.rewrite(pages / "tools.md")
        error_reference.rewrite(pages / "error-codes.md", DOCS.parent / "src" / "kaged")
        (pages / "audit-events.md").write_text(render_reference(), encoding="utf-8")
        sdk_reference.rewrite(pages / "plugin-sdk.md")
        log_events.rewrite(pages / "log-events.md", DOCS.parent / "src" / "kaged")
        protected_reference.rewrite(pages / "protected-paths.md")
        start = DOCS / "README.md"
        text = start.read_text(encoding="utf-8")
        line = f"These pages describe kaged {__version__}."
        start.write_text(VERSION_LINE.sub(line, text), encoding="utf-8")
    return 0


@contextmanager
def _telling(pages: Path) -> Generator[None]:
    watched = [DOCS / "README.md", *sorted(pages.iterdir())]
    before = {page: page.read_bytes() for page in watched}
    yield
    for page in watched:
        word = "as it was" if page.read_bytes() == before[page] else "rewritten"
        print(f"docs: {page.relative_to(DOCS)}: {word}")


if __name__ == "__main__":
    sys.exit(main())
