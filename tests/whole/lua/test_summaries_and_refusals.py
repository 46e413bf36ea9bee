"""A script that writes a session's summary; what it may not hear or do, on record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from whole.harness.conversation import begin, entries, exchange
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command
from whole.harness.talk import fresh

SUMMARIZES = """
kage.on('compact_prepare', function(plan)
  plan.summary = 'a summary by the script'
  return plan
end)
"""
HEARS = """
seen = {}
kage.on('user', function(event) seen[#seen + 1] = event.text end)
kage.on('agent_end', function() seen[#seen + 1] = 'end' end)
kage.register_command{name='seen', description='', handler=function()
  return {structured = {list = seen}} end}
"""


def test_a_script_writes_the_summary_and_a_window_that_cannot_shrink_is_flagged(
    scripts: Scripts, daemon: Daemon, project: Project, model: ModelServer
) -> None:
    project.describe(compaction={"strategy": "summarize", "threshold": 500})
    project.reload()
    project.write("a.txt", "one two three\n" * 200)
    scripts.load(writer=SUMMARIZES)
    session = begin(project)
    for _ in range(3):
        turns = [call("file.read", path="a.txt"), say("Read.")]
        exchange(project, model, fresh("wren"), *turns, session=session)
    project.post(f"/sessions/{session}/compact", {})
    made = [one for one in entries(project, session) if one["kind"] == "compaction"]
    assert "by the script" in str(made[-1]), made
    empty = begin(project)
    exchange(project, model, fresh("wren"), session=empty)
    project.post(f"/sessions/{empty}/compact", {})
    rows = wait_for(lambda: daemon.audit("compaction.flagged", project_id=project.id))
    assert rows[-1]["data"]["session_id"] == empty
    assert rows[-1]["data"]["flag"] == "nothing_to_compact"


def test_a_place_outside_the_project_is_refused_and_on_record(scripts: Scripts) -> None:
    scripts.load(probe=command("eval", "return kage.fs.read('../outside.txt')"))
    for _ in range(2):
        assert scripts.run("eval")["is_error"]
    rows = exactly(2, lambda: scripts.audit("lua.request.refused"))
    assert [one["plugin"] for one in rows] == ["probe"] * 2
    assert rows[0]["request"].startswith("kage.fs.")


def test_a_strict_host_gives_words_only_to_scripts_that_may_read_them(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own(
        config='[lua]\nstrict_context = true\n[plugins.capabilities]\nreads = ["context"]\n'
    )
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    scripts = Scripts(daemon, project)
    named = {name: HEARS.replace("'seen',", f"'{name}',") for name in ("reads", "blind")}
    scripts.load(**named)
    exchange(project, model, fresh("robin"))

    def heard(name: str) -> list[str]:
        found = scripts.value(name)["list"]
        return list(found) if isinstance(found, list) else []

    wait_for(lambda: "end" in heard("reads") and "end" in heard("blind"), "the end of the run")
    assert "robin" in str(heard("reads"))
    assert heard("blind") == ["end"]


def test_a_script_that_is_not_there_draws_nothing(scripts: Scripts, daemon: Daemon) -> None:
    scripts.load(head="kage.ui.set_header(function(width) return {'wide ' .. width} end)")
    path = f"/projects/{scripts.project.id}/lua/front"
    ask = {"script": "head", "entry": "render", "params": {"what": "header", "width": 80}}
    assert "wide 80" in str(daemon.post(path, ask))
    error = daemon.error("POST", path, {**ask, "script": "absent"})
    assert (error["status"], error["code"]) == (409, "lua_script_down")
