"""What `make mutate` breaks and what it leaves alone."""

from __future__ import annotations

import ast
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from requirements.rows import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from mutating.affinity import SOURCE, Affinity, function_at, words
from mutating.choosing import Chooser, _spread, naming
from mutating.measuring import Measured
from mutating.mutations import Mutation, mutations_of


def broken(text: str) -> set[str]:
    """Return the lines that breaks make of a function with this body."""
    body = "\n".join(f"    {line}" for line in text.splitlines())
    source = f"def f(a, b, self):\n{body}\n".encode()
    made = [one.applied(source).decode() for one in mutations_of(source)]
    for one in made:
        ast.parse(one)  # a break is a fault of the program, never of its grammar
    return {"\n".join(one.splitlines()[1:]).replace("    ", "", 1) for one in made}


@pytest.mark.parametrize(
    ("line", "one"),
    [
        ("x = a == b", "x = (a != b)"),
        ("x = a < b", "x = (a >= b)"),
        ("x = a < b", "x = (a <= b)"),
        ("x = a is None", "x = (a is not None)"),
        ("x = a in b", "x = (a not in b)"),
        ("x = a and b", "x = (a or b)"),
        ("x = not a", "x = (a)"),
        ("x = True", "x = False"),
        ("x = a[0]", "x = a[1]"),
        ("x = a['key']", "x = a['key_x']"),
        ("a.run(b)", "pass"),
        ("self.x = b", "pass"),
        ("raise ValueError(a)", "pass"),
        ("return a", "return None"),
    ],
)
def test_a_line_is_broken_in_the_ways_that_programs_are_wrong(line: str, one: str) -> None:
    assert one in broken(line)


@pytest.mark.parametrize(
    "line",
    [
        '"""What it does: return True."""',
        "_log.info('thing.done', count=1)",
        "x = f'{a} is not {b == 1}'",
        "x = g(timeout_s=5)",
        "assert a is not None",
        "x: Literal['a', 'b']",
        "x = cast('Thing', a)",
        "return None",
        "return ()",
        "x = 'a sentence for people'",
        "a.close()",
        "x = 4096",
    ],
)
def test_words_for_people_types_and_sizes_are_left_alone(line: str) -> None:
    assert broken(line) == set()


def test_tables_and_declarations_are_left_alone() -> None:
    source = b"""
LIMIT = 3
TABLE = {"a": True}
class Port(Protocol):
    def ask(self): return 1
class Real:
    x: int = 3
    @overload
    def f(self): return 1
    def __repr__(self): return "a"
"""
    assert mutations_of(source) == []


def test_a_break_says_which_line_it_is_in() -> None:
    source = b"def f(a):\n    if a and (\n        a.b\n        or a.c\n    ):\n        return 1\n"
    assert {one.line for one in mutations_of(source)} == {2, 6}


def test_a_statement_that_speaks_of_the_row_is_preferred() -> None:
    affinity = Affinity()
    affinity._functions = 100
    interest = affinity.interest("The daemon refuses a second quota rule.", [])
    about = affinity.score("tools/quotas.py", 1, "if quota.rule > limit: refuse()", interest)
    assert about > affinity.score("tools/quotas.py", 1, "path = folder / name", interest)
    assert words("refusedCalls of_quotas") == words("refuse call quota")


@pytest.mark.parametrize("row", ["An empty inject is not wrapped.", "What to retain is kept."])
def test_of_two_constants_in_a_line_the_one_is_chosen_that_the_row_speaks_of(row: str) -> None:
    affinity = Affinity()
    affinity._functions = 100
    chooser = Chooser(Measured(), affinity)
    interest = affinity.interest(row, [])
    line = next(
        one.line
        for one in mutations_of((SOURCE / "plugins/observers.py").read_bytes())
        if one.before == '"inject"'
    )
    for seed in range(5):
        found = chooser._chosen("plugins/observers.py", line, interest, random.Random(seed))
        assert found.before.strip('"') in row


def test_tests_that_have_a_rare_word_of_the_break_are_near() -> None:
    here = str(Path(__file__).relative_to(ROOT))
    mine = f"{here}::test_tests_that_have_a_rare_word_of_the_break_are_near"
    other = f"{here}::test_a_break_says_which_line_it_is_in[case]"
    for before, near in (
        ('"kaged_a_long_word"', True),
        ('self.post("kaged_a_long_word", data)', True),
        ("await tell(Kind.SOMETHING_HAPPENED)", True),  # spelled something.happened
        (f'"kaged_{"absent"}_word"', False),
        ('"near"', False),  # too short to say anything
        ("self.post(data)", False),
    ):
        found = naming([mine, other], Mutation(1, "drop", 0, 0, before, ""), 1)
        assert (found == [mine]) is near, before
        assert near or not found
    assert naming([mine], Mutation(1, "drop", 0, 0, '"kaged_a_long_word"', ""), 0) == []


def test_few_lines_are_drawn_from_one_function() -> None:
    scored = [(9.0 - line / 100, "plugins/observers.py", line) for line in range(1, 60)]
    drawn = Counter(function_at(file, line) for _, file, line in _spread(scored))
    assert set(drawn.values()) == {2}
    assert len(drawn) > 2
