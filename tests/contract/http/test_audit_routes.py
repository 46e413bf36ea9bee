"""The audit trail over HTTP: ask, page, check, copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import InProcess, make_project
from kaged.audit import load_key, verify_export


async def _fill(daemon: InProcess, root: Path, times: int) -> str:
    project_id = ""
    for _ in range(times):
        answer = await daemon.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        assert answer.status_code == 201
        project_id = answer.json()["id"]
    return project_id


async def _ask(daemon: InProcess, **params: Any) -> dict[str, Any]:
    answer = await daemon.client.get("/api/v1/audit", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_rows_come_newest_first_and_pages_lose_none(inside: InProcess, project: Path) -> None:
    await _fill(inside, project, 11)
    seen: list[int] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 4} | ({"cursor": cursor} if cursor else {})
        page = await _ask(inside, **params)
        seen += [row["seq"] for row in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) >= 11  # the daemon's own start is on record too
    assert seen == list(range(len(seen), 0, -1))


async def test_a_filter_narrows_by_event_project_time_and_text(
    inside: InProcess, project: Path, tmp_path: Path
) -> None:
    project_id = await _fill(inside, project, 2)
    await _fill(inside, make_project(tmp_path / "other"), 1)
    await inside.client.delete(f"/api/v1/projects/{project_id}")
    rows = (await _ask(inside, event="project.*", project_id=project_id))["items"]
    assert [row["event"] for row in rows] == [
        "project.unloaded", "project.loaded", "project.trusted", "project.loaded",
    ]  # fmt: skip
    by_request = await _ask(inside, request_id=rows[0]["request_id"])
    assert [row["seq"] for row in by_request["items"]] == [rows[0]["seq"]]
    since = await _ask(inside, since=rows[0]["timestamp"])
    assert rows[0]["seq"] in {row["seq"] for row in since["items"]}
    assert (await _ask(inside, until="2001-01-01T00:00:00+01:00"))["items"] == []
    assert (await _ask(inside, until="0"))["items"] == []
    assert {row["data"]["root"] for row in (await _ask(inside, text="OTHER"))["items"]} == {
        str(tmp_path / "other")
    }
    both = await inside.client.get(
        "/api/v1/audit", params=[("event", "project.unloaded"), ("event", "daemon.started")]
    )
    assert {row["event"] for row in both.json()["items"]} == {"project.unloaded"}


async def test_an_untouched_trail_is_found_untouched(inside: InProcess, project: Path) -> None:
    await _fill(inside, project, 3)
    report = (await inside.client.post("/api/v1/audit/verify")).json()
    assert report["ok"] is True
    assert report["rows"] == report["head_seq"] >= 3
    assert report["findings"] == []


async def test_a_copy_can_be_checked_elsewhere_and_is_on_record_itself(
    inside: InProcess, project: Path
) -> None:
    await _fill(inside, project, 3)
    answer = await inside.client.get("/api/v1/audit/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = answer.content.splitlines(keepends=True)
    key = load_key(inside.places.audit_key)
    assert verify_export(lines, key).ok
    assert not verify_export([*lines[:2], *lines[3:]], key).ok
    (event,) = (await _ask(inside, event="audit.exported"))["items"]
    assert event["request_id"] == answer.headers["x-request-id"]


async def test_a_selection_can_be_copied(inside: InProcess, project: Path) -> None:
    await _fill(inside, project, 2)
    answer = await inside.client.get("/api/v1/audit/export", params={"event": "project.loaded"})
    report = verify_export(answer.content.splitlines(keepends=True), load_key(
        inside.places.audit_key))  # fmt: skip
    assert (report.ok, report.rows, report.complete) == (True, 2, False)


@pytest.mark.parametrize("moment", ["2026-01-01", "2026-01-01T00:00:00", "now", "-5", "9" * 30])
async def test_a_moment_without_a_zone_is_refused_not_guessed(
    inside: InProcess, moment: str
) -> None:
    answer = await inside.client.get("/api/v1/audit", params={"since": moment})
    assert answer.status_code == 422


async def test_refused_requests_are_on_record_but_cannot_fill_the_disk(
    inside: InProcess,
) -> None:
    from kaged.serve.http.connection import PeerConnection

    async with inside.over(PeerConnection("tcp", address="127.0.0.1")) as stranger:
        for _ in range(300):
            await stranger.get("/api/v1/status", headers={"host": "evil.example"})
    await inside.daemon.services.audit.flush()
    page = await _ask(inside, event="access.denied", limit=500)
    assert 100 <= len(page["items"]) < 150
    assert (
        page["items"][0]["data"] | {"reason": "host_not_allowed", "host": "evil.example"}
        == (page["items"][0]["data"])
    )
    exposed = (await inside.client.get("/metrics")).text
    assert 'kaged_http_refused_total{code="host_not_allowed"} 300.0' in exposed
