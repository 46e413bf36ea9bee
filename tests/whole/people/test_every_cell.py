"""Every route, event, command and MCP method as everybody who may come in, with real things.

Ann began the things, in a group's chat. Who may do what with them is read off the tables of the
reference pages: a route, event, command or method without a row fails, and so does a row in words
that this test does not know.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.openid import LOCAL, OpenIdServer
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.project import Project
from whole.harness.services import CAGE, CALLER, Bridge, capability, operation, step
from whole.harness.talk import ENDED, fresh

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "reference" / "http-api.md"
WHO_MAY: Final = PAGE.parent / "who-may-do-what.md"
PROJECT: Final = "/api/v1/projects/{project_id}"

STRANGERS: Final = ("stranger", "elsewhere", "service", "signed_in")
"""Nobody in Ann's chat: Cy, Ann herself in another group, a program, Bob alone with the daemon."""
PEOPLE: Final = (*STRANGERS, "member", "owner")
EVERYBODY: Final = (*PEOPLE, "operator")

HIDDEN, NOT_YOURS, YES = "as if it did not exist", "not_yours", "yes"
ON_A_THING: Final[Mapping[str, tuple[str, str, str]]] = {
    # what the table says: (strangers, members of the chat, the operator); the owner always may
    "own sessions, and those of the same group chat": (HIDDEN, YES, YES),
    "own runs, and those of the same group chat": (HIDDEN, YES, YES),
    "own sessions": (HIDDEN, NOT_YOURS, YES),
    "questions that they were asked": (HIDDEN, HIDDEN, YES),
    "what they were asked": (HIDDEN, HIDDEN, YES),
    "requests of their own": (HIDDEN, HIDDEN, YES),
    "own accounts": (HIDDEN, HIDDEN, YES),
    "own links under way": (HIDDEN, HIDDEN, HIDDEN),
    "own accounts, and nobody else's": (HIDDEN, HIDDEN, HIDDEN),
    "what waits for their consent": (HIDDEN, HIDDEN, YES),
    "what was done in own sessions": (HIDDEN, HIDDEN, YES),
}
WHEREVER_SHE_IS: Final = frozenset(
    {"own accounts", "own links under way", "own accounts, and nobody else's"}
)
"""Accounts are a person's, whatever chat they are in."""
IN_A_LIST: Final[Mapping[str, frozenset[str]]] = {
    # ... and who is shown Ann's things where several are listed
    "own sessions, and those of the same group chat": frozenset({"member", "owner", "operator"}),
    "own runs, and those of the same group chat": frozenset({"member", "owner", "operator"}),
    "what was done in own sessions, and those of the same group chat": frozenset(
        {"member", "owner", "operator"}
    ),
    "rows about own sessions and accounts": frozenset({"owner", "operator"}),
    "questions that they were asked": frozenset({"owner", "operator"}),
    "what they were asked": frozenset({"owner", "operator"}),
    "own accounts": frozenset({"elsewhere", "owner", "operator"}),
    "own accounts, and those shared with them": frozenset({"elsewhere", "owner", "operator"}),
    "what waits for their consent": frozenset({"owner", "operator"}),
    "what their own runs took": frozenset({"owner", "operator"}),
    "without comments for the operator": frozenset({"operator"}),
}
SHOWN: Final[Mapping[str, str]] = {"/api/v1/usage": '"ann"'}
"""What shows that something of Ann's is in a list, where it is neither her word nor a session."""
OPEN: Final = frozenset(
    # What is everybody's, or done as oneself: it shows nothing of anybody.
    {
        "the daemon's name", "whether it answers", "themselves", "their browser's session",
        "how to sign in", "whom the provider's token names", "whom the invitation names",
        "whom the token names", "a project that they may use",
        "the loaded projects that they may use", "the tools of the project's agents",
        "as themselves, with the agent's rights", "as themselves", "their own MCP session",
        "a new one of their own", "the workflows that guests may start", "the project's issues",
        "the project's issues, under their own name", "the project's issues, under their name",
        "what accounts can be linked",
    }
)  # fmt: skip
LEADS: Final = "leads: own invitations into teams that they lead"
"""Nobody here leads a team; `test_team_leads.py` tries those who do."""
LAST: Final = (
    ("DELETE", "/api/v1/projects/{project_id}"),
    ("POST", "/api/v1/auth/token/rotate"),
)
"""What ends the others: tried as the operator when everything else was."""


POLICIES: Final = """\
plugins:
  - name: looks
    kind: kaged.pipeline.policies.DenyRules
    hooks: [tool_pre_invoke]
    mode: audit
    config: {rules: [{deny: nothing.at.all, because: it is not there}]}
"""
"""A policy that meets every call and stops none."""


class Scene:
    """The daemon, everybody who comes in, and Ann's things."""

    def __init__(self, daemon: Daemon, project: Project, model: ModelServer) -> None:
        self.daemon, self.project, self.model = daemon, project, model
        self.actors: dict[str, Guest] = {}
        self.spare = ""
        self.signs_in: Callable[[], Guest] | None = None
        self.word = fresh("annsword")
        self.tried: Counter[str] = Counter()
        self.chat: set[str] = set()
        self._account = ""
        self._rich = ""

    @property
    def owner(self) -> Guest:
        return self.actors["owner"]

    def sign_in_again(self) -> None:
        """Let Bob come in once more, after he has signed out."""
        assert self.signs_in is not None
        self.actors["signed_in"].close()
        self.actors["signed_in"] = self.signs_in()

    def session(self) -> str:
        """Return a session of Ann's in which nothing was said."""
        made = str(self.owner.post(f"/projects/{self.project.id}/sessions", {})["id"])
        self.chat.add(made)
        return made

    def talked(self) -> str:
        """Return the session in which her agent wrote a file."""
        if not self._rich:
            self._rich = self.written(self.word)
        return self._rich

    def written(self, word: str) -> str:
        """Return a fresh session in which her agent wrote a file."""
        done = call("file.create", path=f"{word}.txt", content=word)
        self.model.play(word, done, say(f"{word} done."))
        made = self.session()
        self._tell(made, word)
        return made

    def question(self) -> str:
        """Return a question that her agent asks her."""
        word, session = fresh(self.word), self.session()
        self.model.play(word, self._asks(), say("Went on."))
        self._tell(session, word)
        found = self.owner.get(f"/projects/{self.project.id}/interactions?status=pending")["items"]
        return next(str(one["request_id"]) for one in found if one["session_id"] == session)

    def request(self) -> str:
        """Return a request of hers that met a policy."""
        use = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
        made = self.owner.post(f"/projects/{self.project.id}/tools/call", use)
        return str(made["request_id"])

    def _asks(self) -> dict[str, Any]:
        question = {"id": "q", "title": f"{self.word}?", "options": ["yes", "no"]}
        return call("kaged.ask", questions=[question])

    def workflow(self) -> str:
        """Return a run of a workflow that waits for her."""
        word = fresh(self.word)
        self.model.play(word, self._asks(), say("Went on."))
        place = f"/projects/{self.project.id}/workflows/report/runs"
        made = str(self.owner.post(place, {"inputs": {"word": word}})["run_id"])
        self.chat.add(made)
        return made

    def flow(self, hint: str | None = None) -> str:
        """Return a flow in which she links an account."""
        body = {"capability": "post.box", "account_hint": hint}
        return str(self.owner.post("/services/links", body)["flow_id"])

    def account(self) -> str:
        """Return an account that she has linked."""
        flow = self.flow(fresh(self.word))
        done = self.owner.post(f"/services/links/{flow}/complete", {"code": "agreed"})
        return str(done["account_ref"])

    def share(self) -> str:
        """Return a share of an account of hers."""
        body = self.share_of(self.account())
        return str(self.owner.post("/services/shares", body)["share_id"])

    @staticmethod
    def share_of(account: str) -> dict[str, Any]:
        """Return what shares an account with somebody who is not here."""
        named = {"capability": "post.box", "account_ref": account, "person": "dora"}
        return {**named, "operations": ["look"]}

    def plan(self) -> str:
        """Return an operation on her account that waits for her consent."""
        self._account = self._account or self.account()
        text = fresh(self.word)
        given = {"account_ref": self._account, "input": {"text": text}}
        sends = step("invoke", capability="post.box", operation="send", **given)
        self.project.write("send.json", json.dumps({"conversations": [[sends]]}))
        params = {"command": "python3 caller.py send.json"}
        use = {"agent": "primary", "tool": "shell.bash", "params": params}
        made = self.owner.post(f"/projects/{self.project.id}/tools/call", use)["result"]
        assert "capability_mutation_not_confirmed" in made["stdout"], made
        waiting = self.owner.get("/services/approvals")["approvals"]
        (found,) = [one for one in waiting if text in one["summary"]]
        return str(found["plan_id"])

    def _tell(self, session: str, word: str) -> None:
        place = f"/projects/{self.project.id}/sessions/{session}"
        self.owner.post(f"{place}/message", {"text": f"{word} please"})
        wait_for(lambda: self.owner.get(f"{place}/runs")["items"][0]["status"] in ENDED, "its end")

    # -- requests ------------------------------------------------------------------------------

    def thing(self, method: str, path: str) -> Callable[[], dict[str, str]] | None:
        """Return what makes one of Ann's things for a route; None where it names none."""
        if path.endswith("/undo") and method == "POST":
            return lambda: {"session_id": self.written(fresh(self.word))}
        if "{plan_id}" in path:
            return lambda: {"plan_id": self.plan()}
        if path.endswith("/accounts/revoke") or (method, path[-7:]) == ("POST", "/shares"):
            return lambda: {"account_ref": self.account()}
        if "{share_id}" in path:
            return lambda: {"share_id": self.share()}
        if "{session_id}" in path:
            reads = method == "GET" or path.endswith(("/fork", "/compact"))
            return lambda: {"session_id": self.talked() if reads else self.session()}
        if "{run_id}" in path:
            return lambda: {"run_id": self.workflow()}
        if path.startswith("/api/v1/pipeline/"):
            return lambda: {"request_id": self.request()}
        if "{request_id}" in path:
            return lambda: {"request_id": self.question()}
        return (lambda: {"flow_id": self.flow()}) if "{flow_id}" in path else None

    def send(
        self, actor: str, method: str, path: str, named: Mapping[str, str], project: str = ""
    ) -> httpx.Response:
        """Send a request that is well formed, so that nothing but who asks can refuse it."""
        filled = path.replace("{project_id}", project or self.project.id)
        filled = filled.replace("{number}", "1").replace("{name}", "report")
        for name, value in named.items():
            filled = filled.replace(f"{{{name}}}", value)
        filled = re.sub(r"\{\w+\}", "x1", filled)
        self.tried[actor] += 1
        guest = self.actors[actor]
        more: dict[str, Any] = {}
        if method not in {"GET", "DELETE"}:
            more["json"] = self._body(method, path, named)
        if path.endswith("/search"):
            filled += f"?q={self.word}"
        return guest.raw(method, filled, **more)

    def _body(self, method: str, path: str, named: Mapping[str, str]) -> dict[str, Any]:
        use = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
        if path.endswith("/accounts/revoke"):
            return {"user_id": "ann", "capability": "post.box", **named}
        if path.endswith("/services/shares"):
            return self.share_of(named["account_ref"])
        if path.endswith("/undo"):
            return dict(named)
        if path.startswith("/api/v1/inbox/") and "request_id" in named:
            shown = self.owner.get(f"/inbox/{named['request_id']}")
            return {"digest": shown["digest"], "answer": {"answers": {"q": "yes"}}}
        bodies = {
            "/message": {"text": "hello"}, "/compact": {"dry_run": True},
            "/fork": {"switch": False}, "/answer": {"answers": {"q": "yes"}},
            "/tools/call": use, "/tools/explain": use, "/issues": {"title": "It", "body": "."},
            "/comments": {"body": "Yes."}, "/workflows/{name}/runs": {"inputs": {"word": "w"}},
            "/services/links": {"capability": "post.box"}, "/complete": {"code": "123"},
            "/approvals/{plan_id}": {"decision": "deny"},
        }  # fmt: skip
        if method == "PATCH" and path.endswith("{session_id}"):
            return {"title": "mine"}
        return next((body for end, body in bodies.items() if path.endswith(end)), {})


@pytest.fixture(scope="module")
def provider(module_path: Path) -> Iterator[OpenIdServer]:
    made = OpenIdServer(module_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, provider: OpenIdServer) -> Iterator[Daemon]:
    """Yield a daemon with every way in: a front end, a provider, service accounts."""
    box = capability("post.box", operation("look"), operation("send", mutating=True))
    bridge = Bridge(module_path, "post", {"definitions": [box]}, confirm=["box.send"])
    policies = module_path / "policies.yaml"
    policies.write_text(POLICIES, encoding="utf-8")
    named = f'[pipeline]\nfile = "{policies}"\n'
    shared = "[capabilities]\nshare_accounts = true\n"
    config = f"{FRONT_END}{provider.config()}{bridge.toml()}{shared}{named}"
    made = Daemon(module_path / "h", config=config, local=LOCAL + model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def scene(
    daemon: Daemon, module_path: Path, model: ModelServer, provider: OpenIdServer
) -> Iterator[Scene]:
    project = Project(module_path / "work")
    inputs = {"word": {"type": "string", "required": True}}
    report = {"description": "Do it.", "inputs": inputs, "invokable_by": ["operator", "guest"]}
    project.describe(top={"workflows": {"report": report}}, cage=CAGE)
    project.write("a.txt", "one\n")
    shutil.copy(CALLER, project.root / "caller.py")
    made = Scene(daemon, daemon.load(project), model)
    made.spare = daemon.load(Project(module_path / "spare")).id
    token = daemon.cli("service-account", "create", "walker").out.strip()
    url = daemon.url.rstrip("/")
    made.signs_in = lambda: Guest(daemon, Person(), token=provider.access_token("bob", url))
    made.actors = {
        "stranger": Guest(daemon, Person("cy", "private", "private-cy")),
        "elsewhere": Guest(daemon, Person("ann", "group", "g-2")),
        "service": Guest(daemon, Person(), token=token),
        "signed_in": made.signs_in(),
        "member": Guest(daemon, Person("bob", "group", "g-1")),
        "owner": Guest(daemon, Person("ann", "group", "g-1")),
        "operator": Guest(daemon, Person()),
    }
    assert set(made.actors) == set(EVERYBODY)
    project.post("/issues", {"title": "One", "body": ""})
    inside = {"body": f"{made.word} inside", "visibility": "operator_only"}
    project.post("/issues/1/comments", inside)
    made.talked()
    made.plan()
    made.share()
    yield made
    for one in made.actors.values():
        one.close()


def _table() -> dict[tuple[str, str], str]:
    part = PAGE.read_text(encoding="utf-8").partition("## People behind a front end")[2]
    rows = re.findall(
        r"^\| (.*) \| `([A-Z]+) (/[^`]*)` \|$", part.partition("\n## ")[0], re.MULTILINE
    )
    return {(method, path): on for on, method, path in rows}


def _routes(daemon: Daemon) -> list[tuple[str, str]]:
    document = daemon.client.get("/api/v1/openapi.json").json()
    found = [(way.upper(), path) for path, ways in document["paths"].items() for way in ways]
    return sorted(found, key=lambda one: (one in LAST, LAST.index(one) if one in LAST else 0, one))


def _code(got: httpx.Response) -> str:
    return str(got.json()["error"]["code"]) if got.is_error else ""


def _outcome(got: httpx.Response, word: str) -> str:
    """Return what an answer means for whoever asked."""
    code = _code(got)
    if code == "not_yours":
        return NOT_YOURS
    if got.status_code == 404 or code == "capability_auth_flow_invalid":
        assert word not in got.text, got.text
        return HIDDEN
    return code if got.status_code in {401, 403} else YES


def test_every_row_of_the_table_says_whose_things_in_words_that_are_tried_here() -> None:
    known = {*ON_A_THING, *IN_A_LIST, *OPEN, LEADS}
    unknown = {on for way, on in ((one[0], on) for one, on in _table().items()) if way != "WS"}
    assert unknown <= known, unknown - known


def _without_own_reads(rows: str) -> str:
    """Leave out what was read by MCP: such rows are of the reader, and name what they read."""
    kept = [one for one in json.loads(rows)["items"] if one["event"] != "mcp.resource_read"]
    return json.dumps(kept)


class Walk:
    """Tries one route after another and keeps what is not as the table says."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.wrong: list[tuple[object, ...]] = []

    def cell(
        self, actor: str, method: str, path: str, expected: str, named: Mapping[str, str]
    ) -> None:
        """Send a request and see that it means what is expected."""
        got = self.scene.send(actor, method, path, named)
        found = _outcome(got, self.scene.word)
        if found != expected:
            self.wrong.append((method, path, actor, expected, found, got.status_code, got.text))

    def operators(self, method: str, path: str) -> None:
        """Try a route that no row names."""
        for actor in PEOPLE:
            self.cell(actor, method, path, "operator_only", {})
        # What would change something is sent to a project that nobody needs.
        project = self.scene.project.id if method == "GET" else self.scene.spare
        got = self.scene.send("operator", method, path, {}, project)
        assert got.status_code not in {401, 403}, (method, path, got.text)

    def on_a_thing(
        self, method: str, path: str, on: str, make: Callable[[], dict[str, str]]
    ) -> None:
        """Try a route that names one of Ann's things."""
        strangers, members, operator = ON_A_THING[on]
        named = make()
        for actor in STRANGERS:
            if actor == "elsewhere" and on in WHEREVER_SHE_IS:
                self.cell(actor, method, path, YES, make())
            else:
                self.cell(actor, method, path, strangers, named)
        self.cell("member", method, path, members, named)
        # Each of them has it as nobody has changed it yet.
        self.cell("owner", method, path, YES, make())
        self.cell("operator", method, path, operator, make())

    def listed(self, method: str, path: str, on: str) -> None:
        """Try a route that lists things."""
        for actor in EVERYBODY:
            got = self.scene.send(actor, method, path, {})
            text = _without_own_reads(got.text) if path.endswith("/audit") else got.text
            needles = (self.scene.word, self.scene.talked(), SHOWN.get(path, self.scene.word))
            shown = any(one in text for one in needles)
            expected = actor in IN_A_LIST[on]
            if not got.is_success or shown is not expected:
                self.wrong.append((method, path, actor, expected, shown, got.text[:200]))

    def open(self, method: str, path: str) -> None:
        """Try a route that shows nothing of anybody."""
        for actor in EVERYBODY:
            got = self.scene.send(actor, method, path, {})
            # Who gave no cookie cannot end its session; a logout token is the provider's alone.
            refused = got.status_code in {401, 403} and "logout" not in path
            if refused or (actor in STRANGERS and self.scene.word in got.text):
                self.wrong.append((method, path, actor, "open", got.status_code, got.text[:200]))


def _column(heading: str) -> dict[str, str]:
    """Return the rows of one table of the page: who may do what, by its first column."""
    page = WHO_MAY.read_text(encoding="utf-8")
    part = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"(?m)^\| `([^`]+)` \| (.+) \|$", part))


def _all_kinds_of_events(scene: Scene) -> None:
    """Let things happen to Ann's things that are heard of: at least one of each kind."""
    asked = scene.question()
    place = f"/projects/{scene.project.id}"
    scene.owner.post(f"{place}/interactions/{asked}/answer", {"answers": {"q": "yes"}})
    made = scene.written(fresh(scene.word))
    forked = scene.owner.post(f"{place}/sessions/{made}/fork", {"switch": False})["session"]["id"]
    scene.chat.add(forked)
    assert scene.owner.ask("PATCH", f"{place}/sessions/{made}", {"title": scene.word}).is_success
    assert scene.owner.ask("DELETE", f"{place}/sessions/{forked}").is_success
    scene.plan()
    run = scene.workflow()
    scene.owner.post(f"{place}/runs/{run}/cancel")
    scene.project.post("/issues", {"title": "Two", "body": ""})
    scene.project.call("file.read", path="a.txt")


def test_each_event_reaches_whom_it_is_for_and_nobody_else(scene: Scene) -> None:
    """Everybody hears the same stretch of the stream, up to the session that they begin last."""
    topics = _column("Events")
    _all_kinds_of_events(scene)
    place = f"/projects/{scene.project.id}/sessions"
    last = {one: str(scene.actors[one].post(place, {})["id"]) for one in EVERYBODY}
    heard: dict[str, list[dict[str, Any]]] = {}
    for actor in EVERYBODY:
        end = f"session:{last[actor]}"
        with scene.actors[actor].listening("?after=0") as stream:
            heard[actor] = stream.until(lambda one, end=end: one["topic"] == end)
    everything = heard["operator"]
    kinds = {str(one["topic"]).partition(":")[0] for one in everything}
    assert kinds <= {one.partition(":")[0] for one in topics}, "a topic without a row"
    assert kinds >= {"audit", "session", "attention", "tool", "services"}
    for actor in PEOPLE:
        shown = scene.actors[actor].get(f"{place}?limit=200")["items"]
        mine = {str(one["id"]) for one in shown}
        if actor in STRANGERS:
            assert mine.isdisjoint(scene.chat), actor
            assert scene.word not in str(heard[actor]), actor
        else:
            mine |= scene.chat  # those that are deleted by now among them

        def sees(event: dict[str, Any], actor: str = actor, mine: set[str] = mine) -> bool:
            kind, _, session = str(event["topic"]).partition(":")
            who = next(who for one, who in topics.items() if one.partition(":")[0] == kind)
            if who == "who may see the session":
                return session in mine
            if who == "who may answer what is asked":
                return actor == "owner" and event["data"]["owner"] == "ann"
            assert who == "the operator", who
            return False

        wanted = [one for one in everything if sees(one) and one["seq"] <= heard[actor][-1]["seq"]]
        # A session of hers that is deleted is there for nobody who comes later.
        gone = {one["topic"] for one in everything if one["name"] == "session.deleted"}
        wanted = [one for one in wanted if one["topic"] not in gone]
        assert [one for one in heard[actor] if one["topic"] not in gone] == wanted, actor
    names = {str(one["name"]) for one in heard["owner"]}
    assert names >= {
        "session.created", "session.titled", "entry.appended", "run.started",
        "run.ended", "run.completed", "turn.started", "turn.ended", "text.delta", "tool.started",
        "tool.finished", "attention.required", "attention.ended",
    }, names  # fmt: skip
    page = PAGE.read_text(encoding="utf-8")
    assert [one for one in sorted(names) if f"`{one}`" not in page] == []


WORDS: Final[Mapping[str, str]] = {
    "ISSUE": "1", "NUMBER": "1", "STATUS": "resolved", "RUN_ID": f"ses_{0:026}",
    "PLAN": f"plan_{0:032}", "USER": "ann", "CAPABILITY": "post.box", "COUNT": "1",
    "NAMESPACE": "post", "PARAMS": "{}", "CHOICE": "yes", "ALIAS": "default",
}  # fmt: skip
"""What stands for a word in capitals; for all others `x1`, which nobody has."""

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    # ... and what a command needs beside its words, to get as far as the daemon
    "tool call": ("file.read", "path=a.txt"),
    "tool explain": ("file.read", "path=a.txt"),
    "tool list": (),
    "issue create": ("Mine",),
    "issue edit": ("1", "--title", "Mine"),
    "issue comment": ("1", "Yes."),
    "issue move": ("1", "resolved", "--comment", "Done."),
    "issue bind": ("1", "--session", "x1"),
    "workflow run": ("report", "--input", "word=w"),
    "inbox answer": ("x1", "--set", "q=yes"),
    "plugin install": ("/nowhere", "--yes"),
    "plugin upgrade": ("/nowhere", "--yes"),
    "plugin export": ("x1", "/nowhere/x"),
    "session delete": ("x1", "--yes"),
    "audit export": (),
    "people invite": ("dora", "--team", "t"),
    "account share": ("post.box", "x1", "--with", "dora", "-o", "look"),
    "account unshare": ("shr_0",),
}
OF_A_PROJECT: Final = frozenset(
    {"session", "issue", "undo", "todo", "workflow", "inbox", "tool", "lua", "lsp", "skill"}
)
STAYS: Final = frozenset({"run", "chat", "answer", "account link"})
"""What waits for words at a terminal; the routes behind it are tried for themselves."""


def _words(command: str, project: str) -> list[str]:
    named = [one for one in command.split() if one.islower()]
    key = " ".join(named[:2])
    more = NEEDS.get(key)
    if more is None:
        bare = [one.strip("[]….") for one in command.split()[len(named) :]]
        more = tuple(WORDS.get(one, "x1") for one in bare if one)
    if key.startswith("project ") and len(more) == 1:
        more = (project,)
    project_of = named[0] in OF_A_PROJECT and key != "inbox choose"
    return [*named, *more, *(("--project", project) if project_of else ())]


def test_the_page_names_each_command_once() -> None:
    page = (PAGE.parent / "cli.md").read_text(encoding="utf-8")
    listed = re.findall(r"(?m)^\| `kaged ([^`]+)`", page)
    assert [one.removeprefix("kaged ") for one in _column("Commands")] == listed


@pytest.mark.timeout(400)  # more than a hundred commands, one after the other
def test_each_command_of_somebody_who_signed_in_does_what_its_row_says(
    scene: Scene, provider: OpenIdServer, tmp_path: Path
) -> None:
    url, home = scene.daemon.url.rstrip("/"), tmp_path / "far-away"
    home.mkdir(mode=0o700)
    login = {
        "issuer": provider.url, "client_id": "an-mcp-client", "token_endpoint": f"{provider.url}/t",
        "revocation_endpoint": None, "resource": url, "refresh_token": None,
        "access_token": provider.access_token("bob", url), "expires_at_ms": 2**42,
    }  # fmt: skip
    (home / "logins.json").write_text(json.dumps({url: login}), encoding="utf-8")
    (home / "logins.json").chmod(0o600)
    env = {"HOME": str(home), "KAGED_HOME": str(home), "KAGED_URL": url}
    worked: set[str] = set()
    wrong: list[tuple[object, ...]] = []
    for name, who in _column("Commands").items():
        command = name.removeprefix("kaged ")
        if who == "this machine" or " ".join(command.split()[:2]).split(" [")[0] in STAYS:
            continue
        if command.split()[0] in STAYS:
            continue
        words = _words(command, scene.project.id)
        done = scene.daemon.cli(*words, code=None, env=env, cwd=home)
        said = done.out + done.err
        shown = scene.word in said or scene.talked() in said
        refused = "[operator_only]" in said
        if shown or done.code == 2 or refused is not (who in {"the operator", LEADS}):
            wrong.append((words, who, done.code, said[:200]))
        if done.code == 0:
            worked.add(" ".join(words[:2]))
    assert not wrong, "\n".join(map(str, wrong))
    assert worked >= {
        "session list", "session tree", "issue list", "issue create", "tool call", "undo list",
        "workflow list", "workflow run", "account list", "account approvals", "project list",
    }, worked  # fmt: skip
    # The same words of the operator find it.
    own = scene.daemon.cli("session", "list", "--project", scene.project.id).out
    assert scene.talked() in own


METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ping": {},
    "tools/list": {},
    "tools/call": {"name": "file.read", "arguments": {"path": "a.txt"}},
    "resources/list": {"cursor": "sessions.0"},
    "resources/read": {},
    "prompts/list": {},
    "prompts/get": {"name": "none"},
}
ABSENT: Final[Mapping[str, Mapping[str, Any]]] = {
    # the other methods of the protocol
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "none"}, "argument": {"name": "a", "value": "b"},
    },
    "logging/setLevel": {"level": "info"},
    "resources/subscribe": {"uri": "kaged://issues/1"},
    "resources/templates/list": {},
    "resources/unsubscribe": {"uri": "kaged://issues/1"},
    "tasks/list": {},
    "tasks/get": {"taskId": "x"},
    "tasks/cancel": {"taskId": "x"},
}  # fmt: skip
NO_SUCH_METHOD: Final = -32601


def _internal(scene: Scene, actor: str) -> bool:
    said = scene.actors[actor].mcp(scene.project.id, "resources/read", {"uri": "kaged://issues/1"})
    assert "One" in str(said), said
    return scene.word in str(said)


def test_each_method_of_mcp_shows_the_things_of_whoever_asks(scene: Scene) -> None:
    uri = f"kaged://sessions/{scene.talked()}"
    assert set(_column("Methods of MCP")) == {*METHODS, "initialize"}
    for method, params in ABSENT.items():
        said = scene.owner.mcp(scene.project.id, method, params)
        assert said["error"]["code"] == NO_SUCH_METHOD, (method, said)
    issue = {actor: _internal(scene, actor) for actor in EVERYBODY}
    assert not any(issue.values()), issue  # as an agent sees it, whoever asks
    for method, params in METHODS.items():
        asked = {"uri": uri} if method == "resources/read" else params
        for actor in EVERYBODY:
            said = scene.actors[actor].mcp(scene.project.id, method, asked)
            # An error repeats the address that was asked for, and nothing else.
            shown = scene.talked() in str(said.get("result")) or scene.word in str(said)
            expected = method.startswith("resources/") and actor not in STRANGERS
            assert shown is expected, (method, actor, said)


def test_a_session_of_mcp_is_its_clients_alone(scene: Scene) -> None:
    """Whoever learns its number can neither go on with it, nor listen, nor end it."""
    place = f"/api/v1/projects/{scene.project.id}/mcp"
    accept = {"Accept": "application/json, text/event-stream"}
    hello = {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }  # fmt: skip
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    begun = scene.owner.raw("POST", place, json=first, headers=accept)
    named = {**accept, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {}}
    for actor in EVERYBODY:
        if actor == "owner":
            continue
        guest = scene.actors[actor]
        for method, more in (("POST", {"json": ping}), ("GET", {}), ("DELETE", {})):
            got = guest.raw(method, place, headers=named, **more)
            assert got.status_code in {403, 404}, (actor, method, got.status_code, got.text)
    assert scene.owner.raw("POST", place, json=ping, headers=named).is_success
    assert scene.owner.raw("DELETE", place, headers=named).is_success


@pytest.mark.timeout(400)  # nine hundred requests
def test_each_route_answers_everybody_as_the_table_says(scene: Scene) -> None:
    table, tried, walk = _table(), set[tuple[str, str]](), Walk(scene)
    scene.workflow()
    for method, path in _routes(scene.daemon):
        tried.add((method, path))
        if (method, path) == ("GET", "/api/v1/auth/launch"):
            continue  # its token is its own credential, whoever sends it
        on, make = table.get((method, path)), scene.thing(method, path)
        if on is None or on == LEADS:
            walk.operators(method, path)
        elif make is not None:
            walk.on_a_thing(method, path, on, make)
        elif on in IN_A_LIST and (method == "GET" or path.endswith("/accounts/check")):
            walk.listed(method, path, on)
        else:
            walk.open(method, path)
        if (method, path) == ("POST", "/api/v1/auth/logout"):
            scene.sign_in_again()
    assert not walk.wrong, "\n".join(map(str, walk.wrong))
    assert len(tried) > 110
    # MCP and the streams are no part of the document; they are tried for themselves.
    left = {one for one in table if one not in tried}
    assert left == {
        ("GET", f"{PROJECT}/mcp"), ("POST", f"{PROJECT}/mcp"), ("DELETE", f"{PROJECT}/mcp"),
        ("WS", f"{PROJECT}/mcp/stream"), ("WS", "/api/v1/events"),
    }  # fmt: skip
    cells = {actor: scene.tried[actor] for actor in EVERYBODY}
    assert min(cells.values()) > 110, cells
