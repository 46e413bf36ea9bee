"""The one table of error codes has every code that is raised, and no other."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from kaged.base import KagedError
from kaged.base.error_codes import ERROR_CODES, status_of
from raising import raises_code

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "reference" / "error-codes.md"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """Return the script that makes the page."""
    script = ROOT / "scripts" / "error_reference.py"
    spec = importlib.util.spec_from_file_location("error_reference", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def raised(reference: ModuleType) -> dict[str, set[str]]:
    """Return the codes that the source raises, with the packages that do."""
    found: dict[str, set[str]] = reference.raised(ROOT / "src" / "kaged")
    return found


def test_every_code_that_is_raised_is_in_the_table(raised: dict[str, set[str]]) -> None:
    missing = {code: where for code, where in raised.items() if code not in ERROR_CODES}
    assert not missing, "add these to kaged.base.error_codes"


def test_every_code_of_the_table_is_raised(raised: dict[str, set[str]]) -> None:
    assert set(ERROR_CODES) - set(raised) == set(), "take these out of kaged.base.error_codes"


def test_statuses_are_those_of_errors_and_every_code_says_what_it_means() -> None:
    for code, (status, meaning) in ERROR_CODES.items():
        assert 400 <= status <= 599, code
        assert re.fullmatch(r"[A-Z][^|]+\.", meaning), code


def test_a_code_nobody_entered_is_a_500() -> None:
    assert status_of("made_up") == 500


def test_codes_are_found_in_classes_and_where_errors_are_made(
    reference: ModuleType, tmp_path: Path
) -> None:
    package = tmp_path / "some"
    package.mkdir()
    (package / "errors.py").write_text(
        'class Lost(KagedError):\n    code = "lost"\n'
        'class Gone(Lost):\n    code: ClassVar[str] = "gone"\n'
        'class Other:\n    code = "none_of_ours"\n'
        'raise Gone("x", code="gone_twice" if x else "gone_once")\n'
        'Other(code="neither")\n'
    )
    found = set(reference.raised(tmp_path)) - set(reference.EDGE_ONLY)
    assert found == {"lost", "gone", "gone_twice", "gone_once"}


def test_an_error_made_with_a_code_has_that_and_its_class_another() -> None:
    class Lost(KagedError):
        code = "lost"

    with raises_code("gone", Lost, match="x") as caught:
        raise Lost("x", code="gone", fix="look", where="here")
    assert (caught.value.data, caught.value.fix) == ({"where": "here"}, "look")
    assert Lost("x").code == Lost.code == "lost"


def test_the_made_part_of_the_page_is_fresh(
    reference: ModuleType, raised: dict[str, set[str]]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(reference.BEGIN) == text.count(reference.END) == 1
    assert reference.render(raised) in text, "run `make docs`"


def test_the_codes_of_the_written_part_exist() -> None:
    written = PAGE.read_text(encoding="utf-8").split("## Codes of the wire")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([^`]+)`", written, re.MULTILINE)) <= set(ERROR_CODES)
