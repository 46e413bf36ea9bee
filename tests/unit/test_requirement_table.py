"""The requirement table checks itself: a broken ledger or mark must fail the run."""

from __future__ import annotations

import re

import pytest

from requirements.plugin import Outcomes, tree_fingerprint
from requirements.rows import (
    ROOT,
    Ledger,
    Row,
    check_ledger,
    known_ids,
    load_ledger,
    load_rows,
)
from sharing import SOURCES, TOGETHER, WHOLE, shares

ROWS = [Row("PH-WIRE-01", "must", "plugin-host"), Row("PH-WIRE-02", "may", "plugin-host")]


def ledger(**parts: object) -> Ledger:
    return Ledger(
        proven=frozenset(parts.get("proven", ())),  # pyright: ignore[reportArgumentType] - literals
        planned=parts.get("planned", {}),  # pyright: ignore[reportArgumentType] - literals
        declined=parts.get("declined", {}),  # pyright: ignore[reportArgumentType] - literals
    )


def test_every_row_of_the_documents_is_accounted_for() -> None:
    rows = load_rows()
    assert len(rows) > 1500
    assert {row.id for row in rows} == known_ids()
    assert check_ledger(rows, load_ledger()) == []


def test_a_row_without_a_status_is_a_problem() -> None:
    assert check_ledger(ROWS, ledger(proven=["PH-WIRE-01"])) == [
        "PH-WIRE-02: neither proven, planned nor declined"
    ]


def test_an_area_entry_covers_its_rows() -> None:
    assert check_ledger(ROWS, ledger(planned={"PH-WIRE": "later"})) == []


@pytest.mark.parametrize(
    "parts",
    [
        {"proven": ["PH-NOPE-01"], "planned": {"PH-WIRE": "later"}},
        {"planned": {"PH-WIRE": "later", "PH-NOPE": "later"}},
        {"planned": {"PH-WIRE": "later"}, "declined": {"PH-NOPE-01": "no"}},
        {"planned": {"PH-WIRE": " "}},
        {"proven": ["PH-WIRE-01", "PH-WIRE-02"], "declined": {"PH-WIRE-01": "no"}},
    ],
)
def test_unknown_reasonless_and_contradicting_entries_are_problems(
    parts: dict[str, object],
) -> None:
    assert len(check_ledger(ROWS, ledger(**parts))) == 1


def test_a_declined_row_keeps_its_own_reason() -> None:
    book = ledger(planned={"PH-WIRE": "later"}, declined={"PH-WIRE-01": "not for us"})
    assert book.reason(ROWS[0]) == ("declined", "not for us")
    assert book.reason(ROWS[1]) == ("planned", "later")


def _report(node: str, when: str, outcome: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=node,
        location=(node, 0, node),
        keywords={},
        outcome=outcome,  # pyright: ignore[reportArgumentType] - plain words of the test
        longrepr=None,
        when=when,  # pyright: ignore[reportArgumentType] - plain words of the test
        user_properties=[("requirement", "PH-WIRE-01"), ("requirement-level", "unit")],
    )


def test_a_test_that_fails_in_teardown_proves_nothing() -> None:
    outcomes = Outcomes()
    for when, outcome in (("setup", "passed"), ("call", "passed"), ("teardown", "failed")):
        outcomes.add(_report("t::a", when, outcome))
    for when in ("setup", "call", "teardown"):
        outcomes.add(_report("t::b", when, "passed"))
    outcomes.add(_report("t::c", "setup", "skipped"))
    assert outcomes.as_json(full=True)["tests"] == [
        {"node": "t::a", "ids": ["PH-WIRE-01"], "levels": ["unit"], "passed": False},
        {"node": "t::b", "ids": ["PH-WIRE-01"], "levels": ["unit"], "passed": True},
        {"node": "t::c", "ids": ["PH-WIRE-01"], "levels": ["unit"], "passed": False},
    ]
    assert outcomes.skipped == ["t::c"]


def test_every_module_whose_tests_stay_together_is_there_and_has_a_dear_fixture() -> None:
    for path in TOGETHER:
        assert re.search(r'scope="(module|session)"', (ROOT / path).read_text(encoding="utf-8"))
    assert all((ROOT / folder).is_dir() for folder in (WHOLE, SOURCES))
    for path in (
        "tests/integration/packaging/test_wheel.py",  # has a module's fixture
        "tests/security/projects/test_widening.py",  # has it from its folder
        "tests/security/cage/test_escapes.py",  # keeps what it found out
    ):
        assert shares(path), path
    assert not shares("tests/unit/base/test_ids.py")


def test_the_fingerprint_is_stable() -> None:
    assert tree_fingerprint() == tree_fingerprint()
