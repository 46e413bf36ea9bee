"""Labels at plugin methods that are called for a session: they are seen there, and stay there.

A file of customers was read in a session. A method of a plugin that reaches the network is then
refused to it, and what a policy or the host says of a method's answer is on the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.plugin import PluginFolder
from whole.harness.policies import POST, PRE, PolicySite, spy
from whole.harness.project import Project
from whole.pipeline.egress import CLASSIFIER, GUARD

ECHO = {"on": {"a.b": [{"echo": True}]}}
SESSION = "X-Kaged-Session"


@pytest.fixture(scope="module")
def settings() -> str:
    """Return a front end that says who people are."""
    return FRONT_END


@pytest.fixture(scope="module")
def mailer(daemon: Daemon, module_path: Path) -> PluginFolder:
    """Return a plugin that may connect elsewhere."""
    made = PluginFolder(
        daemon, module_path / "mailer", ECHO, name="mailer", capabilities=["net:127.0.0.1:9"]
    )
    made.run()
    return made


@pytest.fixture(scope="module")
def notes(daemon: Daemon, module_path: Path) -> PluginFolder:
    """Return a plugin that reaches nothing."""
    made = PluginFolder(daemon, module_path / "notes", ECHO, name="notes")
    made.run()
    return made


@pytest.fixture(scope="module")
def ann(daemon: Daemon) -> Iterator[Guest]:
    made = Guest(daemon, Person("ann", "private", "chat-ann"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def office(site: PolicySite, shared: Project) -> Project:
    """Return the module's project, with the guard in force."""
    site.put(CLASSIFIER, GUARD, spy("spy", "read_labels", hooks=[PRE, POST]))
    shared.write("customers.txt", "ada@example.org\n")
    return shared


def told(plugin: PluginFolder, session: str | None, **params: Any) -> dict[str, Any]:
    """Call a method for a session; returns the body, whatever it says."""
    headers = {} if session is None else {SESSION: session}
    path = f"/api/v1/plugins/{plugin.name}/call/a.b"
    got: dict[str, Any] = plugin.daemon.client.post(path, json=params, headers=headers).json()
    return got


def labels_at(site: PolicySite, name: str, hook: str = PRE) -> list[str]:
    """Return the labels that the newest call of a method had."""
    seen = [one for one in site.seen("spy", hook) if one["payload"]["name"] == name]
    found: list[str] = seen[-1]["extensions"]["security"]["labels"]
    return found


def labelled(daemon: Daemon, session: str) -> list[tuple[list[str], str]]:
    """Return what the audit log says was put on a session, by which calls."""
    rows = [one["data"] for one in daemon.audit("session.labelled")]
    return [(one["labels"], one["source"]) for one in rows if one["session_id"] == session]


def read_customers(project: Project, model: ModelServer, word: str) -> str:
    """Return a session whose agent has read the file."""
    model.play(word, call("file.read", path="customers.txt"), say("Read."))
    session = begin(project)
    assert say_to(project, session, word)["status"] == "completed"
    return session


def test_what_a_session_has_read_does_not_leave_by_a_plugins_method(
    daemon: Daemon, office: Project, model: ModelServer, mailer: PluginFolder, notes: PluginFolder
) -> None:
    session = read_customers(office, model, "tapir-reads")
    other = begin(office)
    refused = told(mailer, session, text="hello")["error"]
    assert refused["code"] == "capability_denied"
    assert refused["data"]["policy"] == "egress"
    assert mailer.audit("plugin.method_called") == []
    (row,) = mailer.audit("plugin.method_denied")
    assert row["data"]["denied_by"] == "egress"
    # Neither a plugin that reaches nothing is held up, nor another session, nor the daemon itself.
    assert told(notes, session, text="hello")["result"]["text"] == "hello"
    assert told(mailer, other, text="hello")["result"]["text"] == "hello"
    assert told(mailer, None, text="hello")["result"]["text"] == "hello"


def test_a_label_on_a_methods_answer_stays_with_the_session(
    daemon: Daemon, office: Project, site: PolicySite, notes: PluginFolder, mailer: PluginFolder
) -> None:
    session = begin(office)
    assert told(notes, session, text="ada@example.org")["result"]["text"] == "ada@example.org"
    assert labelled(daemon, session) == [(["pii"], "notes.a.b")]
    told(notes, session, text="nothing")
    assert labels_at(site, "notes.a.b") == ["pii"]
    assert told(mailer, session)["error"]["data"]["policy"] == "egress"
    # A call that names no session labels none.
    before = len(daemon.audit("session.labelled"))
    told(notes, None, text="ada@example.org")
    assert len(daemon.audit("session.labelled")) == before


def test_tools_of_the_session_are_held_to_what_a_method_brought(
    daemon: Daemon, office: Project, site: PolicySite, model: ModelServer, notes: PluginFolder
) -> None:
    session = begin(office)
    told(notes, session, text="ada@example.org")
    model.play("tapir-tools", call("file.read", path="a.txt"), say("Read."))
    say_to(office, session, "tapir-tools")
    assert labels_at(site, "file.read") == ["pii"]


def test_answers_of_a_plugin_that_reaches_the_network_are_untrusted(
    daemon: Daemon, office: Project, site: PolicySite, mailer: PluginFolder, notes: PluginFolder
) -> None:
    session = begin(office)
    told(mailer, session, text="hello")
    assert (labels_at(site, "mailer.a.b"), labels_at(site, "mailer.a.b", POST)) == (
        [],
        ["untrusted"],
    )
    assert labelled(daemon, session) == [(["untrusted"], "mailer.a.b")]
    told(notes, session)
    assert labels_at(site, "notes.a.b") == ["untrusted"]


def test_a_person_labels_no_session_of_another(
    daemon: Daemon, office: Project, ann: Guest, notes: PluginFolder
) -> None:
    session = begin(office)
    got = ann.raw(
        "POST",
        "/api/v1/plugins/notes/call/a.b",
        json={"text": "ada@example.org"},
        headers={SESSION: session},
    )
    assert got.status_code == 404
    assert labelled(daemon, session) == []


def test_a_restart_keeps_the_labels_of_methods_and_no_policies_need_be_there_for_the_hosts(
    daemon: Daemon, office: Project, site: PolicySite, notes: PluginFolder, mailer: PluginFolder
) -> None:
    session, plain = begin(office), begin(office)
    told(notes, session, text="ada@example.org")
    site.put(spy("late", hooks=["cmf.llm_input"]))
    told(mailer, plain)
    assert labelled(daemon, plain) == [(["untrusted"], "mailer.a.b")]
    site.put(CLASSIFIER, GUARD, spy("spy", "read_labels", hooks=[PRE, POST]))
    loads = len(site.loads())
    daemon.kill()
    daemon.start()
    wait_for(lambda: len(site.loads()) > loads)
    wait_for(lambda: mailer.state()["state"] == "running")
    assert told(mailer, session)["error"]["data"]["policy"] == "egress"
