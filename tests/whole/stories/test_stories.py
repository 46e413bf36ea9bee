"""The stories of the documentation, each run as it is written, through commands only."""

from __future__ import annotations

from pathlib import Path

import pytest

from whole.harness.pages import ROOT, run_page

STORIES = ROOT / "docs" / "stories"
PAGES = sorted(path.name for path in STORIES.glob("*.md") if path.name != "README.md")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES)
def test_the_story_ends_as_it_is_told(name: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # cages have users of their own
    run_page(STORIES / name, tmp_path)


def test_every_story_is_listed() -> None:
    listed = (STORIES / "README.md").read_text(encoding="utf-8")
    assert [name for name in PAGES if f"]({name})" not in listed] == []
