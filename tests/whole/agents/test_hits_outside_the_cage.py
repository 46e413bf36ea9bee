"""What searches tell a caged agent of files that it may not read: where, and nothing more."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged, path_of
from whole.harness.daemon import Daemon
from whole.harness.project import Project

READER = path_of("reader")
CANARY = "canary4711"
USE = "usage(1)"


def filled(project: Project) -> Project:
    """Write ten usages outside the reader's cage and five inside, and a canary in each file."""
    for number in range(10):
        project.write(f"data/d{number}.py", f"# {CANARY} before\n{USE}  # {CANARY}\n")
    for number in range(5):
        project.write(f"src/s{number}.py", f"# own before\n{USE}  # own\n")
    (project.root / "src" / "link.py").symlink_to("../data/d0.py")
    reader = agent("search.*", "file.read", cage=caged("ro:./src"))
    project.describe(cage="disabled", subagents={"reader": reader})
    project.reload()
    return project


SEARCHES: dict[str, dict[str, Any]] = {
    "search.grep": {"pattern": "usage", "output_mode": "content"},
    "search.ast": {"pattern": "usage($A)", "lang": "python", "context": 1},
}


@whole("AT-FILT-01", "AT-FILT-02", "AT-FILT-03", "AT-FILT-06")
@pytest.mark.parametrize("tool", SEARCHES)
def test_outside_hits_are_counted_and_told_by_path_and_line_only(
    project: Project, tool: str
) -> None:
    filled(project)
    got = project.call(tool, READER, **SEARCHES[tool])
    outside = [one for one in got["matches"] if one.get("outside_cage")]
    inside = [one for one in got["matches"] if not one.get("outside_cage")]
    assert sorted(one["file"] for one in outside) == [f"./data/d{n}.py" for n in range(10)]
    assert sorted(one["file"] for one in inside) == [f"./src/s{n}.py" for n in range(5)]
    for one in outside:
        assert set(one) == {"file", "line", "outside_cage"}
        assert (one["line"], one["outside_cage"]) == (2, True)
    for one in inside:
        assert "own" in json.dumps(one)
    total = got["total_matches"] if "total_matches" in got else len(got["matches"])
    assert total == 15
    assert CANARY not in json.dumps(got)


@whole("AT-FILT-02", "AT-AMB-08", "AT-AMB-09", "AT-AMB-11")
@pytest.mark.parametrize(
    ("tool", "params"),
    [
        ("search.grep", {"pattern": CANARY}),
        ("search.grep", {"pattern": CANARY, "output_mode": "content"}),
        ("search.grep", {"pattern": CANARY, "output_mode": "count"}),
        ("search.grep", {"pattern": f"(?<=# ){CANARY}", "output_mode": "content"}),
        ("search.ast", {"pattern": "usage($A)", "lang": "python", "context": 5}),
        ("search.glob", {"pattern": "*.py"}),
    ],
)
def test_no_text_of_an_outside_file_is_in_any_answer(
    project: Project, tool: str, params: dict[str, Any]
) -> None:
    filled(project)
    got = project.call(tool, READER, **params)
    assert CANARY not in json.dumps(got)
    assert "./data/d1.py" in json.dumps(got)
    if tool == "search.glob":
        assert sorted(got["files"]) == [f"./src/s{n}.py" for n in range(5)]
        assert set(got["outside_cage"]) >= {f"./data/d{n}.py" for n in range(10)}
    else:
        marked = [one for one in got["matches"] if one.get("outside_cage")]
        assert {one["file"] for one in marked} == {f"./data/d{n}.py" for n in range(10)}


@whole("AT-FILT-04")
@pytest.mark.parametrize("tool", SEARCHES)
def test_nothing_is_marked_for_who_has_no_cage(project: Project, tool: str) -> None:
    filled(project)
    got = project.call(tool, **SEARCHES[tool])
    assert {one["file"] for one in got["matches"]} >= {f"./data/d{n}.py" for n in range(10)}
    assert [one for one in got["matches"] if one.get("outside_cage")] == []
    assert CANARY in json.dumps(got)
    assert not project.call("search.glob", pattern="*.py").get("outside_cage")
    own = project.call(tool, READER, **SEARCHES[tool])
    inside = [one for one in own["matches"] if one["file"].startswith("./src/")]
    assert [one for one in inside if one.get("outside_cage")] == []


@whole("AT-FILT-05")
def test_a_link_out_of_the_cage_is_outside_for_searches_and_reads_alike(project: Project) -> None:
    filled(project)
    assert project.fail("file.read", READER, path="src/link.py")["code"] == "capability_denied"
    for tool, params in SEARCHES.items():
        got = project.call(tool, READER, **params)
        found = [one for one in got["matches"] if one["file"] == "./src/link.py"]
        assert [one for one in found if not one.get("outside_cage")] == [], tool
        assert CANARY not in json.dumps(got)
    for tool, params in (
        ("search.grep", {"pattern": "usage", "path": "src/link.py"}),
        ("search.ast", {**SEARCHES["search.ast"], "paths": ["src/link.py"]}),
    ):
        assert project.fail(tool, READER, **params)["code"] == "capability_denied"


@whole("AT-FILT-08")
def test_an_operator_can_leave_outside_hits_out_altogether(own: Callable[..., Daemon]) -> None:
    daemon = own(config='[tools]\noutside_hits = "omit"\n')
    daemon.start()
    project = filled(daemon.load(Project(daemon.home.parent / "p")))
    for tool, params in SEARCHES.items():
        got = project.call(tool, READER, **params)
        assert sorted(one["file"] for one in got["matches"]) == [f"./src/s{n}.py" for n in range(5)]
        assert got.get("total_matches", 5) == 5
        assert "data" not in json.dumps(got)
    counted = project.call("search.grep", READER, pattern="usage", output_mode="count")
    assert counted["total_matches"] == 5
    nothing = project.call("search.grep", READER, pattern=CANARY)
    assert (nothing["matches"], nothing["total_matches"]) == ([], 0)
    assert len(project.call("search.grep", pattern=CANARY)["matches"]) >= 10
