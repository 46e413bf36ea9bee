"""Which tests of a row are measured, which are asked besides, and how long a verdict holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from requirements.rows import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from mutating import measuring
from mutating.copies import Copy
from mutating.measuring import MeasuringFailed, measure, runners
from mutating.running import Done
from mutating.trying import make_plan, state_of

UNIT = [f"tests/unit/a.py::test_u[{n}]" for n in range(3)]
SLOW = [f"tests/integration/b.py::test_s[{n}]" for n in range(3)]
WHOLE = ["tests/whole/w.py::test_w[a]", "tests/whole/w.py::test_w[b]", "tests/whole/w.py::test_v"]


@pytest.mark.parametrize(
    ("parts", "whole", "tests", "rest", "cost"),
    [
        (UNIT, WHOLE, UNIT, WHOLE, 0),
        # One case of each slow test is measured, and the others are asked when that says nothing.
        ([*UNIT, *SLOW], [], [*UNIT, SLOW[2]], SLOW[:2], 1),
        (SLOW, WHOLE, [SLOW[2]], [*SLOW[:2], *WHOLE], 1),
        # Whole tests are measured where there is nothing else.
        ([], WHOLE, [WHOLE[1], WHOLE[2]], [WHOLE[0]], 2),
    ],
)
def test_cheap_tests_are_measured_and_no_test_of_a_row_is_left_out(
    parts: list[str], whole: list[str], tests: list[str], rest: list[str], cost: int
) -> None:
    plan = make_plan("A-B-01", "It works.", 1, parts, whole)
    assert (plan.tests, plan.rest, plan.cost) == (tests, rest, cost)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small tree instead of this one, with nothing remembered."""
    for name in ("tests/unit/a.py", "tests/whole/w.py", "src/kaged/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one", encoding="utf-8")
    monkeypatch.setattr(measuring, "ROOT", tmp_path)
    monkeypatch.setattr(measuring, "MEMORY", tmp_path / "build" / "lines")
    measuring._hash.cache_clear()
    return tmp_path


@pytest.mark.parametrize("changed", ["tests/unit/a.py", "tests/whole/w.py", "src/kaged/x.py"])
def test_a_verdict_holds_until_a_test_of_the_row_or_the_broken_file_changes(
    tree: Path, changed: str
) -> None:
    plan = make_plan("A-B-01", "", 1, UNIT, WHOLE)
    before = state_of(plan, ["src/kaged/x.py"])
    assert state_of(plan, ["src/kaged/x.py"]) == before
    assert state_of(make_plan("A-B-01", "", 2, UNIT, WHOLE), ["src/kaged/x.py"]) != before
    (tree / changed).write_text("two", encoding="utf-8")
    measuring._hash.cache_clear()
    assert state_of(plan, ["src/kaged/x.py"]) != before


def test_what_was_measured_is_run_again_only_when_something_of_it_changed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy(tree)
    copy.switch.parent.mkdir(parents=True)
    (tree / "build").mkdir()
    runs: list[list[str]] = []

    def run(_: Copy, nodes: list[str], *, limit_s: float, env: dict[str, str]) -> Done:
        runs.append(list(nodes))
        one = {"passed": True, "seconds": 0.1, "lines": {"x.py": [len(runs)]}}
        told = dict.fromkeys(nodes, one)
        Path(env["KAGED_NOTE_LINES"]).write_text(json.dumps(told), encoding="utf-8")
        started = {"module": "tests/whole/w.py", "lines": {"x.py": [7]}}
        (tree / "build" / "started" / "1.json").write_text(json.dumps(started), encoding="utf-8")
        return Done(0, "", limit_s)

    monkeypatch.setattr(measuring, "run", run)
    asked = [UNIT[0], WHOLE[2]]
    first = measure("A-B-01", asked, [*UNIT, *WHOLE], copy)
    assert runs == [[*UNIT, WHOLE[2]]], "fast tests with their neighbours, whole ones alone"
    assert first.reaches(WHOLE[2], "x.py", 7)
    assert not first.reaches(UNIT[0], "x.py", 7)
    assert measure("A-B-01", asked, [*UNIT, *WHOLE], copy) == first
    assert len(runs) == 1
    # Another row has daemons of its own; the fast module is known.
    measure("A-B-02", asked, [*UNIT, *WHOLE], copy)
    assert runs[1:] == [[WHOLE[2]]]
    # Whoever was seen to run a line can be asked about it for any row.
    assert runners("x.py", 1) == {node: pytest.approx(0.1) for node in [*UNIT, WHOLE[2]]}
    assert runners("x.py", 7) == {WHOLE[2]: pytest.approx(0.1)}
    assert runners("x.py", 9) == runners("y.py", 1) == {}
    (tree / "src/kaged/x.py").write_text("two", encoding="utf-8")
    measuring._hash.cache_clear()
    assert runners("x.py", 1) == {}, "the line is another one now"
    measure("A-B-01", asked, [*UNIT, *WHOLE], copy)
    assert runs[2:] == [[*UNIT, WHOLE[2]]]


def test_tests_that_do_not_end_are_not_remembered(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy(tree)
    copy.switch.parent.mkdir(parents=True)
    (tree / "build").mkdir()
    monkeypatch.setattr(measuring, "run", lambda *_, **__: Done(None, "hangs", 1.0))
    with pytest.raises(MeasuringFailed, match="hangs"):
        measure("A-B-01", [WHOLE[2]], WHOLE, copy)
    assert not (tree / "build" / "lines").exists()
