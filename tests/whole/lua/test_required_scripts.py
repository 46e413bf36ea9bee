"""`[lua] required`: a script that must see what goes to the model, whatever becomes of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from whole.harness.conversation import begin, current, exchange, say_to
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts

SCRUB = """
kage.on('transform_context', function(messages)
  for _, message in ipairs(messages) do
    for _, block in ipairs(message.content) do
      if block.type == 'text' then block.text = block.text:gsub('sk%%-%%w+', '[key]') end
      %s
    end
  end
  return messages
end)
kage.register_command{name='busy', description='', handler=function()
  kage.ui.confirm('Go on?', 'really')
end}
"""
SOUND = SCRUB % ""
RAISES = SCRUB % "error('no such table')"
LOOPS = SCRUB % "while true do end"
ONCE = (
    f"if kage.store.get('seen') then error('only once') end kage.store.set('seen', true)\n{SOUND}"
)
MOVER = """kage.request_capabilities({'session_write'})
kage.register_command{name='fork-to', description='', handler=function() kage.session.fork_to() end}
"""


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose operator requires a script."""
    config = '[lua]\nrequired = ["scrub"]\n'
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def refused(project: Project, model: ModelServer) -> Callable[[str], dict[str, Any]]:
    """Return who sends a message that must not reach the model; returns the run's error."""

    def send(word: str) -> dict[str, Any]:
        model.play(word, say("It was asked."))
        run = say_to(project, begin(project), f"{word} my key is sk-0123456789")
        assert model.asked(word) == [], "nothing of it has left"
        assert (run["status"], run["error"]["code"]) == ("failed", "transform_refused"), run
        assert "scrub" in run["error"]["message"]
        return dict(run["error"])

    return send


def test_what_a_required_script_cannot_see_does_not_reach_the_model(
    scripts: Scripts, project: Project, model: ModelServer, refused: Callable[[str], dict[str, Any]]
) -> None:
    # There is none of that name.
    scripts.load(other=SOUND)
    assert "not running" in refused("koel-absent")["message"]
    # It does not load, raises, or goes on for ever.
    scripts.load(scrub="error('broken')")
    refused("koel-broken")
    scripts.load(scrub=RAISES)
    assert "no such table" in refused("koel-raises")["message"]
    scripts.load(scrub=LOOPS)
    refused("koel-loops")
    # It is right again, and everything goes on.
    scripts.load(scrub=SOUND)
    session = exchange(project, model, "koel-sound")
    model.play("koel-later", say("Yes."))
    run = say_to(project, session, "koel-later my key is sk-0123456789")
    assert run["status"] == "completed", run
    (asked,) = model.asked("koel-later")
    assert "[key]" in str(asked)
    assert "sk-0123456789" not in str(asked)
    # Another script that fails is passed over, as without the setting.
    scripts.load(scrub=SOUND, other=RAISES)
    exchange(project, model, "koel-other", session=session)


def test_a_required_script_that_is_busy_holds_the_model_back(
    scripts: Scripts, project: Project, refused: Callable[[str], dict[str, Any]]
) -> None:
    scripts.load(scrub=SOUND)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(lambda: scripts.run("busy", interactive=True))
        (dialog,) = wait_for(lambda: project.get("/lua/dialogs?wait_s=5")["dialogs"])
        assert "took longer" in refused("drongo-busy")["message"]
        project.post(f"/lua/dialogs/{dialog['id']}", {"answer": True})
        going.result(60)


def test_while_a_required_script_is_down_no_model_is_asked_and_no_session_moves(
    scripts: Scripts, project: Project, model: ModelServer, refused: Callable[[str], dict[str, Any]]
) -> None:
    scripts.grant(mover=["session_write"])
    shown = scripts.load(scrub=ONCE, mover=MOVER)
    exchange(project, model, "shrike-first")
    os.kill(int(shown["scrub"]["pid"]), signal.SIGKILL)
    wait_for(lambda: scripts.state("scrub")["state"] == "failed")  # it loads only once
    refused("shrike-down")
    before = current(project)
    said = scripts.run("fork-to")
    assert any("scrub is not running" in str(one["message"]) for one in said["notices"]), said
    assert current(project) == before
