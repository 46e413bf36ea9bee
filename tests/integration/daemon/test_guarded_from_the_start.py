"""What guards a project guards it from the first request on, whichever command starts the daemon.

A script hides keys from the model and vetoes moves, a policy plugin denies calls. Each command and
each request is made against a daemon that has only just been started.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fakes.plugin_lab import BASE_MANIFEST, STUB
from fakes.running_daemon import (
    ANY_PORT,
    DaemonProcess,
    InProcess,
    daemon_in_process,
    kaged,
    make_home,
    start_daemon,
)

KEY = "sk-0123456789"
pytestmark = pytest.mark.timeout(400)

PROJECT = f"""\
version: 1
project: guarded
primary:
  model: default
  system_prompt: You help.
  tools:
    file.*: {{enabled: true}}
workflows:
  tell:
    description: The key is {KEY}.
"""
STORY = """\
turns:
  - when: {user: sk-}
    repeat: true
    say: LEAKED
  - repeat: true
    say: CLEAN
"""
# Loaded last, after scripts that only take time.
GUARD = """\
local function hide(value)
  if type(value) == 'string' then return (value:gsub('sk%-%w+', 'HIDDEN')) end
  if type(value) ~= 'table' then return value end
  local found = {}
  for name, one in pairs(value) do found[name] = hide(one) end
  return found
end
kage.on('transform_context', hide)
kage.on('session_before_switch', function() return {cancel = 'stay here'} end)
"""
HOP = """\
kage.request_capabilities({'session_write'})
kage.register_command{name='hop', description='Goes elsewhere.', handler=function(raw)
  kage.session.switch(raw)
end}
"""
POLICY = """\
from kaged.pipeline import Plugin, PluginResult, PluginViolation

class Denies(Plugin):
    async def tool_pre_invoke(self, payload, context):
        if (payload.args or {}).get("path") == "secret.txt":
            return PluginResult(
                continue_processing=False, violation=PluginViolation("not that", "d", "DANGER"))
"""
CONFIG = f"""\
{ANY_PORT}[pipeline]
file = "policies.yaml"
[plugins.capabilities]
hop = ["session_write"]
"""

Done = subprocess.CompletedProcess[str]


def write_guards(home: Path) -> None:
    """Put the scripts, the policy and the scripted model into a home."""
    (home / "lua").mkdir()
    for number in range(3):
        (home / "lua" / f"a{number}.lua").write_text("kage.on('user', function() end)\n")
    (home / "lua" / "hop.lua").write_text(HOP, encoding="utf-8")
    (home / "lua" / "zz_guard.lua").write_text(GUARD, encoding="utf-8")
    (home / "guarding_policy.py").write_text(POLICY, encoding="utf-8")
    (home / "policies.yaml").write_text(
        "plugin_dirs: [.]\nplugins:\n  - name: guard\n    kind: guarding_policy.Denies\n"
        "    hooks: [tool_pre_invoke]\n",
        encoding="utf-8",
    )
    (home / "local.toml").write_text('[models.default]\nmodel = "scripted:story.yaml"\n')
    (home / "local.toml").chmod(0o600)
    (home / "story.yaml").write_text(STORY, encoding="utf-8")


def write_project(root: Path) -> Path:
    """Make the project."""
    (root / ".kaged").mkdir(parents=True)
    (root / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
    (root / "secret.txt").write_text("secret\n", encoding="utf-8")
    return root


class Site:
    """A home with guards and a loaded project, and no daemon."""

    def __init__(self, top: Path) -> None:
        self.home, self.root = make_home(top / "h", CONFIG), write_project(top / "work")
        write_guards(self.home)
        stub = top / "stub"
        stub.mkdir()
        shutil.copy(STUB, stub / "main.py")
        (stub / "main.py").chmod(0o755)
        (stub / "behaviour.json").write_text(json.dumps({"on": {"a.b": [{"echo": True}]}}))
        (stub / "kaged-plugin.yaml").write_text(yaml.safe_dump(BASE_MANIFEST))
        self.daemon: DaemonProcess | None = None
        self.start()
        self.right("plugin", "install", str(stub), "--yes")
        self.right("plugin", "enable", "stub")
        self.project = json.loads(
            self.right("project", "load", "--trust", str(self.root), "--json")
        )["id"]
        for _ in range(2):
            self.right("run", "hello")
        found = json.loads(self.right("session", "list", "--json"))["items"]
        self.other, self.current = (one["id"] for one in found)
        self.right("session", "switch", self.current)
        self.stop()

    def do(self, *words: str) -> Done:
        """Run a command in the project's folder."""
        return kaged(self.home, *words, cwd=self.root)

    def right(self, *words: str) -> str:
        """Run one that succeeds; returns what it printed."""
        done = self.do(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def start(self) -> DaemonProcess:
        """Start the daemon; returns as soon as it says that it is ready."""
        self.daemon = start_daemon(self.home, config=None, forked=True)
        assert self.daemon.said.get("ready"), self.daemon.log()
        return self.daemon

    def stop(self) -> None:
        """End the daemon, whoever started it."""
        if self.daemon is not None:
            self.daemon.stop()
            self.daemon = None
        self.do("daemon", "stop")

    def current_session(self) -> str:
        """Return where the project is."""
        found = json.loads(self.right("session", "list", "--json"))["items"]
        return next(one["id"] for one in found if one["current"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("guarded"))
    yield made
    made.stop()


def _hidden(done: Done) -> None:
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "CLEAN" in done.stdout
    assert "LEAKED" not in done.stdout


def _denied(done: Done) -> None:
    assert done.returncode != 0, done.stdout
    assert "not that" in done.stderr, (done.stdout, done.stderr)


def _workflow(site: Site) -> Done:
    """Run the workflow; returns how it ended."""
    run_id = json.loads(site.right("workflow", "run", "tell", "--json"))["run_id"]
    while True:
        done = site.do("workflow", "status", run_id, "--json")
        if done.returncode or json.loads(done.stdout)["status"] != "running":
            return done


def test_a_command_that_starts_the_daemon_itself_is_guarded(site: Site) -> None:
    _hidden(site.do("run", f"my key is {KEY}"))
    site.stop()
    _denied(site.do("tool", "call", "file.read", "path=secret.txt"))
    site.stop()


def _said(client: httpx.Client, path: str) -> str:
    answer = client.post(path, json={"text": f"my key is {KEY}"})
    assert answer.status_code == 202, answer.text
    run_id = answer.json()["run_id"]
    while True:
        runs = client.get(path.replace("/message", "/runs")).json()["items"]
        if next(one for one in runs if one["id"] == run_id)["status"] != "running":
            break
    entries = client.get(path.replace("/message", "/entries"), params={"limit": 200}).json()
    return json.dumps(entries["items"][-3:])


def test_requests_right_after_a_start_are_guarded(site: Site) -> None:
    at, sessions = f"/projects/{site.project}", f"/projects/{site.project}/sessions"
    read = {"tool": "file.read", "params": {"path": "secret.txt"}}

    def message(client: httpx.Client) -> None:
        said = _said(client, f"{sessions}/{site.current}/message")
        assert "CLEAN" in said
        assert "LEAKED" not in said

    def refused(path: str, body: Any, code: str) -> Callable[[httpx.Client], None]:
        def ask(client: httpx.Client) -> None:
            answer = client.post(path, json=body)
            # Nothing is asked of a plugin that has not started.
            while answer.json().get("error", {}).get("code") == "plugin_unavailable":
                answer = client.post(path, json=body)
            assert answer.is_error, answer.text
            assert answer.json()["error"]["code"] == code, answer.text

        return ask

    def hop(client: httpx.Client) -> None:
        answer = client.post(f"{at}/lua/commands", json={"name": "hop", "raw": site.other})
        assert "stay here" in answer.text

    moved = "session_move_vetoed"
    # Asked of one daemon at once, where none of them bears on what another is answered.
    asked: list[list[Callable[[httpx.Client], None]]] = [
        [
            refused(f"{sessions}/{site.other}/switch", {}, moved),
            refused(f"{at}/tools/call", read, "pipeline_refused"),
        ],
        [
            refused(f"{sessions}/{site.current}/fork", {"switch": True}, moved),
            refused("/plugins/stub/call/a.b", read["params"], "capability_denied"),
        ],
        [hop],
        [message, lambda _: _hidden(_workflow(site))],
    ]
    for together in asked:
        try:
            with site.start().client() as client, ThreadPoolExecutor(2) as pool:
                for done in [pool.submit(ask, client) for ask in together]:
                    done.result()
            assert site.current_session() == site.current
        finally:
            site.stop()


async def test_nothing_passes_while_scripts_and_policies_are_reloaded(tmp_path: Path) -> None:
    home, root = tmp_path / "h", write_project(tmp_path / "work")
    home.mkdir(mode=0o700)
    write_guards(home)
    async with daemon_in_process(home, config=CONFIG) as inside:
        client = inside.client
        loaded = await client.post("/api/v1/projects", json={"root": str(root), "trust": True})
        at = f"/api/v1/projects/{loaded.json()['id']}"
        current, other = [
            (await client.post(f"{at}/sessions", json={"current": False})).json()["id"]
            for _ in range(2)
        ]
        await client.post(f"{at}/sessions/{current}/switch")
        reloading = True
        moves = calls = 0

        async def reload() -> None:
            nonlocal reloading
            for _ in range(3):
                done = await client.post(f"{at}/lua/reload", json={"trust": True})
                assert done.status_code == 200, done.text
                await inside.daemon.startup.reload()
                assert (await client.post(f"{at}/reload", json={"trust": True})).status_code == 200
            reloading = False

        async def move() -> None:
            nonlocal moves
            while reloading:
                vetoed = await client.post(f"{at}/sessions/{other}/switch")
                assert vetoed.status_code == 409, vetoed.text
                assert "stay here" in vetoed.text
                moves += 1

        async def call() -> None:
            nonlocal calls
            read = {"tool": "file.read", "params": {"path": "secret.txt"}}
            while reloading:
                denied = await client.post(f"{at}/tools/call", json=read)
                assert denied.is_error, denied.text
                assert "not that" in denied.text
                calls += 1

        async def run() -> None:
            while reloading:
                await _run_hidden(inside, at)

        async with asyncio.TaskGroup() as group:
            for work in (reload, move, call, run):
                group.create_task(work())
        assert moves > 3
        assert calls > 3


async def _run_hidden(inside: InProcess, at: str) -> None:
    made = (await inside.client.post(f"{at}/sessions", json={"current": False})).json()["id"]
    body = {"text": f"my key is {KEY}"}
    started = await inside.client.post(f"{at}/sessions/{made}/message", json=body)
    assert started.status_code == 202, started.text
    sessions = inside.daemon.services.subsystems.sessions
    assert sessions is not None
    assert sessions.driver is not None
    end = await sessions.driver.wait(started.json()["run_id"])
    assert end.text == "CLEAN", end


async def test_a_script_that_moves_while_it_is_loaded_holds_up_nothing(tmp_path: Path) -> None:
    home, root = tmp_path / "h", write_project(tmp_path / "work")
    home.mkdir(mode=0o700)
    write_guards(home)
    async with daemon_in_process(home, config=CONFIG) as inside:
        client = inside.client
        loaded = await client.post("/api/v1/projects", json={"root": str(root), "trust": True})
        at = f"/api/v1/projects/{loaded.json()['id']}"
        current, other = [
            (await client.post(f"{at}/sessions", json={"current": False})).json()["id"]
            for _ in range(2)
        ]
        await client.post(f"{at}/sessions/{current}/switch")
        (home / "lua" / "hop.lua").write_text(
            f"{HOP}kage.notify(tostring(#kage.session.list()))\nkage.session.switch('{other}')\n",
            encoding="utf-8",
        )
        # Loaded anew from nothing, as at a start.
        await client.delete(at)
        async with asyncio.timeout(25):
            await client.post("/api/v1/projects", json={"root": str(root), "trust": True})
            vetoed = await client.post(f"{at}/sessions/{other}/switch")
        assert "stay here" in vetoed.text
        found = (await client.get(f"{at}/sessions")).json()["items"]
        assert [one["id"] for one in found if one["current"]] == [current]


async def test_a_project_shows_which_guard_is_missing_and_refuses(tmp_path: Path) -> None:
    home, root = tmp_path / "h", write_project(tmp_path / "work")
    home.mkdir(mode=0o700)
    write_guards(home)
    config = CONFIG.replace("[pipeline]", "opening_seconds = 1\n[pipeline]")
    config += 'zz_guard = ["exec"]\n'
    (home / "lua" / "zz_guard.lua").write_text(
        "kage.request_capabilities({'exec'})\nkage.exec{cmd='sleep', args={'20'}}\n" + GUARD,
        encoding="utf-8",
    )
    async with daemon_in_process(home, config=config) as inside:
        client = inside.client
        loaded = (
            await client.post("/api/v1/projects", json={"root": str(root), "trust": True})
        ).json()
        assert loaded["state"] == "loaded"
        assert loaded["readiness"]["state"] == "opening"
        assert "scripts" in loaded["readiness"]["missing"]
        status = (await client.get("/api/v1/status")).json()
        assert any("scripts" in one for one in status["opening"])
        at = f"/api/v1/projects/{loaded['id']}"
        sessions = [
            (await client.post(f"{at}/sessions", json={"current": False})).json()["id"]
            for _ in range(2)
        ]
        await client.post(f"{at}/sessions/{sessions[0]}/switch")
        asked: dict[str, Any] = {
            f"{at}/tools/call": {"tool": "file.read", "params": {"path": "secret.txt"}},
            f"{at}/sessions/{sessions[0]}/message": {"text": "hello"},
            f"{at}/sessions/{sessions[0]}/compact": {},
            f"{at}/sessions/{sessions[1]}/switch": {},
            f"{at}/sessions/{sessions[1]}/fork": {"switch": True},
            f"{at}/workflows/tell/runs": {},
            f"{at}/lua/commands": {"name": "hop"},
            f"{at}/mcp": {},
        }
        answers = await asyncio.gather(
            *(client.post(path, json=body) for path, body in asked.items())
        )
        for refused in answers:
            assert refused.status_code == 503, (refused.url, refused.text)
            error = refused.json()["error"]
            assert error["code"] == "project_opening"
            assert error["data"]["missing"] == ["scripts"]
            assert error["data"]["fix"]
        found = (await client.get(f"{at}/sessions")).json()["items"]
        assert {one["id"]: one["entries"] for one in found} == dict.fromkeys(sessions, 1)
