"""What a listener to the event stream hears of sessions themselves."""

from __future__ import annotations

from typing import Any

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, say
from whole.harness.project import Project
from whole.harness.talk import Listener, Talk, listening


def heard(events: Listener, name: str, session: str) -> dict[str, Any]:
    """Wait for an event of a session; returns its data."""

    def right(one: dict[str, Any]) -> bool:
        return bool(one["name"] == name and one["data"]["session_id"] == session)

    found = [one for one in events.until(right) if right(one)]
    assert [one["topic"] for one in found] == [f"session:{session}"], name
    data: dict[str, Any] = found[0]["data"]
    return data


def test_every_change_of_a_session_is_told_once_on_its_topic(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    base = f"/projects/{project.id}/sessions"
    with listening(daemon, "session") as events:
        talk = Talk(project, model)
        created = heard(events, "session.created", talk.id)
        assert (created["project_id"], created["kind"]) == (project.id, "primary")
        talk.hear(say("Yes."))
        daemon.ask("PATCH", f"{base}/{talk.id}", {"title": "Owls"})
        assert heard(events, "session.titled", talk.id)["title"] == "Owls"
        fork = talk.post("/fork", {})["session"]["id"]
        assert heard(events, "session.forked", fork)["from"] == talk.id
        project.post(f"/sessions/{fork}/switch")
        switched = heard(events, "session.switched", talk.id)
        assert (switched["from"], switched["to"], switched["current"]) == (talk.id, fork, True)
        copy = daemon.client.get(f"/api/v1{base}/{talk.id}/export").content
        taken_in = daemon.client.post(f"/api/v1{base}/import", content=copy).json()["session"]
        assert heard(events, "session.created", taken_in["id"])["imported_from"]
        daemon.ask("DELETE", f"{base}/{taken_in['id']}")
        heard(events, "session.deleted", taken_in["id"])
