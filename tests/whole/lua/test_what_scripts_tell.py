"""What scripts tell people: in a run, in the chat, and in the list of scripts."""

from __future__ import annotations

import json

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, say
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
    scripts.load(tells="kage.on('transform_context', function() kage.notify('nearby') end)")
    other = daemon.load(Project(project.root.parent / "other"))
    model.play("walrus", say("Done."))
    # The same folder of scripts serves both; each notice belongs to the project of its run.
    shown = daemon.cli("run", "walrus", cwd=other.root)
    assert (shown.out + shown.err).count("[tells] nearby") == 1
    daemon.ask("DELETE", f"/projects/{other.id}")


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
