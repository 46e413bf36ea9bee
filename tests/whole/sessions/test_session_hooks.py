"""What plugins are told of a session in a running daemon, and that none of them can stop it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh

START, IDLE, PRE, POST = HOOKS = (
    "on_session_start",
    "on_session_idle",
    "pre_compact",
    "post_compact",
)
KID = "primary.subagents.kid"


def stub(daemon: Daemon, root: Path, name: str, start: list[dict[str, Any]]) -> str:
    """Run a plugin that answers the start of a session so, and every other hook with nothing."""
    on = {f"kaged.hook.{hook}": [{"result": None}] for hook in HOOKS}
    on[f"kaged.hook.{START}"] = start
    behaviour = {"on": on}
    folder = PluginFolder(
        daemon, root / name, behaviour, name=name, hooks=list(HOOKS), methods=["a.b"]
    )
    assert folder.run()["state"] == "running"
    return name


def fired(daemon: Daemon, hook: str) -> list[tuple[str, str]]:
    """Return which plugin was told of a hook for which agent."""
    rows = daemon.audit("plugin.hook.fired")
    return [
        (one["data"]["name"], one["data"]["agent_path"])
        for one in rows
        if one["data"]["hook"] == hook
    ]


@whole("AT-SESS-17")
def test_plugins_of_the_root_hear_of_the_session_and_those_of_each_agent_of_its_compaction(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own(config="[sessions]\nidle_seconds = 1\n")
    daemon.start()
    good = stub(daemon, tmp_path, "good", [{"result": {"inject": "I remember."}}])
    bad = stub(daemon, tmp_path, "bad", [{"error": [-32000, "never"]}])
    dead = stub(daemon, tmp_path, "dead", [{"exit": 3}])
    below = stub(daemon, tmp_path, "below", [{"result": {"inject": "Not from below."}}])
    project = Project(tmp_path / "p")
    project.describe(
        plugins={name: {"package": f"@kaged/{name}"} for name in (good, bad, dead)},
        subagents={
            "kid": {
                "model": "default",
                "system_prompt": "You play.",
                "cage": "disabled",
                "plugins": {below: {"package": f"@kaged/{below}"}},
            }
        },
    )
    daemon.load(project)
    wait_for(lambda: project.get("")["readiness"]["state"] == "open")
    talk = Talk(project, model)
    first = talk.hear(say("Hello."))
    assert first["status"] == "completed", first
    prompt = str(asked(model, first["word"])[0]["messages"][0]["content"])
    assert "<plugin:good>" in prompt
    assert "I remember." in prompt
    assert "</plugin:good>" in prompt
    assert "Not from below." not in prompt
    # Told once for the session, of which two could not answer, and the session goes on.
    for _ in range(4):
        talk.hear(say("Fine. " + "x" * 400), word=fresh("filler" + "y" * 400))
    for _ in range(4):
        run = talk.hear(say("Fun. " + "x" * 400), word=fresh("toy" + "y" * 400), agent=KID)
        assert run["status"] == "completed", run
        assert "plugin:" not in str(asked(model, run["word"])[0]["messages"][0])
    assert sorted(fired(daemon, START)) == [(name, "primary") for name in (bad, dead, good)]
    failed = daemon.audit("plugin.hook.failed")
    assert {bad, dead} == {one["data"]["name"] for one in failed}
    talk.post("/compact", {"agent": "primary"})
    talk.post("/compact", {"agent": KID})
    for hook in (PRE, POST):
        told = wait_for(lambda hook=hook: [one for one in fired(daemon, hook) if one[0] == below])
        assert told == [(below, KID)], hook
        mine = [one for one in fired(daemon, hook) if one[0] == good]
        assert mine == [(good, "primary")], hook
    before = len(fired(daemon, IDLE))
    talk.hear(say("And now silence."))
    wait_for(lambda: (good, "primary") in fired(daemon, IDLE)[before:])
    assert below not in {name for name, _ in fired(daemon, IDLE)}
    after = talk.hear(say("Still here."))
    assert after["status"] == "completed"
    exactly(3, lambda: fired(daemon, START))
