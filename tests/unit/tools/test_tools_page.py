from __future__ import annotations

from pathlib import Path

from kaged.toolset.tools_reference import builtin_definitions, render

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tools.md"


def test_the_reference_page_shows_the_tools_as_they_are() -> None:
    made = render(builtin_definitions())
    assert made in PAGE.read_text(encoding="utf-8"), (
        "run `python -m kaged.toolset.tools_reference docs/reference/tools.md`"
    )
