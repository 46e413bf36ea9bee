"""Everything that waits for a person, seen by `kaged inbox` and answered by one route."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import yaml

from fakes.host_over_http import write_stub
from fakes.running_daemon import WAIT_S, DaemonProcess, kaged, make_project

Start = Callable[..., DaemonProcess]

PROJECT = {
    "version": 1,
    "project": "sample",
    "primary": {
        "model": "default",
        "system_prompt": "You help.",
        "plugins": {"stub": {"package": "stub", "source": "./tools/stub"}},
    },
    "lsp": {"servers": [{"lang": "python", "command": ["my-server", "--stdio"]}]},
}
QUESTIONS = [{"id": "c", "title": "Which?", "options": ["a", "b"]}]


def _inbox(home: Path, *options: str) -> dict[str, Any]:
    done = kaged(home, "inbox", "--json", *options)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in json.loads(done.stdout)}


def _until(home: Path, kinds: set[str]) -> dict[str, Any]:
    """Ask, one command after the other, until requests of exactly these kinds wait."""
    end = time.monotonic() + WAIT_S
    while set(found := _inbox(home)) != kinds:
        assert time.monotonic() < end, found
    return found


def _answer(
    client: httpx.Client, asked: dict[str, Any], answer: dict[str, Any], expect: int = 200
) -> Any:
    body = {"digest": asked["digest"], "answer": answer}
    done = client.post(f"/inbox/{asked['id']}/answer", json=body)
    assert done.status_code == expect, done.text
    return done.json()


def test_requests_of_several_kinds_are_listed_and_answered(
    start: Start, home: Path, tmp_path: Path
) -> None:
    daemon = start(forked=True)
    root = make_project(tmp_path / "sample", yaml.safe_dump(PROJECT))
    write_stub(root / "tools" / "stub")
    with daemon.client() as client, ThreadPoolExecutor(1) as pool:
        project = client.post("/projects", json={"root": str(root)}).json()
        asks = _until(home, {"trust"})
        assert asks["trust"]["project_id"] == project["id"]
        assert asks["trust"]["command"] == f"kaged project trust {project['id']}"
        assert any("python: my-server --stdio" in line for line in asks["trust"]["details"])
        refused = _answer(client, {**asks["trust"], "digest": "0" * 64}, {"choice": "yes"}, 409)
        assert refused["error"]["code"] == "inbox_request_changed"
        assert client.get(f"/projects/{project['id']}").json()["trusted"] is False
        assert _answer(client, asks["trust"], {"choice": "yes"})["state"] == "answered"
        assert client.get(f"/projects/{project['id']}").json()["trusted"] is True

        ask = ["tool", "call", "kaged.ask", f"questions:={json.dumps(QUESTIONS)}", "--json"]
        waiting = pool.submit(kaged, home, *ask, cwd=root)
        found = _until(home, {"ask", "plugin_consent"})
        assert {one["project_id"] for one in found.values()} == {project["id"]}
        assert found["ask"]["title"] == "Which?"
        assert found["ask"]["command"].startswith(f"kaged inbox answer {found['ask']['id']} ")
        consent = found["plugin_consent"]
        assert consent["command"] == f"kaged plugin approve {consent['id']}"

        wrong = _answer(client, found["ask"], {"answers": {"c": "z"}}, 422)
        assert wrong["error"]["code"] == "interaction_answer_invalid"
        _answer(client, found["ask"], {"answers": {"c": "b"}})
        assert json.loads(waiting.result().stdout)["result"]["answers"] == {"c": "b"}

        _answer(client, consent, {"choice": "yes"})
        assert [one["name"] for one in client.get("/plugins").json()["items"]] == ["stub"]
        again = _answer(client, consent, {"choice": "yes"}, 409)
        assert again["error"]["code"] == "inbox_request_closed"
        assert client.get("/consents").json()["items"] == []
    assert _inbox(home) == {}
    every = _inbox(home, "--all", "--project", str(root))
    assert {kind: one["state"] for kind, one in every.items()} == dict.fromkeys(
        ("ask", "plugin_consent", "trust"), "answered"
    )
    assert set(_inbox(home, "--all", "--kind", "ask")) == {"ask"}
    rows = json.loads(kaged(home, "audit", "query", "--event", "inbox.answered", "--json").stdout)
    assert {row["data"]["kind"] for row in rows} == set(every)


def test_what_is_stored_waits_for_the_next_daemon(start: Start, home: Path, tmp_path: Path) -> None:
    daemon = start(forked=True)
    root = make_project(tmp_path / "sample", yaml.safe_dump(PROJECT))
    write_stub(root / "tools" / "stub")
    with daemon.client() as client:
        client.post("/projects", json={"root": str(root), "trust": True})
        other = make_project(tmp_path / "other", yaml.safe_dump({**PROJECT, "project": "other"}))
        client.post("/projects", json={"root": str(other)})
        before = _until(home, {"plugin_consent", "trust"})
        assert client.post(
            f"/inbox/{before['trust']['id']}/answer",
            json={"digest": before["trust"]["digest"], "answer": {"choice": "no"}},
        ).is_success
    assert daemon.stop() == 0
    daemon = start(forked=True)
    after = _until(home, {"plugin_consent", "trust"})
    assert after["plugin_consent"]["id"] == before["plugin_consent"]["id"]
    listed = kaged(home, "inbox", "--kind", "plugin_consent").stdout
    assert listed.split("\t")[1] == "plugin_consent"
    assert "kaged plugin approve" in listed
    denied = kaged(home, "plugin", "deny", after["plugin_consent"]["id"])
    assert denied.returncode == 0, denied.stderr
    done = kaged(home, "project", "trust", after["trust"]["project_id"], "--yes")
    assert done.returncode == 0, done.stderr
    also = _until(home, {"plugin_consent"})["plugin_consent"]
    assert kaged(home, "plugin", "deny", also["id"]).returncode == 0
    assert kaged(home, "inbox").stdout == "Nothing is waiting for you.\n"
