"""`docs/reference/protected-paths.md` has the kernel's list, and denies nothing that is on it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kaged.kernel.protected_paths import find_protected

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "protected-paths.md"


@pytest.fixture(scope="module")
def protected_reference() -> ModuleType:
    """Return the script that makes the page."""
    path = ROOT / "scripts" / "protected_reference.py"
    spec = importlib.util.spec_from_file_location("protected_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_list_of_the_code(protected_reference: ModuleType) -> None:
    """Run `make docs` when this fails."""
    page = PAGE.read_text(encoding="utf-8")
    assert protected_reference.rewritten(page) == page
    assert "| `.cargo/config`, `.cargo/config.toml`," in page


def test_what_the_page_says_is_not_on_the_list_is_not() -> None:
    _, _, last = PAGE.read_text(encoding="utf-8").partition("## Not on the list")
    firsts = [row.split("|")[1] for row in last.splitlines() if row.startswith("|")]
    named = [one for cell in firsts for one in re.findall(r"`([^`]+)`", cell)]
    assert len(named) > 20
    assert [one for one in named if find_protected(one.replace("*", "x").split("/"))] == []
