"""The page and the stub are as the code draws them."""

from __future__ import annotations

from pathlib import Path

from kaged.lua.events import CONTEXT_EVENTS, EVENTS
from kaged.lua.reference import render_page, render_stub

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"


def test_the_page_is_fresh() -> None:
    page = (REFERENCE / "kage.md").read_text(encoding="utf-8")
    assert page == render_page(), "run python -m kaged.lua.reference"


def test_the_stub_is_fresh() -> None:
    stub = (REFERENCE / "kage.lua").read_text(encoding="utf-8")
    assert stub == render_stub(), "run python -m kaged.lua.reference"


def test_every_event_with_text_is_an_event() -> None:
    assert not CONTEXT_EVENTS - EVENTS.keys()
