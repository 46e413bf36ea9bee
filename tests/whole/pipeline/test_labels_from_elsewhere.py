"""Labels that come with what scripts fetch from the web, and with transcripts of other sessions."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon
from whole.harness.mcp import python
from whole.harness.model import ModelServer, call, say
from whole.harness.policies import POST, PRE, PolicySite, spy
from whole.harness.project import Project
from whole.harness.scripts import Scripts
from whole.pipeline.egress import CLASSIFIER, GUARD


@pytest.fixture(scope="module")
def own() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a page where nobody outside writes, and what was asked of it."""
    with _served() as served:
        yield served


@pytest.fixture(scope="module")
def settings(own: tuple[str, list[str]]) -> str:
    trusted = own[0].partition("//")[2].partition("/")[0]
    return f'[lua]\nnet = ["127.0.0.1:*"]\nnet_trusted = ["{trusted}"]\n'


class _Page(http.server.BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        leads_to = parse_qs(urlsplit(self.path).query).get("to")
        if leads_to is None:
            self._answer("text/plain", b"from the net")
            return
        self.asked.append("away")
        self.send_response(302)
        self.send_header("location", leads_to[0])
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self._answer("text/event-stream", b"event: one\ndata: from the net\n\n")

    def _answer(self, kind: str, body: bytes) -> None:
        self.asked.append(self.command)
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own
        """Leave the log empty."""


@contextmanager
def _served() -> Generator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Page", (_Page,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/x", asked
        server.shutdown()


@pytest.fixture
def page() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a page, and what was asked of it."""
    with _served() as served:
        yield served


@pytest.fixture(scope="module")
def scripts(daemon: Daemon, shared: Project) -> Scripts:
    made = Scripts(daemon, shared)
    made.grant(probe=["net"])
    return made


def read_customers(project: Project, model: ModelServer, word: str) -> str:
    """Return the current session, whose agent has read the customers."""
    project.write("customers.txt", "ada@example.org\n")
    model.play(word, call("file.read", path="customers.txt"), say("Read."))
    session = begin(project)
    assert say_to(project, session, word)["status"] == "completed"
    return session


def labelled(daemon: Daemon, session: str) -> list[tuple[list[str], str]]:
    """Return what was put on a session, by whom."""
    rows = [one["data"] for one in daemon.audit("session.labelled")]
    return [(one["labels"], one["source"]) for one in rows if one["session_id"] == session]


def labels_at(site: PolicySite, name: str, hook: str = PRE) -> list[str]:
    """Return the labels at the newest call of a name."""
    seen = [one for one in site.seen("spy", hook) if one["payload"]["name"] == name]
    found: list[str] = seen[-1]["extensions"]["security"]["labels"]
    return found


GET = "return kage.http.get('{}').body"
STREAM = (
    "kage.request_capabilities({{'net'}})\n"
    "return kage.http.post_stream('{}', {{ body = 'x' }}, function() end).status"
)


@pytest.mark.parametrize(("name", "code"), [("kage.http", GET), ("kage.http.post_stream", STREAM)])
def test_what_a_script_fetches_makes_the_session_untrusted(
    daemon: Daemon,
    shared: Project,
    site: PolicySite,
    scripts: Scripts,
    page: tuple[str, list[str]],
    name: str,
    code: str,
) -> None:
    site.put(spy("spy", "read_labels", hooks=[PRE, POST]))
    session = begin(shared)
    assert scripts.eval(code.format(page[0])) in {"from the net", 200}
    assert (labels_at(site, name), labels_at(site, name, POST)) == ([], ["untrusted"])
    assert labelled(daemon, session) == [(["untrusted"], "lua:probe")]
    # Without policies, too: those of tomorrow judge what was read today.
    site.put(spy("late", hooks=["cmf.llm_input"]))
    other = begin(shared)
    scripts.again()
    assert labelled(daemon, other) == [(["untrusted"], "lua:probe")]


@pytest.mark.parametrize("policies", [True, False])
def test_a_place_where_nobody_outside_writes_labels_nothing_and_leads_nowhere_else(
    daemon: Daemon,
    shared: Project,
    site: PolicySite,
    scripts: Scripts,
    page: tuple[str, list[str]],
    own: tuple[str, list[str]],
    policies: bool,
) -> None:
    site.put(spy("spy", "read_labels", hooks=[PRE, POST] if policies else ["cmf.llm_input"]))
    session = begin(shared)
    assert scripts.eval(GET.format(own[0])) == "from the net"
    assert scripts.eval(STREAM.format(own[0])) == 200
    if policies:
        assert labels_at(site, "kage.http.post_stream", POST) == []
    away = f"{own[0]}?to={page[0]}"
    said: Any = scripts.eval(f"return {{ pcall(kage.http.get, '{away}') }}")
    assert said[0] is False
    assert "is not in lua.net_trusted" in said[1]
    assert (own[1][-1], page[1]) == ("away", [])
    assert scripts.eval(GET.format(f"{own[0]}?to={own[0]}")) == "from the net"
    assert labelled(daemon, session) == []
    # The others are what they were, and may lead anywhere.
    assert scripts.eval(GET.format(f"{page[0]}?to={own[0]}")) == "from the net"
    assert labelled(daemon, session) == [(["untrusted"], "lua:probe")]


def test_a_scripts_stream_is_a_way_out_for_which_the_guard_stands(
    shared: Project,
    site: PolicySite,
    scripts: Scripts,
    model: ModelServer,
    page: tuple[str, list[str]],
) -> None:
    site.put(CLASSIFIER, GUARD)
    begin(shared)
    assert scripts.eval(STREAM.format(page[0])) == 200
    assert page[1] == ["POST"]
    read_customers(shared, model, "serval-reads")
    caught = STREAM.replace("return ", "return {{ pcall(function() return ") + " end) }}"
    said: Any = scripts.eval(caught.format(page[0]))
    assert said[0] is False
    assert "data labelled pii may not leave" in said[1]
    assert page[1] == ["POST"]


def test_who_reads_the_transcript_of_a_session_is_held_to_its_labels(
    daemon: Daemon, shared: Project, site: PolicySite, model: ModelServer
) -> None:
    site.put(CLASSIFIER, GUARD, spy("spy", "read_labels", hooks=[PRE]))
    session = read_customers(shared, model, "caracal-reads")
    reads = ("callTool", {"name": "file_read", "arguments": {"path": "a.txt"}})
    python(
        daemon,
        shared,
        reads,
        ("readResource", {"uri": f"kaged://sessions/{session}"}),
        reads,
        transport="http",
    )
    seen = [one["extensions"] for one in site.seen("spy", PRE)][-2:]
    assert [one["security"]["labels"] for one in seen] == [[], ["pii"]]
    (row,) = [
        one["data"]
        for one in daemon.audit("session.labelled")
        if one["data"]["source"] == f"kaged://sessions/{session}"
    ]
    assert row["session_id"] != session
