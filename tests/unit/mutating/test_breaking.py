"""Who is asked about a break, in which order, and whose failure counts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from requirements.rows import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from mutating import breaking, copies
from mutating.affinity import Affinity
from mutating.breaking import Job, Stage, break_row, make_job
from mutating.choosing import Chooser, Target, nearness
from mutating.copies import Copy
from mutating.measuring import Measured
from mutating.measuring import Test as MeasuredTest
from mutating.mutations import Mutation
from mutating.running import Done

SOURCE = b"def f(a):\n    return a\n"
BREAK = Mutation(2, "return", 14, 22, "return a", "return None")
UNIT, SLOW, FAR = "tests/unit/a.py::test_u", "tests/integration/b.py::test_s", "tests/unit/c.py::f"
WHOLE, OTHER = "tests/whole/w.py::test_w", "tests/unit/a.py::test_other"

Answer = Callable[[bool, list[str]], tuple[int | None, str]]


def test_whoever_runs_the_line_is_asked_first_and_whole_tests_last() -> None:
    lines = {"x.py": [2]}
    tests = {
        SLOW: MeasuredTest(passed=True, seconds=3, lines={}),
        FAR: MeasuredTest(passed=True, seconds=0.1, lines={"x.py": [9]}),
        UNIT: MeasuredTest(passed=True, seconds=0.2, lines=lines),
        OTHER: MeasuredTest(passed=True, seconds=0.2, lines=lines),
    }
    measured = Measured(tests, {"tests/integration/b.py": lines})
    chooser = Chooser(measured, Affinity())
    proofs = dict.fromkeys([*tests, WHOLE])
    own = [SLOW, FAR, UNIT]
    made = make_job("A-B-01", Target("x.py", BREAK), own, [WHOLE], proofs, chooser, measured)
    assert [(one.nodes, one.known) for one in made.own] == [
        ([UNIT], True),
        ([SLOW], True),
        ([FAR], True),
        ([WHOLE], False),
    ]
    assert made.others().nodes == [OTHER]


def test_who_was_seen_to_run_the_line_for_another_row_is_asked_and_all_cases_of_who_imports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, late = "tests/unit/seen.py::test_s", "tests/whole/seen.py::test_s"
    cases = [f"tests/unit/near.py::test_n[{n}]" for n in range(3)]
    many = [f"tests/unit/near.py::test_many[{n}]" for n in range(breaking.REST + 1)]
    apart = ["tests/unit/apart.py::test_n[0]", "tests/unit/apart.py::test_n[1]"]
    ranks = {"tests/unit/near.py": 0, "tests/unit/apart.py": 2}
    monkeypatch.setattr(breaking, "runners", lambda *_: {late: 9.0, seen: 0.1, UNIT: 0.1})
    monkeypatch.setattr(breaking, "nearness", lambda module, *_: ranks.get(module))
    monkeypatch.setattr(breaking, "naming", lambda *_: [])
    measured = Measured({UNIT: MeasuredTest(passed=True, seconds=0.2, lines={"x.py": [2]})})
    proofs = dict.fromkeys([UNIT, *apart, *cases, *many, seen, late])
    chooser = Chooser(measured, Affinity())
    made = make_job("A-B-01", Target("x.py", BREAK), [UNIT], [], proofs, chooser, measured)
    assert made.others().nodes == [seen, late, *cases, many[-1], apart[-1]]


def test_a_whole_test_is_near_to_a_module_whose_word_it_has_in_its_name() -> None:
    near, far = "tests/whole/walls/test_protected_paths.py", "tests/whole/walls/test_shells.py"
    assert nearness(near, "workspace/protected_writes.py", []) == 5
    assert nearness(far, "workspace/protected_writes.py", []) is None


def test_what_is_named_after_a_module_is_nearer_than_the_rest_of_its_package() -> None:
    modules = ("tools/test_tool_dispatch.py", "tools/test_tool_trail.py", "store/test_prepared.py")
    found = [nearness(f"tests/unit/{one}", "tools/dispatch.py", []) for one in modules]
    assert found == [1, 2, None]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a way to try one break with tests that answer as told."""
    copy = Copy(tmp_path)
    copy.source.mkdir(parents=True)
    (copy.source / "x.py").write_bytes(SOURCE)

    def tried(answer: Answer, whole: Sequence[str] = (WHOLE,)) -> str:
        own = [Stage([UNIT], 1.0), Stage(list(whole), 1.0, known=False)]
        job = Job("A-B-01", "x.py", BREAK, "x.py:2", own, lambda: Stage([OTHER], 1.0))

        def run(_: Copy, nodes: Sequence[str], *, limit_s: float, options: list[str]) -> Done:
            broken = (copy.source / "x.py").read_bytes() != SOURCE
            code, output = answer(broken, list(nodes))
            return Done(code, output, limit_s)

        monkeypatch.setattr(breaking, "run", run)
        said = break_row([job], copy)
        assert (copy.source / "x.py").read_bytes() == SOURCE
        return said.verdict

    return tried


def test_a_case_whose_name_looks_like_a_reason_is_found(ask: Callable[..., str]) -> None:
    odd = f"{WHOLE}[labels - {{'a'}}]"

    def answer(broken: bool, asked: list[str]) -> tuple[int, str]:
        if broken and odd in asked:
            return 1, f"FAILED {odd} - no\n"
        return (0 if {UNIT, WHOLE, odd} >= set(asked) else 4), ""  # there is no other test

    assert ask(answer, [WHOLE, odd]) == "noticed"


def failing(*nodes: str, unbroken: bool) -> Answer:
    def answer(broken: bool, asked: list[str]) -> tuple[int, str]:
        bad = [one for one in asked if one in nodes and (broken or unbroken)]
        return (1, f"FAILED {bad[0]} - why\n") if bad else (0, "")

    return answer


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (failing(UNIT, unbroken=False), "noticed"),
        (failing(WHOLE, unbroken=False), "noticed"),
        # It fails without the break as well, so it says nothing about it.
        (failing(WHOLE, unbroken=True), "survived"),
        (failing(unbroken=False), "survived"),
        # Noticed by others only.
        (failing(OTHER, unbroken=False), "survived"),
        # pytest did not begin, which is the break's doing or is not.
        (lambda broken, _: (4 if broken else 0, ""), "noticed"),
        (lambda _, asked: (4 if asked == [UNIT] else 0, ""), "survived"),
        # Too long, though in time without the break; and too long on a busy machine, either way.
        (lambda broken, _: (None if broken else 0, ""), "noticed"),
    ],
)
def test_a_failure_counts_when_it_is_the_breaks(
    ask: Callable[..., str], answer: Answer, verdict: str
) -> None:
    assert ask(answer) == verdict


def test_a_busy_machine_is_not_a_notice(ask: Callable[..., str]) -> None:
    slow = iter([None, None])  # broken, then unbroken; given more time the broken one passes
    assert ask(lambda _broken, _asked: (next(slow, 0), "")) == "survived"


def test_no_two_writes_of_a_module_have_the_same_time(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    path = tmp_path / "x.py"
    times: list[int] = []
    for content in (b"a = 1", b"a = 2", b"a = 1"):
        copy.write(path, content)
        assert path.read_bytes() == content
        times.append(int(path.stat().st_mtime))
    assert len(set(times)) == 3


def test_libraries_are_real_files_in_the_copy_unless_they_are_big(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "BIG", 10)
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    for name, text in (("small/deep/a.py", "a = 1"), ("big/a.bin", "0" * 11), ("one.py", "1")):
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text(text, encoding="utf-8")
    for entry in old.iterdir():
        copies._bring(entry, new / entry.name)
    assert (new / "big").is_symlink()
    assert (new / "big/a.bin").read_text(encoding="utf-8") == "0" * 11
    for name in ("small/deep/a.py", "one.py"):
        assert (new / name).resolve() == new / name, "a cage that sees this folder sees the file"
        assert (new / name).read_bytes() == (old / name).read_bytes()


def test_an_environment_changes_with_what_is_installed(tmp_path: Path) -> None:
    packages = tmp_path / copies.PACKAGES
    (packages / "lib-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    before = copies._state_of(tmp_path)
    (packages / "__pycache__").mkdir()
    assert copies._state_of(tmp_path) == before
    (packages / "lib-1.0.dist-info").rename(packages / "lib-1.1.dist-info")
    assert copies._state_of(tmp_path) != before
