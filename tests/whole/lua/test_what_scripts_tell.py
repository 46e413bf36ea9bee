"""What scripts tell people: in a run, in the chat, and in the list of scripts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts

TELLS = """
kage.on('transform_context', function(messages) kage.notify('I saw ' .. #messages) end)
kage.register_command{name='hail', description='', handler=function() kage.notify('hailed') end}
"""
GIVES_UP = """
local caps = kage.request_capabilities({'exec'})
if not caps.exec then return end
kage.register_command{name='build', description='', handler=function() end}
"""
PARTLY = """
kage.request_capabilities({'exec', 'env'})
kage.register_command{name='part', description='', handler=function() end}
"""


WAIT = "for n in $(seq 600); do [ -e go ] && break; sleep 0.1; done"


def test_a_notice_of_an_event_is_shown_in_run_and_chat_once(
    daemon: Daemon, scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.load(tells=TELLS)
    model.play("narwhal", say("Done."))
    shown = daemon.cli("run", "narwhal one", cwd=project.root)
    assert (shown.out + shown.err).count("[tells] I saw ") == 1
    model.play("beluga", say("Done."))
    lines = daemon.cli("run", "--json", "beluga two", cwd=project.root).out.splitlines()
    events = [json.loads(line) for line in lines]
    assert [one["message"] for one in events if one.get("event") == "lua.notice"] == ["I saw 1"]
    model.play("orca", say("Done."))
    typed = "/hail\norca three\n/quit\n"
    chat = daemon.cli("chat", cwd=project.root, stdin=typed)
    assert (chat.out + chat.err).count("[tells] hailed") == 1
    assert (chat.out + chat.err).count("[tells] I saw ") == 1


def test_another_projects_notices_are_not_shown(
    daemon: Daemon, scripts: Scripts, project: Project, model: ModelServer
) -> None:
    # The same folder of scripts serves both; each notice belongs to the project of its run.
    place = "kage.notify(kage.config().cwd:match('[^/]+$') .. ' ' .. #messages)"
    scripts.load(tells=f"kage.on('transform_context', function(messages) {place} end)")
    other = daemon.load(Project(project.root.parent / "other"))
    model.play("walrus", call("shell.bash", command=WAIT), say("Done."))
    model.play("seal-lion", say("Done."))

    def meanwhile() -> None:
        """Let the first project's script speak while the other project's run is under way."""
        wait_for(lambda: model.asked("walrus"))
        assert say_to(project, begin(project), "seal-lion")["status"] == "completed"
        other.write("go", "")

    with ThreadPoolExecutor(1) as pool:
        spoken = pool.submit(meanwhile)
        shown = daemon.cli("run", "walrus", cwd=other.root)
        spoken.result()
    assert f"{project.root.name} 1" in scripts.notices()
    lines = [one for one in (shown.out + shown.err).splitlines() if "[tells]" in one]
    assert [one.split("] ")[-1] for one in lines] == ["other 1", "other 3"]
    daemon.ask("DELETE", f"/projects/{other.id}")


def test_what_a_script_says_while_it_loads_is_shown_with_the_next_run_once(
    daemon: Daemon, scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.load(early="kage.notify('loaded, with a wish')")
    for number, count in enumerate((1, 0)):
        model.play(f"puffin {number}", say("Done."))
        shown = daemon.cli("run", f"puffin {number}", cwd=project.root)
        assert (shown.out + shown.err).count("[early] loaded, with a wish") == count
    scripts.reload()
    model.play("puffin chat", say("Done."))
    chat = daemon.cli("chat", cwd=project.root, stdin="puffin chat\n/quit\n")
    assert (chat.out + chat.err).count("[early] loaded, with a wish") == 1


def test_the_list_says_which_powers_a_script_went_without(
    daemon: Daemon, scripts: Scripts, project: Project
) -> None:
    found = scripts.load(idle=GIVES_UP, part=PARTLY)
    assert (found["idle"]["state"], found["idle"]["refused"]) == ("running", ["exec"])
    shown = daemon.cli("lua", "list", cwd=project.root)
    told = " ".join((shown.out + shown.err).split())
    assert "idle: asks for exec, which is not granted and does nothing without it" in told
    assert "part: asks for" in told
    assert 'idle = ["exec"]' in told
    scripts.grant(idle=["exec"], part=["exec", "env"])
    again = scripts.reload()
    assert again["idle"]["refused"] == again["part"]["refused"] == []
    assert "not granted" not in daemon.cli("lua", "list", cwd=project.root).err
