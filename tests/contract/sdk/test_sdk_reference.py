"""The reference page of the SDKs and their code say the same, in both directions."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import kaged.sdk

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "plugin-sdk.md"
JS = ROOT / "sdk" / "js" / "src"
# Constants have no section: the page is about what can be called or caught.
WITHOUT_SECTION = {"API_VERSION"}
MODULES = (
    "", ".testing", ".bridge", ".http_request", ".http_client", ".front_end", ".context",
    ".storage", ".log",
)  # fmt: skip


@pytest.fixture(scope="module")
def drawn() -> ModuleType:
    """Return the script that draws the page."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module("sdk_reference")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def sections(text: str) -> list[str]:
    """Return the names that have a section of their own."""
    return re.findall(r"^### `(\w+)`$", text, re.MULTILINE)


def test_drawing_the_page_again_changes_nothing(drawn: ModuleType) -> None:
    assert drawn.render() == PAGE.read_text(encoding="utf-8"), "run `make docs`"


def test_another_version_of_the_code_would_be_noticed(
    drawn: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(ROOT / "src" / "kaged" / "sdk", tmp_path / "sdk"))
    log = copy / "log.py"
    log.write_text(log.read_text("utf-8").replace("def warning(", "def caution("), "utf-8")
    python = tuple((log if one.name == "log.py" else one, names) for one, names in drawn.PYTHON)
    monkeypatch.setattr(drawn, "PYTHON", python)
    assert drawn.render() != PAGE.read_text(encoding="utf-8")


def test_each_public_name_of_the_python_sdk_has_a_section() -> None:
    found = set(sections(PAGE.read_text(encoding="utf-8")))
    assert set(kaged.sdk.__all__) - WITHOUT_SECTION <= found
    for name in ("testing", "bridge", "http_request", "http_client", "front_end"):
        module = importlib.import_module(f"kaged.sdk.{name}")
        own = [one for one in vars(module).values() if isinstance(one, type | FunctionType)]
        here = {one.__name__ for one in own if one.__module__ == module.__name__}
        public = {one for one in here if not one.startswith("_")}
        assert public, name
        assert public <= found, name


def test_each_section_is_about_something_that_can_be_imported() -> None:
    modules = [importlib.import_module(f"kaged.sdk{name}") for name in MODULES]
    names = sections(PAGE.read_text(encoding="utf-8"))
    assert len(names) == len(set(names))
    for name in names:
        assert any(hasattr(module, name) for module in modules), name


def test_each_name_that_the_types_promise_is_exported_and_the_other_way_round() -> None:
    types = (JS / "index.d.ts").read_text(encoding="utf-8")
    promised = set(re.findall(r"^export (?:const|function|class) (\w+)", types, re.MULTILINE))
    code = (JS / "index.js").read_text(encoding="utf-8")
    exported = set(re.findall(r"^export (?:const|function|class) (\w+)", code, re.MULTILINE))
    for group in re.findall(r"^export \{([^}]*)\}", code, re.MULTILINE):
        words = [one.split(" as ")[-1].strip() for one in group.split(",")]
        exported |= {one for one in words if one}
    assert promised == exported
