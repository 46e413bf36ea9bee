"""Scripts that loop, eat memory or are killed: each harms only itself, in a running daemon."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, current, ended, exchange, send
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts

LOOPS = {
    "plain": "while true do end",
    "in_pcall": "while true do pcall(function() while true do end end) end",
    "in_handler": "xpcall(error, function() while true do end end)",
    "in_coroutine": "coroutine.wrap(function() while true do end end)()",
    "in_pattern": "return ('a'):rep(300000):find(('a-'):rep(60) .. 'b')",
}
BOMBS = {
    "texts": "local t = {} while true do t[#t + 1] = ('x'):rep(1000000) .. #t end",
    "doubling": "local s = 'x' while true do s = s .. s end",
    "depth": "local function f() return pcall(f) end f()",
}
ALIVE = (
    "kage.register_command{name='alive-%s', description='', handler=function() return 'yes' end}"
)
OTHER = """kage.on('turn_end', function() heard = true end)
kage.register_command{name='heard', description='', handler=function() return tostring(heard) end}
"""


def comes_back(scripts: Scripts, name: str) -> None:
    """See that a script runs again and does what its command says."""
    wait_for(lambda: scripts.state(name)["state"] == "running", name)
    assert scripts.run(f"alive-{name}")["text"] == "yes"


@whole("LC-AMB-24", "LC-AMB-13")
def test_endless_loops_end_and_the_turn_other_scripts_and_the_session_go_on(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.grant(mover=["session_write"])
    loops = {
        name: f"kage.on('turn_end', function() {code} end)\n" + ALIVE % name
        for name, code in LOOPS.items()
    }
    scripts.load(
        **loops,
        veto="kage.on('session_before_switch', function() while true do end end)",
        other=OTHER,
        mover="kage.request_capabilities({'session_write'})\n"
        "kage.register_command{name='fork-to', description='',"
        " handler=function() kage.session.fork_to() end}",
    )
    session = exchange(project, model, "skink-loops")  # the turn finishes
    wait_for(lambda: scripts.run("heard")["text"] == "true")
    for name in LOOPS:
        comes_back(scripts, name)
    notices = scripts.notices()
    for name in LOOPS:
        assert any(name in one or "budget" in one for one in notices), (name, notices)
    said = scripts.run("fork-to")
    assert any("session_before_switch" in str(one["message"]) for one in said["notices"]), said
    assert current(project) == session


@whole("LC-AMB-24")
def test_memory_bombs_harm_only_their_own_script(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    bombs = {
        name: f"kage.register_command{{name='boom-{name}', description='',"
        f" handler=function() {code} end}}\n" + ALIVE % name
        for name, code in BOMBS.items()
    }
    scripts.load(**bombs, other=OTHER)
    for name in BOMBS:
        scripts.run(f"boom-{name}")
        assert scripts.run("heard")["text"] == "nil"
    exchange(project, model, "gecko-bombs")
    wait_for(lambda: scripts.run("heard")["text"] == "true")
    for name in BOMBS:
        comes_back(scripts, name)


@whole("LC-AMB-24")
def test_a_killed_worker_is_reported_its_move_dropped_and_it_asks_for_its_powers_again(
    daemon: Daemon, scripts: Scripts, project: Project, model: ModelServer
) -> None:
    project.describe(cage={"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]})
    project.reload()
    scripts.grant(victim=["session_write"])
    shown = scripts.load(
        victim="kage.request_capabilities({'session_write'})\n"
        "kage.register_command{name='go', description='',"
        " handler=function() kage.session.fork_to() end}\n" + ALIVE % "victim",
        other=OTHER,
    )
    assert shown["victim"]["pid"] != shown["other"]["pid"]
    session = begin(project)
    waits = "while [ ! -e gate ]; do sleep 0.02; done"
    model.play("goanna-killed", call("shell.bash", command=waits), say("Done."))
    run = send(project, session, "goanna-killed")
    wait_for(lambda: project.get(f"/sessions/{session}")["active_run"])
    scripts.run("go")
    assert project.get(f"/sessions/{session}")["pending"]
    os.kill(int(shown["victim"]["pid"]), signal.SIGKILL)
    wait_for(lambda: any("victim" in one for one in scripts.notices()))
    assert project.get(f"/sessions/{session}")["pending"] == []
    project.write("gate", "")
    assert ended(project, session, run)["status"] == "completed"
    wait_for(lambda: scripts.run("heard")["text"] == "true")
    comes_back(scripts, "victim")
    assert scripts.state("victim")["pid"] != shown["victim"]["pid"]
    assert scripts.state("victim")["restarts"] == 1
    granted = scripts.audit("lua.capability.granted")
    assert [one["plugin"] for one in granted] == ["victim", "victim"], "it asked again"
    assert current(project) == session
    assert daemon.get("/status")["pid"] == daemon.pid


@whole("LC-AMB-13", "LC-AMB-24")
def test_a_guard_whose_worker_dies_while_it_is_asked_has_said_no(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.grant(mover=["session_write"])
    shown = scripts.load(
        guard="kage.on('session_before_switch', function() kage.ui.confirm('Move?', 'really') end)",
        mover="kage.request_capabilities({'session_write'})\n"
        "kage.register_command{name='fork-to', description='',"
        " handler=function() kage.session.fork_to() end}",
    )
    session = exchange(project, model, "lizard-guard")
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(lambda: scripts.run("fork-to", interactive=True))
        wait_for(lambda: project.get("/lua/dialogs?wait_s=5")["dialogs"])
        os.kill(int(shown["guard"]["pid"]), signal.SIGKILL)
        said = going.result(60)
    assert current(project) == session
    assert len(project.get("/sessions")["items"]) == 1
    assert any("session_before_switch" in str(one["message"]) for one in said["notices"]), said
    wait_for(lambda: scripts.state("guard")["state"] == "running")
    # Alive again and asked, it lets the move happen.
    scripts.answered(lambda: scripts.run("fork-to", interactive=True), True)
    assert current(project) != session


@whole("LC-AMB-13", "LC-AMB-24")
def test_a_guard_that_died_goes_on_saying_no_until_it_is_back(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.grant(mover=["session_write"])
    only_once = "if kage.store.get('seen') then error('once') end kage.store.set('seen', true)\n"
    guard = "kage.on('session_before_switch', function() end)\n"
    mover = (
        "kage.request_capabilities({'session_write'})\n"
        "kage.register_command{name='fork-to', description='',"
        " handler=function() kage.session.fork_to() end}"
    )
    shown = scripts.load(guard=only_once + guard, mover=mover)
    session = exchange(project, model, "iguana-guard")
    os.kill(int(shown["guard"]["pid"]), signal.SIGKILL)
    wait_for(lambda: scripts.state("guard")["state"] == "failed")
    said = scripts.run("fork-to")
    assert any("guard is down" in str(one["message"]) for one in said["notices"]), said
    assert current(project) == session
    # The operator takes it away, or mends it: then it does not hold up anything any more.
    scripts.load(guard=guard, mover=mover)
    scripts.run("fork-to")
    assert current(project) != session


@pytest.mark.parametrize("name", ["one", "two"])
def test_no_worker_outlives_its_project(
    daemon: Daemon, scripts: Scripts, tmp_path: Path, name: str
) -> None:
    other = daemon.load(Project(tmp_path / name))
    mine = Scripts(daemon, other)
    pid = int(mine.load(probe=ALIVE % "probe")["probe"]["pid"])
    assert Path(f"/proc/{pid}").exists()
    mine.close()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    assert scripts.describe()["scripts"] == []
