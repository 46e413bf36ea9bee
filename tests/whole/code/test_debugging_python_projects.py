"""Python projects under the real debugpy: their own environment, modules, tests by their id."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged, path_of, rows_of
from whole.harness.code import Debugger
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.project import Project

WHO = {"no cage": "primary", "default": path_of("coder")}
PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
TESTS = """import sys

import pytest
from only_here import WORD


def test_one():
    assert WORD == "from the environment"


@pytest.mark.parametrize("number", [1, 2])
def test_two(number):
    doubled = number * 2
    assert doubled == number + number
"""
SPY = """#!/bin/sh
echo ran >> {mark}
exec /usr/bin/python3 "$@"
"""


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with patience for a busy machine."""
    config = "[dap]\nwait_seconds = 60\n"
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def program(project: Project) -> Project:
    """Return a project with an agent without a cage and one that may read the project."""
    coder = agent("debug", cage=caged("ro:.", capabilities=["exec"]))
    project.describe(cage="disabled", subagents={"coder": coder})
    project.reload()
    project.write("tests/test_words.py", TESTS)
    project.write("main.py", "import sys\nprint(sys.prefix)\n")
    return project


def environment(project: Project, name: str = ".venv", *, runner: bool = True) -> Path:
    """Make the project an environment with a package that only it has, and pytest."""
    place = project.root / name
    subprocess.run(
        ["/usr/bin/python3", "-m", "venv", "--without-pip", str(place)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    [packages] = place.glob("lib/python3*/site-packages")
    (packages / "only_here.py").write_text('WORD = "from the environment"\n', encoding="utf-8")
    for one in PYTEST if runner else ():
        found = importlib.util.find_spec(one)
        assert found is not None, one
        assert found.origin is not None, one
        if found.submodule_search_locations is None:
            shutil.copy(found.origin, packages)
        else:
            shutil.copytree(Path(found.origin).parent, packages / one)
    for one in ("pytest", "pluggy") if runner else ():
        around = Path(str(importlib.metadata.distribution(one).locate_file("")))
        [about] = around.glob(f"{one}-[0-9]*.dist-info")
        shutil.copytree(about, packages / about.name)
    return place


@whole("AT-DAP-11", "AT-DAP-17", "AT-DAP-21", "AT-DAP-22")
@pytest.mark.parametrize("cage", WHO)
def test_a_test_is_debugged_by_its_id_in_the_projects_own_environment(
    program: Project, cage: str
) -> None:
    place = environment(program)
    it = Debugger(program, WHO[cage])
    test = "./tests/test_words.py::test_two[2]"
    begun = it.do("launch", runtime="python", script=test, args=["-q"])
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    assert begun["python"] == ".venv/bin/python"
    assert "note" not in begun
    # The first stop is in the project's code, past the runner's own.
    at = begun["location"]
    assert (at["path"], at["line"]) == ("./tests/test_words.py", 1)
    made = it.do("set_breakpoint", path="./tests/test_words.py", line=14)
    assert made["verified"] is True
    hit = it.do("continue")
    assert (hit["stopped_reason"], hit["location"]["line"]) == ("breakpoint", 14)
    assert {"name": "doubled", "value": "4", "type": "int"} in it.do("variables")["variables"]
    assert it.do("evaluate", expression="WORD")["result"] == "'from the environment'"
    assert it.do("evaluate", expression="sys.prefix")["result"] == f"'{place}'"
    ended = it.do("continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 0)
    assert "1 passed" in ended["output"]
    it.do("disconnect")
    row = rows_of(program, "debug.session_started")[-1]
    assert row["data"]["script"] == test

    # A whole file as arguments of the module, and one test of it fails.
    program.write("tests/test_words.py", TESTS.replace("number + number", "3"))
    given: dict[str, Any] = {"module": "pytest", "args": ["-q", "tests/test_words.py"]}
    it.do("launch", runtime="python", **given)
    whole_file = it.do("continue")
    assert (whole_file["status"], whole_file["exit_code"]) == ("exited", 1)
    assert "2 failed, 1 passed" in whole_file["output"]
    it.do("disconnect")
    assert rows_of(program, "debug.session_started")[-1]["data"]["script"] == "-m pytest"

    # What says all it has to say, and has no line of the project to stop in, is no failure.
    said = it.do("launch", runtime="python", module="pytest", args=["--version"])
    assert (said["status"], said["exit_code"]) == ("exited", 0)
    assert "pytest" in said["output"]
    it.do("disconnect")

    # What the runner refuses before anything is to be stopped in, it says so.
    wrong = it.refusal("launch", runtime="python", module="pytest", args=["--no-such-option"])
    assert wrong["code"] == "dap_request_failed"
    assert "--no-such-option" in wrong["message"]
    assert wrong["data"]["fix"].startswith("mend what it says")

    # Of a test that is not there the runner says so.
    it.do("launch", runtime="python", script="./tests/test_words.py::test_none")
    missing = it.do("continue")
    assert (missing["status"], missing["exit_code"]) == ("exited", 4)
    assert "not found" in missing["output"]
    assert "test_words.py::test_none" in missing["output"]
    it.do("disconnect")


@whole("AT-DAP-11", "AT-DAP-17", "AT-DAP-27")
@pytest.mark.parametrize("cage", WHO)
def test_what_is_not_installed_is_told_in_the_programs_words(program: Project, cage: str) -> None:
    environment(program, "venv", runner=False)
    it = Debugger(program, WHO[cage])
    for given in ({"module": "pytest"}, {"script": "./tests/test_words.py::test_one"}):
        refused = it.refusal("launch", runtime="python", **given)
        assert refused["code"] == "dap_request_failed"
        assert "No module named pytest" in refused["message"]
        assert "venv/bin/python -m pip install" in refused["data"]["fix"]
        assert refused["data"]["detail"]["exit_code"] == 1
        assert it.refusal("threads")["code"] == "dap_session_ended"
    it.do("launch", runtime="python", module="pytest", stop_on_entry=False)
    ended = it.do("continue")
    assert ended["exit_code"] == 1
    it.do("disconnect")
    # What is left out of its environment runs all the same; so does a second project's script.
    begun = it.do("launch", runtime="python", script="./main.py")
    assert begun["python"] == "venv/bin/python"
    assert f"{program.root}/venv" in it.do("continue")["output"]
    it.do("disconnect")
    shutil.rmtree(program.root / "venv")
    begun = it.do("launch", runtime="python", script="./main.py")
    assert begun["python"].startswith("python3")
    assert "note" not in begun
    assert str(program.root) not in it.do("continue")["output"]
    it.do("disconnect")


@whole("AT-DAP-01", "AT-DAP-24")
def test_what_names_nothing_that_can_be_started_is_refused(program: Project) -> None:
    it = Debugger(program)
    test = "./tests/test_words.py"
    bad: list[dict[str, Any]] = [
        {},
        {"script": "./main.py", "module": "pytest"},
        {"module": "../main"},
        {"module": "a" * 300},
        {"module": "pytest; id"},
        {"script": f"{test}::"},
        {"script": f"{test}::a\nb"},
        {"script": f"{test}::{'a' * 3000}"},
        {"script": "../outside.py::test_one"},
        {"module": "pytest", "runtime": "node"},
    ]
    for given in bad:
        refused = it.refusal("launch", **{"runtime": "python", **given})
        assert refused["code"] == "invalid_params", given
    missing = it.refusal("launch", runtime="python", script="./tests/none.py::test_one")
    assert missing["code"] == "file_not_found"
    blind = agent("debug", cage=caged("ro:src", capabilities=["exec"]))
    program.write("src/x.py", "")
    program.describe(cage="disabled", subagents={"coder": blind})
    program.reload()
    outside = Debugger(program, path_of("coder"))
    for given in ({"script": f"{test}::test_one"}, {"script": "./main.py"}):
        refused = outside.refusal("launch", runtime="python", **given)
        assert refused["code"] == "capability_denied"


@whole("AT-DAP-16", "AT-DAP-17")
def test_a_python_that_a_guest_may_write_runs_in_no_place_but_its_cage(program: Project) -> None:
    place = environment(program, runner=False)
    python, mark = place / "bin" / "python", program.root / "ran"

    def with_cage(*mounts: str, **more: Any) -> None:
        coder = agent("debug", cage=caged(*mounts, capabilities=["exec"]), **more)
        program.describe(cage="disabled", subagents={"coder": coder})
        program.reload()

    def launched(who: str) -> dict[str, Any]:
        it = Debugger(program, WHO[who])
        begun = dict(it.do("launch", runtime="python", script="./main.py"))
        it.do("disconnect")
        return begun

    with_cage("rw:.")
    python.unlink()
    python.write_text(SPY.format(mark=mark), encoding="utf-8")
    python.chmod(0o755)
    outside = launched("no cage")
    assert outside["python"] != ".venv/bin/python"
    assert "an agent in a cage may write that environment" in outside["note"]
    assert not mark.exists(), "what a guest may have written ran outside its cage"
    inside = launched("default")
    assert inside["python"] == ".venv/bin/python"
    # In its own cage it may run what it likes; the debugger's own part runs elsewhere.
    assert mark.read_text(encoding="utf-8") == "ran\n"
    mark.unlink()
    # A part of it is enough, and so is that a person may be asked for it.
    for mounts, more in (
        (("ro:.", "rw:.venv/lib"), {}),
        (("ro:.",), {"on_denied": "ask"}),
    ):
        with_cage(*mounts, **more)
        assert "note" in launched("no cage"), mounts
        assert not mark.exists()
    with_cage("rw:.", "ro:.venv")
    assert launched("no cage")["python"] == ".venv/bin/python"
    assert mark.exists()
