"""Guests that try to fill the audit log: rows stay few, counts stay exact, the chain holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.agents import Talk
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, calls, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project
from whole.harness.scripts import Scripts
from whole.harness.services import (
    FRONT_END,
    Bridge,
    Desk,
    invoking,
    somebody,
)

ROWS = 125
"""At most, of one guest and kind: a hundred, some details, and what comes back in time."""
PART = 47
FLOOD = 3 * PART
NOISE = 1000
LEAKING = """
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "definitions":
        leak = {"name": "leak", "description": "Leak.", "requires_auth": False}
        box = {"id": "out.box", "description": "A box.", "operations": [leak]}
        result = {"definitions": [box], "features": ["persistent"]}
    else:
        result = {"output": {"fine": 1, "access_token": "marker-value-0815"}}
    print(json.dumps({"version": 1, "id": request["id"], "result": result}), flush=True)
"""
ROGUE = Path(__file__).parents[2] / "guests" / "rogue_mcp_server.py"


@pytest.fixture
def own(tmp_path: Path, model: ModelServer) -> Iterator[Callable[..., Daemon]]:
    """Yield a maker of daemons; none outlives its test."""
    made: list[Daemon] = []

    def make(config: str = "") -> Daemon:
        made.append(Daemon(tmp_path / f"h{len(made)}", config=config, local=model.local_toml()))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def _all(daemon: Daemon, kind: str) -> list[dict[str, Any]]:
    """Return every row of a kind, page by page."""
    found: list[dict[str, Any]] = []
    more = ""
    while True:
        page = daemon.get(f"/audit?event={kind}&limit=200{more}")
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        more = f"&cursor={page['next_cursor']}"


def _counts(daemon: Daemon, kind: str, guest: str) -> tuple[int, int]:
    """Return how many events of a kind and guest are rows, and how many were counted."""
    folded = [
        one["data"]["count"]
        for one in _all(daemon, "audit.folded")
        if (one["data"]["kind"], one["data"]["guest"]) == (kind, guest)
    ]
    rows = [one for one in _all(daemon, kind) if guest in json.dumps(one["data"])]
    return len(rows), sum(folded)


def _bounded_and_exact(daemon: Daemon, kind: str, guest: str, total: int) -> None:
    rows, folded = _counts(daemon, kind, guest)
    assert rows <= ROWS, (kind, rows)
    assert rows + folded == total, (kind, rows, folded)
    assert folded > 0


def _chain_holds(daemon: Daemon) -> None:
    report = daemon.post("/audit/verify")
    assert report["ok"], report


def _noisy(daemon: Daemon, folder: Path, name: str) -> PluginFolder:
    behaviour = {
        "on": {
            "a.b": [{"flood": ["this is no JSON", NOISE]}, {"result": {}}],
            "c.d": [{"raw": "{}"}, {"result": {}}],
        }
    }
    plugin = PluginFolder(daemon, folder / name, behaviour, name=name)
    plugin.run()
    return plugin


def test_a_plugin_that_writes_noise(own: Callable[..., Daemon], tmp_path: Path) -> None:
    """The second flood, the second plugin and the next start of the daemon change nothing."""
    daemon = own()
    first, second = (_noisy(daemon, tmp_path, name) for name in ("first", "second"))
    first.call()
    _bounded_and_exact(daemon, "plugin.stdout_noise", "first", NOISE)
    first.call()
    second.call()
    _bounded_and_exact(daemon, "plugin.stdout_noise", "first", 2 * NOISE)
    _bounded_and_exact(daemon, "plugin.stdout_noise", "second", NOISE)
    first.call()
    daemon.restart()  # what was counted and not read is written at the end
    _bounded_and_exact(daemon, "plugin.stdout_noise", "first", 3 * NOISE)
    _chain_holds(daemon)


def test_a_script_that_asks_for_what_it_may_not_have(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    scripts = Scripts(daemon, daemon.load(Project(tmp_path / "p")))
    scripts.load(
        greedy=f"""
        for i = 1, {FLOOD} do
            pcall(function() kage.fs.read("/etc/shadow") end)
        end
        for i = 1, {FLOOD} do
            kage.request_capabilities({{ "exec" }})
        end
        """
    )
    _bounded_and_exact(daemon, "lua.request.refused", "greedy", FLOOD)
    _bounded_and_exact(daemon, "lua.capability.refused", "greedy", FLOOD)
    _chain_holds(daemon)


def test_an_outside_server_that_answers_wrongly(own: Callable[..., Daemon], tmp_path: Path) -> None:
    argv = json.dumps([sys.executable, str(ROGUE), "typed"])
    cage = f'{{ fs = [{{ mode = "ro", path = "{ROGUE}" }}] }}'
    daemon = own(f"[mcp.servers.typed]\ncommand = {argv}\ncage = {cage}\n")
    project = daemon.load(Project(tmp_path / "p"))
    wait_for(
        lambda: [one["state"] for one in daemon.get("/mcp/servers")["servers"]] == ["running"],
        "the server",
    )
    for _ in range(FLOOD):
        assert project.fail("typed.echo")["code"] == "mcp_answer_invalid"
    _bounded_and_exact(daemon, "mcp.answer_invalid", "typed", FLOOD)
    # These calls did reach the server, so each of them is on record.
    assert len(daemon.audit("tool.called")) == len(daemon.audit("tool.completed")) == FLOOD
    _chain_holds(daemon)


def test_a_bridge_that_answers_with_credentials(tmp_path: Path, model: ModelServer) -> None:
    program = tmp_path / "leaking.py"
    program.write_text(LEAKING, encoding="utf-8")
    bridge = Bridge(tmp_path, "out", program=str(program), mode="persistent")
    daemon = Daemon(tmp_path / "h", config=FRONT_END + bridge.toml(), local=model.local_toml())
    desk = Desk(daemon, tmp_path / "p").open()
    try:
        person = somebody()
        for _ in range(3):
            answers = desk.asks(person, *[invoking("out.box", "leak")] * PART)
            assert all("error" in one for one in answers), answers[:3]
        assert len(desk.audit(person, "capability_invoke")) == FLOOD
        _bounded_and_exact(daemon, "capability_output_rejected", "out.box", FLOOD)
        # Calls that a gate refuses are folded as well; those above were none.
        for _ in range(3):
            desk.asks(person, *[invoking("none.such", "leak")] * PART)
        folded = [
            one["data"]["count"]
            for one in daemon.audit("audit.folded")
            if one["data"]["kind"] == "capability_invoke"
        ]
        rows = [
            one for one in desk.audit(person, "capability_invoke") if one["outcome"] == "denied"
        ]
        assert folded
        assert len(rows) + sum(folded) == FLOOD
        _chain_holds(daemon)
    finally:
        desk.close()


def test_an_agent_whose_calls_are_refused(
    own: Callable[..., Daemon], tmp_path: Path, model: ModelServer
) -> None:
    """What it is allowed to change meanwhile is on record, each call from its beginning."""
    daemon = own()
    project = daemon.load(Project(tmp_path / "p", cage={"fs": [{"mode": "rw", "path": "./mine"}]}))
    refused = [("file.write", {"path": "./other/x", "content": "x"})] * PART
    allowed = call("file.write", path="./mine/y", content="y")
    model.play("flood-one", *[calls(*refused)] * 3, allowed, say("done"))
    run = Talk(project).say("flood-one")
    assert run["status"] == "completed", run
    _bounded_and_exact(daemon, "tool.denied", "primary", FLOOD)
    rows, folded = _counts(daemon, "tool.called", "primary")
    assert rows + folded == FLOOD + 1
    assert rows <= ROWS
    assert project.read("mine/y") == "y"
    [written] = daemon.audit("file.written")
    request = written["request_id"]
    kinds = [one["event"] for one in daemon.audit(request_id=request)]
    assert kinds == ["tool.called", "file.written", "tool.completed"]
    # A denial of another kind is not hidden by the flood.
    assert project.fail("file.read", path="../outside")["code"]
    model.play("flood-two", calls(*refused), call("no.such", a=1), say("done"))
    Talk(project).say("flood-two")
    _bounded_and_exact(daemon, "tool.denied", "primary", FLOOD + PART)
    _chain_holds(daemon)
