"""Projects over HTTP: load, look, reload, trust, unload; each on record."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import InProcess, daemon_in_process, make_project, require_error_shape
from fakes.tool_lab import until_health
from kaged.audit import AuditEvent
from kaged.store.audit_rows import AuditRows


async def _events(daemon: InProcess, name: str) -> list[dict[str, Any]]:
    await daemon.daemon.services.audit.flush()
    page = (await daemon.client.get("/api/v1/audit", params={"event": name})).json()
    return page["items"]


async def _load(daemon: InProcess, root: Path) -> dict[str, Any]:
    answer = await daemon.client.post("/api/v1/projects", json={"root": str(root), "trust": True})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def _open(daemon: InProcess, root: Path) -> dict[str, Any]:
    """Load a project and return it as it is once everything that guards it stands."""
    loaded = await _load(daemon, root)
    while loaded["readiness"]["state"] == "opening":
        await asyncio.sleep(0)
        loaded = (await daemon.client.get(f"/api/v1/projects/{loaded['id']}")).json()
    return loaded


async def test_a_loaded_project_shows_its_agent_tree(inside: InProcess, project: Path) -> None:
    loaded = await _open(inside, project)
    assert loaded["slug"] == "sample"
    assert loaded["state"] == "loaded"
    assert loaded["agents"] == 2
    paths = [agent["path"] for agent in loaded["tree"]["agents"]]
    assert paths == ["primary", "primary.subagents.reader"]
    assert loaded["tree"]["agents"][1]["cage"]["value"]["fs"] == [
        {"mode": "ro", "path": str(project)}
    ]
    assert (await inside.client.get(f"/api/v1/projects/{loaded['id']}")).json() == loaded


async def test_loading_is_on_record_with_who_asked_and_the_request(
    inside: InProcess, project: Path
) -> None:
    answer = await inside.client.post(
        "/api/v1/projects", json={"root": str(project), "trust": True}
    )
    (event,) = await _events(inside, "project.loaded")
    assert event["request_id"] == answer.headers["x-request-id"]
    assert event["project_id"] == answer.json()["id"]
    assert event["data"]["caller"] == "operator"
    assert event["data"]["root"] == str(project)


async def test_loading_twice_keeps_the_id_and_reads_the_files_anew(
    inside: InProcess, project: Path
) -> None:
    first = await _load(inside, project)
    make_project(project, "primary: {model: default, system_prompt: Alone.}\n")
    second = await _load(inside, project)
    assert second["id"] == first["id"]
    assert second["agents"] == 1
    assert len((await inside.client.get("/api/v1/projects")).json()["items"]) == 1


async def test_two_roots_of_one_slug_are_two_projects(inside: InProcess, tmp_path: Path) -> None:
    one = await _load(inside, make_project(tmp_path / "one"))
    other = await _load(inside, make_project(tmp_path / "other"))
    assert one["slug"] == other["slug"]
    assert one["id"] != other["id"]


async def test_a_link_to_a_loaded_project_is_the_same_project(
    inside: InProcess, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(project)
    assert (await _load(inside, tmp_path / "link"))["id"] == (await _load(inside, project))["id"]


async def test_a_project_with_errors_is_not_loaded_and_each_error_has_its_line(
    inside: InProcess, tmp_path: Path
) -> None:
    root = make_project(tmp_path / "bad", "primary:\n  model: default\n  systm_prompt: x\n")
    answer = await inside.client.post("/api/v1/projects", json={"root": str(root), "trust": True})
    assert answer.status_code == 422
    error = require_error_shape(answer.json(), "config_invalid")
    assert {problem["line"] for problem in error["data"]["problems"]} >= {3}
    assert (await inside.client.get("/api/v1/projects")).json()["items"] == []
    (event,) = await _events(inside, "project.load_failed")
    assert event["data"]["root"] == str(root)


async def test_a_reload_with_errors_keeps_what_was_in_force(
    inside: InProcess, project: Path
) -> None:
    loaded = await _open(inside, project)
    make_project(project, "primary: [")
    answer = await inside.client.post(f"/api/v1/projects/{loaded['id']}/reload")
    assert answer.status_code == 422
    assert (await inside.client.get(f"/api/v1/projects/{loaded['id']}")).json() == loaded


@pytest.mark.parametrize("root", ["relative", "", "/does/not/exist", "/etc/passwd", "/\0x"])
async def test_a_root_that_is_none_is_refused(inside: InProcess, root: str) -> None:
    answer = await inside.client.post("/api/v1/projects", json={"root": root, "trust": True})
    assert answer.status_code == 422
    require_error_shape(answer.json())


async def test_trust_is_asked_for_recorded_and_kept(inside: InProcess, project: Path) -> None:
    loaded = (await inside.client.post("/api/v1/projects", json={"root": str(project)})).json()
    assert loaded["trusted"] is False
    path = f"/api/v1/projects/{loaded['id']}"
    shown = {"trusted": True, "digest": loaded["ask"]["digest"]}
    other = await inside.client.put(f"{path}/trust", json={**shown, "digest": "0" * 64})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "project_ask_changed")
    assert (await inside.client.put(f"{path}/trust", json=shown)).json()["trusted"]
    assert (await inside.client.get(path)).json()["trusted"]
    assert (await _load(inside, project))["trusted"]
    await inside.client.put(f"{path}/trust", json={"trusted": False})
    recorded = [event["data"]["trusted"] for event in await _events(inside, "project.trusted")]
    assert recorded == [False, True]


async def test_unloading_forgets_the_project_but_not_its_id_nor_its_trust(
    inside: InProcess, project: Path
) -> None:
    loaded = await _load(inside, project)
    path = f"/api/v1/projects/{loaded['id']}"
    await inside.client.put(f"{path}/trust", json={"trusted": True})
    assert (await inside.client.delete(path)).status_code == 204
    assert (await inside.client.get(path)).status_code == 404
    assert (await inside.client.delete(path)).status_code == 404
    again = await _load(inside, project)
    assert (again["id"], again["trusted"]) == (loaded["id"], True)


async def test_what_was_loaded_comes_back_with_the_next_daemon(
    tmp_path: Path, project: Path
) -> None:
    gone = make_project(tmp_path / "gone")
    let_go = make_project(tmp_path / "let-go")
    async with daemon_in_process(tmp_path / "h") as first:
        kept = await _load(first, project)
        lost = await _load(first, gone)
        unloaded = await _load(first, let_go)
        await first.client.delete(f"/api/v1/projects/{unloaded['id']}")
    (gone / ".kaged" / "project.yaml").unlink()
    async with daemon_in_process(tmp_path / "h") as second:
        items = (await second.client.get("/api/v1/projects")).json()["items"]
        found = {item["id"]: item["state"] for item in items}
        assert found == {kept["id"]: "loaded", lost["id"]: "failed"}
        failed = (await second.client.get(f"/api/v1/projects/{lost['id']}")).json()
        assert failed["tree"] is None
        assert failed["problems"][0]["code"] == "file_missing"


async def test_pages_go_through_all_projects_once(inside: InProcess, tmp_path: Path) -> None:
    loaded = {(await _load(inside, make_project(tmp_path / f"p{i}")))["id"] for i in range(7)}
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": "3"} | ({"cursor": cursor} if cursor else {})
        page = (await inside.client.get("/api/v1/projects", params=params)).json()
        assert len(page["items"]) <= 3
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(loaded)
    assert len(seen) == 7


async def test_many_loads_at_once_give_one_project(inside: InProcess, project: Path) -> None:
    ids = await asyncio.gather(*(_load(inside, project) for _ in range(8)))
    assert len({one["id"] for one in ids}) == 1


async def test_without_a_writable_trail_nothing_changes_and_reading_goes_on(
    inside: InProcess, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = await _open(inside, project)
    audit = inside.daemon.services.audit

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(AuditRows, "append", full)
    audit.post(AuditEvent("plugin.stdout_noise", {"name": "loud", "line": "x"}))
    await until_health(audit, ok=False)
    path = f"/api/v1/projects/{loaded['id']}"
    for answer in (
        await inside.client.post("/api/v1/projects", json={"root": str(tmp_path), "trust": True}),
        await inside.client.post(f"{path}/reload"),
        await inside.client.put(f"{path}/trust", json={"trusted": True}),
        await inside.client.delete(path),
        await inside.client.post("/api/v1/auth/launch"),
        await inside.client.post("/api/v1/auth/token/rotate"),
        await inside.client.get("/api/v1/audit/export"),
    ):
        assert answer.status_code == 503
        require_error_shape(answer.json(), "audit_unavailable")
    assert (await inside.client.get(path)).json() == loaded
    status = (await inside.client.get("/api/v1/status")).json()
    assert status["audit"]["ok"] is False
    assert any("changes are refused" in warning for warning in status["warnings"])
    health = await inside.client.get("/healthz")
    assert (health.status_code, health.json()) == (503, {"status": "degraded"})
