"""Log events are dotted, stable keys, and `docs/reference/log-events.md` describes each of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "kaged"
PAGE = ROOT / "docs" / "reference" / "log-events.md"


@pytest.fixture(scope="module")
def log_events() -> ModuleType:
    """Return the script that makes the page."""
    spec = importlib.util.spec_from_file_location("log_events", ROOT / "scripts" / "log_events.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_log_event_is_a_dotted_key(log_events: ModuleType) -> None:
    prose = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, call, _ in log_events.log_calls(SOURCE)
        if log_events.key_of(call) is None
    ]
    assert prose == []


def test_the_page_lists_exactly_the_events_of_the_code(log_events: ModuleType) -> None:
    """Run `make docs` when this fails, then say in the page what a new event means."""
    page = PAGE.read_text(encoding="utf-8")
    assert log_events.rewritten(page, SOURCE) == page


def test_every_event_is_described(log_events: ModuleType) -> None:
    described = log_events.meanings(PAGE.read_text(encoding="utf-8"))
    assert set(described) == set(log_events.logged_events(SOURCE))
    assert [key for key, meaning in described.items() if not meaning.strip()] == []
