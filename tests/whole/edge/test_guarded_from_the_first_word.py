"""Each request and each command as the first that a started daemon hears, while a guard is missing.

A script that would guard the project is still loading, so nothing that it could refuse may happen:
no run, no move, no call. What the tables below do not name fails, so that a new route or command is
put on one side or the other. That guards which stand refuse what they should is tested with each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import unix_connect

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project
from whole.harness.talk import Talk

PAGE: Final = (
    Path(__file__).resolve().parents[3] / "docs" / "reference" / "who-may-do-what.md"
).read_text(encoding="utf-8")
OPENING: Final = "project_opening"
CONFIG: Final = '[daemon]\nopening_seconds = 1\n[plugins.capabilities]\nzz_guard = ["exec"]\n'
SCRIPT: Final = """\
kage.register_command{name='look', description='Looks.', handler=function() end}
"""
STUCK: Final = """\
kage.request_capabilities({'exec'})
kage.exec{cmd='sleep', args={'300'}, timeout_secs=300}
kage.on('session_before_switch', function() return {cancel = 'stay here'} end)
"""
QUESTION: Final = {"id": "q", "title": "Which?", "options": ["a", "b"]}
READ: Final = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
HELLO: Final = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}  # fmt: skip

P: Final = "/api/v1/projects/{project_id}"
S: Final = f"{P}/sessions/{{session_id}}"
GUARDED: Final[dict[str, Any]] = {
    # what runs, moves or calls, with the body that would do it
    f"POST {S}/message": {"text": "hello"},
    f"POST {S}/resume": {},
    f"POST {S}/compact": {},
    f"POST {S}/fork": {"switch": True},
    f"POST {S}/switch": {},
    f"POST {P}/tools/call": READ,
    f"POST {P}/workflows/{{name}}/runs": {},
    f"POST {P}/lua/commands": {"name": "look"},
    f"GET {P}/mcp": None,
    f"POST {P}/mcp": HELLO,
    f"DELETE {P}/mcp": None,
    f"WS {P}/mcp/stream": None,
    "GET /api/v1/plugins/{name}/call/{method}": None,
    "POST /api/v1/plugins/{name}/call/{method}": {},
}
KEPT: Final = {
    # what is stored at once, and whose run goes on once the project is guarded
    f"POST {P}/interactions/{{request_id}}/answer",
    f"DELETE {P}/interactions/{{request_id}}",
    "POST /api/v1/inbox/{request_id}/answer",
}
HARMLESS: Final[dict[str, str]] = {
    # nothing that a script, policy, plugin, quota or hold could refuse comes of it, because …
    "it shows something": r"""
        GET .*(?<!/mcp)(?<!\{method\})
        WS /api/v1/events
        POST /api/v1/audit/verify
        POST /api/v1/plugins/preview
        POST /api/v1/plugins/\{name\}/export
        POST /api/v1/projects/\{project_id\}/tools/explain""",
    "it tells who somebody is, or ends that": r"""
        (POST|DELETE) /api/v1/auth/.*
        (POST|DELETE) /api/v1/people/.*
        (POST|DELETE) /api/v1/service-accounts.*""",
    "the operator decides what is in force": r"""
        (POST|DELETE) /api/v1/projects(/\{project_id\})?
        (POST|PUT) /api/v1/projects/\{project_id\}/(reload|trust|lua/reload|skills/\{name\}/agree)
        POST /api/v1/mcp/servers/.*
        (POST|PUT|DELETE) /api/v1/plugins(?!.*/call/)(?!/preview)(?!.*/export).*
        POST /api/v1/consents/\{consent_id\}
        (PUT|POST|DELETE) /api/v1/credentials/.*
        DELETE /api/v1/projects/\{project_id\}/sessions/\{session_id\}/grants/\{grant_id\}""",
    "it asks a model or a script one fixed thing, without a session": r"""
        POST /api/v1/models/check
        POST /api/v1/lua/check""",
    "a script is told what a person does at its own dialog; what it calls then waits itself": r"""
        POST /api/v1/projects/\{project_id\}/lua/(front|dialogs/\{dialog_id\})""",
    "it ends work": r"""
        POST .*/(runs/\{run_id\}|sessions/\{session_id\})/cancel""",
    "no guard is asked about notes, titles and files of people": r"""
        (POST|PATCH) /api/v1/projects/\{project_id\}/issues.*
        PUT /api/v1/projects/\{project_id\}/sessions/\{session_id\}/issue
        (PATCH|DELETE) /api/v1/projects/\{project_id\}/sessions/\{session_id\}
        POST /api/v1/projects/\{project_id\}/sessions(/import)?
        POST /api/v1/projects/\{project_id\}/undo""",
    "an account is linked or agreed to; each operation on it passes the policies by itself": r"""
        (POST|DELETE) /api/v1/services/.*""",
}

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    # what runs, moves or calls; `SESSION` is one that is not the current one
    "run": ("run", "hello"),
    "chat": ("chat",),
    "session fork": ("session", "fork"),
    "session switch": ("session", "switch", "SESSION"),
    "session resume": ("session", "resume"),
    "session compact": ("session", "compact"),
    "tool call": ("tool", "call", "file.read", "path=a.txt"),
    "lua run": ("lua", "run", "look"),
    "workflow run": ("workflow", "run", "tell"),
    "plugin call": ("plugin", "call", "stub", "a.b"),
    "mcp": ("mcp", "--agent", "primary"),
}
HARMLESS_COMMANDS: Final[dict[str, str]] = {
    "it works on this machine": r"""
        --.*|login|logout|backup|restore|schema|completion|man|daemon .*|project (init|check|show)
        acp|model (add|default|remove)|credential add
        lua check|skill check|plugin (new|check|gallery|secret set)|bridge .*
        pipeline (check|explain)|cage .*""",
    "it shows something": r"""
        status|usage|doctor|(project|session|tool|lua|undo|model|issue|todo|workflow|inbox) list
        (plugin|skill|account|people|service-account|capability) list
        (session|issue|inbox|skill) show|session (tree|search|export)|tool (stats|explain)
        lsp status|workflow (runs|status)|mcp (servers|logs)
        plugin (info|logs|knobs|consents|export)
        account (approvals|check|shares)|audit .*|pipeline trace
        credential (list|show)|session grants""",
    "the operator decides what is in force": r"""
        project (load|reload|unload|trust)|lua reload|skill approve
        mcp (restart|approve|add|import|remove)
        credential (set|test|remove)|session revoke
        plugin (install|upgrade|uninstall|forget|enable|disable|restart|reload|renew)
        plugin (approve|deny)|people (?!list).*|service-account (?!list).*|capability refresh
        model (check|test)""",
    "an answer is kept; the run that goes on with it waits (tested by its route)": r"""
        answer|inbox (answer|approve|reject|reply|choose|withdraw)""",
    "it ends work": r"workflow cancel",
    "no guard is asked about notes, titles and files of people": r"""
        issue (create|edit|comment|move|bind)|todo (set|add|start|done|drop|note)
        undo (last|run)|session (title|delete|import)""",
    "an account is linked or agreed to": r"account (link|revoke|approve|deny|share|unshare)",
}


class Site:
    """A home with a project, two sessions, a plugin, open questions, and a guard that hangs."""

    def __init__(self, folder: Path, model: ModelServer) -> None:
        self.model = model
        self.daemon = Daemon(folder / "h", config=CONFIG, local=model.local_toml())
        self.daemon.write("lua/look.lua", SCRIPT)
        self.daemon.start()
        self.project = Project(folder / "work", tools={"file.*": {"enabled": True}})
        self.project.describe(top={"workflows": {"tell": {"description": "Tell something."}}})
        self.project.write("a.txt", "one\n")
        self.daemon.load(self.project)
        PluginFolder(self.daemon, folder / "stub", {"on": {"a.b": [{"echo": True}]}}).run()
        self.other = Talk(self.project, model)
        self.other.hear(say("First."))
        self.questions = [Talk(self.project, model) for _ in KEPT]
        for one in self.questions:
            one.hear(call("kaged.ask", questions=[QUESTION]), say("Went on."))
            one.waiting()
        self.current = Talk(self.project, model)
        self.current.hear(say("Second."))
        self.project.post(f"/sessions/{self.current.id}/switch")
        # From the next start on.
        self.guard = self.daemon.write("lua/zz_guard.lua", STUCK)
        self.daemon.kill()

    def filled(self, path: str, **more: str) -> str:
        """Return a path with the things of this site."""
        # The moves are of sessions of their own: two of one would be one.
        moved = {"switch": self.other, "fork": self.questions[0]}
        session = moved.get(path.rpartition("/")[2], self.current).id
        values = {
            "project_id": self.project.id, "session_id": session, "method": "a.b",
            "name": "tell" if "/workflows/" in path else "stub", **more,
        }  # fmt: skip
        return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], path)

    def traces(self) -> tuple[object, ...]:
        """Return what anything that was let through would have changed."""
        listed = self.project.get("/sessions?limit=200")["items"]
        runs = [
            row["id"]
            for one in listed
            for row in self.project.get(f"/sessions/{one['id']}/runs?limit=200")["items"]
        ]
        calls = len(self.daemon.audit("tool.called"))
        return [one["id"] for one in listed], runs, calls, self.project.get("/sessions/current")


@pytest.fixture(scope="module")
def site(module_path: Path, model: ModelServer) -> Iterator[Site]:
    """Yield the site; its daemon is not running."""
    made = Site(module_path, model)
    yield made
    made.daemon.close()


def _reasons(name: str, table: dict[str, str], used: set[str]) -> list[str]:
    """Return the reasons under which a name stands; `used` takes the lines that say so."""
    lines = [(reason, one.strip()) for reason, rows in table.items() for one in rows.split("\n")]
    found = [(reason, one) for reason, one in lines if one and re.fullmatch(one, name)]
    used |= {one for _, one in found}
    return [reason for reason, _ in found]


def _lines(table: dict[str, str]) -> set[str]:
    return {one.strip() for rows in table.values() for one in rows.split("\n")} - {""}


def _rows(heading: str) -> list[str]:
    part = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"(?m)^\| `([^`]+)` \|", part)


def test_each_route_is_guarded_or_has_a_reason_why_not(site: Site) -> None:
    site.daemon.start()
    document = site.daemon.client.get("/api/v1/openapi.json").json()
    site.daemon.kill()
    served = {
        f"{way.upper()} {path}"
        for path, ways in document["paths"].items()
        for way in ways
        if path.startswith("/api/")
    }
    # Streams and MCP are no part of the document; the page has them, and is compared with the code.
    routes = {one for one in _rows("Routes") if " /api/" in one}
    assert served <= routes
    used: set[str] = set()
    sides = {
        one: (one in GUARDED) + (one in KEPT) + len(_reasons(one, HARMLESS, used)) for one in routes
    }
    assert {one: many for one, many in sides.items() if many != 1} == {}
    assert {*GUARDED, *KEPT} <= routes
    assert _lines(HARMLESS) == used, "a line that names no route"


def test_each_command_is_guarded_or_has_a_reason_why_not() -> None:
    commands = {
        " ".join(one for one in row.split()[1:] if one.islower() or one.startswith("--"))
        for row in _rows("Commands")
    } | {"mcp"}  # without a command it serves an agent
    used: set[str] = set()
    sides = {
        one: (one in COMMANDS) + len(_reasons(one, HARMLESS_COMMANDS, used)) for one in commands
    }
    assert {one: many for one, many in sides.items() if many != 1} == {}
    assert set(COMMANDS) <= commands
    assert _lines(HARMLESS_COMMANDS) == used, "a line that names no command"


def _asked(site: Site, row: str) -> str:
    """Send a request; returns the code with which it is refused, or the whole answer."""
    method, _, path = row.partition(" ")
    path = site.filled(path)
    if method == "WS":
        socket = str(site.daemon.home / "run" / "kaged.sock")
        try:
            with unix_connect(socket, f"ws://kaged{path}") as stream:
                return f"it was let in: {stream.recv(5)!r}"
        except InvalidStatus as refused:
            return str(json.loads(refused.response.body or b"{}")["error"]["code"])
    headers = {"Accept": "application/json, text/event-stream"} if path.endswith("/mcp") else {}
    if "/call/" in path:
        headers = {"X-Kaged-Session": site.current.id}
    got = site.daemon.client.request(method, path, json=GUARDED[row], headers=headers)
    return str(got.json()["error"]["code"]) if got.is_error else got.text


def test_no_request_passes_a_guard_that_is_still_missing(site: Site) -> None:
    site.daemon.start()
    try:
        # All at once, so that each is the first thing that this daemon hears.
        with ThreadPoolExecutor(len(GUARDED)) as pool:
            answers = dict(
                zip(GUARDED, pool.map(lambda row: _asked(site, row), GUARDED), strict=True)
            )
        assert answers == dict.fromkeys(GUARDED, OPENING)
        # Who only looks is not kept waiting.
        shown = site.daemon.get("/projects")["items"][0]["readiness"]
        assert (shown["state"], shown["missing"]) == ("opening", ["scripts"])
        before = site.traces()
    finally:
        site.daemon.kill()
    site.daemon.start()
    try:
        assert site.traces() == before
    finally:
        site.daemon.kill()


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_passes_a_guard_that_is_still_missing(site: Site, name: str) -> None:
    words = [site.other.id if one == "SESSION" else one for one in COMMANDS[name]]
    site.daemon.start()
    try:
        done = site.daemon.cli(*words, cwd=site.project.root, stdin="hello\n", code=None)
        # A call for no project is guarded by what stands before any plugin is started.
        code = "plugin_unavailable" if name == "plugin call" else OPENING
        assert f"[{code}]" in done.out + done.err, done
        assert done.code != 0 or name == "chat", done  # a chat goes on after an error
        assert site.project.get("/sessions/current")["id"] != site.other.id
    finally:
        site.daemon.kill()


def test_what_was_answered_meanwhile_goes_on_when_the_guard_stands(site: Site) -> None:
    daemon, project = site.daemon, site.project
    daemon.start()
    try:
        asked = {talk.id: talk.waiting() for talk in site.questions}
        first, second, third = (asked[talk.id]["request_id"] for talk in site.questions)
        runs = {talk.id: len(talk.runs()) for talk in site.questions}
        project.post(f"/interactions/{first}/answer", {"answers": {"q": "a"}})
        shown = daemon.get(f"/inbox/{second}")
        answer = {"digest": shown["digest"], "answer": {"answers": {"q": "b"}}}
        daemon.post(f"/inbox/{second}/answer", answer)
        daemon.ask("DELETE", f"/projects/{project.id}/interactions/{third}")
        wait_for(lambda: daemon.log().count("sessions.not_resumed") >= len(asked), "the refusals")
        assert {talk.id: len(talk.runs()) for talk in site.questions} == runs
    finally:
        daemon.kill()
    site.guard.unlink()
    daemon.start()
    for talk in site.questions:
        wait_for(lambda talk=talk: "Went on." in str(talk.entries()), "what follows the answer")
