"""A command wants to connect: the connection is held while somebody is asked."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from whole.access.conftest import Asking
from whole.harness.conversation import ended
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call

TEXT = """\
version: 1
project: {name}
primary:
  model: default
  system_prompt: You help.
  on_denied: ask
  cage:
    fs: [ {{ mode: rw, path: ./src }} ]
    net:
      allow:
        - "granted.invalid:443"  # as ever
    capabilities: [ shell ]
  tools: {{ "shell.*": {{ enabled: true }} }}
"""

PROGRAM = """\
import socket, sys, threading
def knock(host, port):
    try:
        with socket.create_connection((host, int(port)), 90) as one:
            one.settimeout(90)
            print("got", one.recv(10))
    except OSError as error:
        print("failed", type(error).__name__)
threads = [threading.Thread(target=knock, args=each.rsplit(":", 1)) for each in sys.argv[1:]]
[one.start() for one in threads]
[one.join() for one in threads]
"""


@pytest.fixture
def net(daemon: Daemon, tmp_path: Path, model: ModelServer) -> Asking:
    """Return a project whose agent runs commands, with one host of its own."""
    made = Asking(daemon, tmp_path / "net", model, TEXT.format(name="net"))
    made.project.write("src/knock.py", PROGRAM)
    return made


def knocks(*targets: str) -> dict[str, Any]:
    """Return a turn whose command connects to several places at once."""
    command = f"python3 knock.py {' '.join(targets)}"
    return call("shell.bash", command=command, cwd="src", timeout=120_000)


def seen(net: Asking, event: str) -> list[tuple[str, int]]:
    """Return where connections went, or were kept from."""
    rows = [one["data"] for one in net.daemon.audit(event)]
    return [(one["host"], one["port"]) for one in rows]


def asked(net: Asking) -> int:
    """Return how many questions there were in the project."""
    return len(net.daemon.audit("inbox.asked", project_id=net.project.id))


def test_several_connections_to_a_host_are_one_question_and_no_refuses_them(net: Asking) -> None:
    session, run = net.begin(knocks("no.invalid:443", "no.invalid:443", "no.invalid:443"))
    one = net.question()
    assert one["title"] == "Let primary connect to no.invalid, port 443?"
    assert '  +        - "no.invalid:443"' in one["details"], one["details"]
    net.answer(one, "no")
    assert net.calls(session, run) == ["completed"]
    assert seen(net, "cage.net.denied").count(("no.invalid", 443)) >= 1
    assert ("no.invalid", 443) not in seen(net, "cage.net.connected")
    assert asked(net) == 1


def test_a_granted_host_is_let_through_and_not_asked_about_again(net: Asking) -> None:
    session, run = net.begin(
        knocks("yes.invalid:443", "yes.invalid:443"), knocks("yes.invalid:443")
    )
    net.answer(net.question(), "session")
    assert net.calls(session, run) == ["completed", "completed"]
    # The gate went on to look for it; that there is no such host is another matter.
    assert ("yes.invalid", 443) in seen(net, "cage.net.connected")
    assert ("yes.invalid", 443) not in seen(net, "cage.net.denied")
    assert asked(net) == 1
    # Another port is another question.
    session, run = net.begin(knocks("yes.invalid:80"), session=session)
    net.answer(net.question(), "no")
    net.calls(session, run)


def test_once_is_as_long_as_the_command_runs(net: Asking) -> None:
    session, run = net.begin(knocks("once.invalid:443"), knocks("once.invalid:443"))
    first = net.question()
    net.answer(first, "once")
    again = wait_for(lambda: [one for one in net.waiting() if one["id"] != first["id"]], "again")
    net.answer(again[0], "no")
    assert net.calls(session, run) == ["completed", "completed"]


def test_always_is_written_while_the_command_runs(net: Asking) -> None:
    session, run = net.begin(knocks("always.invalid:443"))
    net.answer(net.question(), "always")
    assert net.calls(session, run) == ["completed"]
    text = net.project.read(".kaged/project.yaml")
    assert '        - "granted.invalid:443"  # as ever\n        - "always.invalid:443"\n' in text
    assert net.daemon.get(f"/projects/{net.project.id}")["trusted"]
    assert net.unasked(knocks("always.invalid:443", "granted.invalid:443")) == ["completed"]


def test_this_machine_and_addresses_of_its_network_are_never_asked_about(net: Asking) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        places = (f"localhost:{port}", "169.254.169.254:80", f"10.0.0.1:{port}")
        assert net.unasked(knocks(*places)) == ["completed"]
        listening.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listening.accept()
    assert asked(net) == 0


def test_a_canceled_run_lets_the_connection_go(net: Asking) -> None:
    session, run = net.begin(knocks("gone.invalid:443"))
    net.question()
    net.project.post(f"/sessions/{session}/cancel")
    assert ended(net.project, session, run)["status"] == "cancelled"
    wait_for(lambda: not net.waiting(), "the end of the question")
