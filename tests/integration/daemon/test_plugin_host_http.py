"""The plugin host behind its HTTP routes: what consent and config come to later; real cages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes.git_repo import plugin_repository
from fakes.host_over_http import HttpHost, http_host, write_project, write_stub
from fakes.running_daemon import ANY_PORT
from requirements import requirement

ECHO = {"on": {"a.b": [{"echo": True}]}}


def needs(source: str | None = "./tools/stub", **more: Any) -> dict[str, Any]:
    declared = {"package": "@scope/stub", **more}
    if source is not None:
        declared["source"] = source
    return {"plugins": {"stub": declared}}


async def test_questions_and_noes_outlive_the_daemon(home: Path, tmp_path: Path) -> None:
    bare = plugin_repository(tmp_path, {"v1.0.0": "1.0.0"})
    config = ANY_PORT + '[plugins]\nallow_sources = ["git+file"]\n'
    declared = {
        "sample": {"package": "sample", "source": f"git+file://{bare}", "version": "^1"},
        "stub": {"package": "stub"},
    }
    root = write_project(tmp_path / "boats", {"plugins": declared})
    async with http_host(home, config) as host:
        project_id = (await host.load(root))["id"]
        asked = {one["name"]: one for one in await host.consents()}
        assert {name: one["step"] for name, one in asked.items()} == {
            "sample": "fetch",
            "stub": "path",
        }
        no = await host.post(f"/consents/{asked['stub']['id']}", {"allowed": False})
        assert no == {"name": "stub", "done": False, "next": None}
        yes = await host.post(f"/consents/{asked['sample']['id']}", {"allowed": True})
        assert yes["next"]["step"] == "install"
    async with http_host(home, config) as host:
        again = {one["name"]: one for one in await host.consents()}
        assert {name: one["id"] for name, one in again.items()} == {
            name: one["id"] for name, one in asked.items()
        }
        assert again["stub"]["declined"]
        # What was fetched is fetched again: the second question needs the files.
        assert (again["sample"]["step"], again["sample"]["declined"]) == ("fetch", False)
        assert (await host.get(f"/projects/{project_id}"))["state"] == "pending"
        second = await host.post(f"/consents/{again['sample']['id']}", {"allowed": True})
        wrong = {"allowed": True, "digest": "sha256:0000"}
        refused = await host.post(f"/consents/{again['sample']['id']}", wrong, expect=403)
        assert refused["error"]["code"] == "plugin_consent_missing"
        digest = second["next"]["prompt"]["digest"]
        body = {"allowed": True, "digest": digest}
        assert (await host.post(f"/consents/{again['sample']['id']}", body))["done"]
        await host.post(f"/projects/{project_id}/reload", {"trust": True})
        (asked_again,) = await host.consents()
        assert (asked_again["name"], asked_again["declined"]) == ("stub", False)
    async with http_host(home, config) as host:
        assert [one["id"] for one in await host.consents()] == [asked_again["id"]]
        assert [one["name"] for one in (await host.get("/plugins"))["items"]] == ["sample"]


@requirement("PH-FAIL-09")
async def test_a_source_that_is_not_there_leaves_the_project_pending(
    home: Path, tmp_path: Path
) -> None:
    config = ANY_PORT + '[plugins]\nallow_sources = ["git+file"]\n'
    async with http_host(home, config) as host:
        root = write_project(tmp_path / "boats", needs(f"git+file://{tmp_path}/nowhere.git"))
        project_id = (await host.load(root))["id"]
        (asked,) = await host.consents()
        failed = await host.post(f"/consents/{asked['id']}", {"allowed": True}, expect=502)
        assert failed["error"]["code"] == "plugin_source_unavailable"
        assert (await host.get(f"/projects/{project_id}"))["state"] == "pending"
        assert await host.get("/plugins") == {"items": [], "kept": []}
        (still,) = await host.consents()
        assert still["problem"]
        # The operator installs by hand instead.
        await host.install(write_stub(tmp_path / "mine", ECHO))
        assert (await host.get(f"/projects/{project_id}"))["state"] == "loaded"
        assert await host.consents() == []


async def test_a_plugin_that_goes_leaves_its_projects_pending(
    host: HttpHost, tmp_path: Path
) -> None:
    await host.running(write_stub(tmp_path / "mine", ECHO))
    project_id = (await host.load(write_project(tmp_path / "boats", needs())))["id"]
    assert await host.consents() == []
    await host.ask("DELETE", "/plugins/stub")
    assert (await host.get(f"/projects/{project_id}"))["state"] == "pending"
    assert len(await host.consents()) == 1
    await host.client.delete(f"/api/v1/projects/{project_id}")
    assert await host.consents() == []


async def test_an_unknown_question_is_not_found(host: HttpHost) -> None:
    answer = await host.post(
        "/consents/consent_01ARZ3NDEKTSV4RRFFQ69G5FAV", {"allowed": True}, expect=404
    )
    assert answer["error"]["code"] == "plugin_consent_unknown"


SCHEMA = {
    "type": "object",
    "properties": {"budget": {"type": "integer", "default": 1, "maximum": 8}},
    "additionalProperties": False,
}
PROJECT = """# the boats
version: 1
project: boats
primary:
  model: m  # any
  system_prompt: x
  plugins:
    stub:
      package: stub
      config:
        budget: 3  # three is plenty
"""


def updates(logs: Path) -> list[Any]:
    lines = (logs / "stub").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [one["params"]["config"] for one in found if one.get("method") == "config.update"]


async def test_a_new_process_starts_with_the_config_of_a_loaded_project(
    host: HttpHost, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    stub = write_stub(
        tmp_path / "mine",
        {**ECHO, "log": str(logs / "stub")},
        capabilities=[f"write:fs:{logs}"],
        config_schema=SCHEMA,
    )
    await host.running(stub)
    root = write_project(tmp_path / "boats", {})
    (root / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
    await host.load(root)
    await host.settle()
    (logs / "stub").unlink()
    await host.post("/plugins/stub/restart")
    await host.call("stub")
    assert updates(logs) == [{"budget": 3}]
