"""What a person learns of a project: no folder of the machine, nothing that its files ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, say
from whole.harness.people import Guest
from whole.harness.project import Project
from whole.harness.talk import fresh

Come = Callable[..., Guest]


def _routes(daemon: Daemon) -> list[str]:
    document = daemon.client.get("/api/v1/openapi.json").json()
    return sorted(path for path, ways in document["paths"].items() if "get" in ways)


def test_no_route_and_no_list_of_mcp_shows_people_where_a_project_lies(
    daemon: Daemon, project: Project, model: ModelServer, guest: Come
) -> None:
    """Every GET that is open to them, of a project that has a session of theirs."""
    word = fresh("tour")
    model.play(word, say("Done."))
    ann = guest("ann")
    place = f"/projects/{project.id}"
    session = str(ann.post(f"{place}/sessions", {"title": word})["id"])
    with ann.listening("?after=0") as heard:
        run = ann.post(f"{place}/sessions/{session}/message", {"text": f"{word} please"})["run_id"]
        events = heard.until(lambda event: event["name"] == "run.completed")
    told = {"events": json.dumps(events)}
    for method in ("tools/list", "resources/list", "prompts/list"):
        told[method] = json.dumps(ann.mcp(project.id, method, {}))
    filled = {"project_id": project.id, "session_id": session, "run_id": run}
    for path in _routes(daemon):
        named = re.sub(r"\{(\w+)\}", lambda found: filled.get(found[1], "x1"), path)
        got = ann.raw("GET", named)
        if got.status_code not in {403, 404, 405, 406}:
            told[path] = got.text
    explained = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
    told["explain"] = json.dumps(ann.post(f"{place}/tools/explain", explained))
    assert len(told) > 25
    for path, text in told.items():
        assert str(project.root) not in text, path
    assert daemon.get(place)["root"] == str(project.root)


def test_people_see_a_projects_agents_and_neither_settings_nor_what_it_asks_for(
    daemon: Daemon, project: Project, guest: Come
) -> None:
    word = fresh("order")
    project.describe(system_prompt=f"{word}.")
    # It asks for more than was agreed to: the operator is told so, and nobody else.
    daemon.post(f"/projects/{project.id}/reload", {})
    ann = guest("ann")
    shown = ann.get(f"/projects/{project.id}")
    assert shown["tree"] == {
        "name": project.root.name,
        "agents": [{"path": "primary", "description": "", "children": []}],
    }
    assert (shown["root"], shown["ask"], shown["problems"]) == (None, None, [])
    listed = [one for one in ann.get("/projects")["items"] if one["id"] == project.id]
    assert [(one["root"], one["problems"]) for one in listed] == [(None, [])]
    assert word not in json.dumps([shown, listed])
    assert word in json.dumps(daemon.get(f"/projects/{project.id}")["ask"])
    assert ann.refused("PUT", f"/projects/{project.id}/trust", {"trusted": True}) == (
        403,
        "operator_only",
    )
    assert ann.get("/inbox")["items"] == []
