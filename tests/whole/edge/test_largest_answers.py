"""The largest greetings, hook answers, logs and envelopes of guests, while others ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.guests import Guest
from whole.harness.model import ModelServer
from whole.harness.plugin_hooks import PRE, START, Talk
from whole.harness.project import Project
from whole.harness.status_watch import WORST_S, held_up_s

LARGE = Path(__file__).parents[2] / "guests" / "large_messages.py"
GREETING = """
from kit import *
many = lambda: [("%04x" % n).ljust(256, "x") for n in range(1200)]
greet(methods=["a.b", *many()[1:]], notifications=many(), other={"a": many()})
serve(lambda message: answer(message, True))
"""
LOUD = """
from kit import *
greet()
def on(message):
    size, line = message["params"]["size"], message["params"]["line"]
    sys.stderr.buffer.write((line + "\\n").encode() * (size // (len(line) + 1)))
    sys.stderr.buffer.flush()
    answer(message, True)
serve(on)
"""
HOOKED = """
from kit import *
from large import large
greet()
def on(message):
    if not message["method"].startswith("kaged.hook."):
        return answer(message, True)
    at = message["params"].get("role")
    head = '{"jsonrpc":"2.0","id":%d,"result":' % message["id"]
    said = {
        "on_session_start": '{"inject":' + large("text") + "}",
        "pre_compact": '{"role":"compactor","superseded":[],"messages":['
        + ",".join(['{"role":"user","content":"%d"}' % n for n in range(15000)]) + "]}",
    }[message["method"].removeprefix("kaged.hook.")]
    raw((head + said + "}").encode() + b"\\n")
serve(on)
"""


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with a model."""
    made = Daemon(module_path / "h", local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def guest(daemon: Daemon, tmp_path: Path) -> Iterator[Callable[..., Guest]]:
    """Yield a maker of running plugins."""
    made: list[Guest] = []

    def make(program: str, **manifest: Any) -> Guest:
        files = {"large.py": LARGE.read_text(encoding="utf-8")}
        made.append(Guest(daemon, tmp_path, program, files=files, **manifest))
        return made[-1]

    yield make
    for one in made:
        daemon.ask("DELETE", f"/plugins/{one.name}?force=true")


def test_the_largest_greeting_holds_up_nobody(daemon: Daemon, guest: Callable[..., Guest]) -> None:
    made: list[Guest] = []

    def start() -> None:
        made.append(guest(GREETING))
        made[-1].run()

    assert held_up_s(daemon, start) < WORST_S
    assert made[-1].call("a.b") is True
    assert made[-1].state()["state"] == "running"


@pytest.mark.parametrize("line", ["", "x" * 200, "\\x00" * 8000])
def test_what_a_plugin_logs_holds_up_nobody(
    daemon: Daemon, guest: Callable[..., Guest], line: str
) -> None:
    one = guest(LOUD)
    one.run()
    spent_s = held_up_s(daemon, lambda: one.call("a.b", size=4_000_000, line=line))
    assert spent_s < WORST_S
    assert one.state()["state"] == "running"


def test_the_largest_answers_to_hooks_hold_up_nobody_and_reach_no_prompt(
    daemon: Daemon, project: Project, model: ModelServer, guest: Callable[..., Guest]
) -> None:
    one = guest(HOOKED, hooks=[START, PRE], roles=["observer", "compactor"])
    one.run()
    declared = {one.name: {"package": one.name}}
    project.describe(plugins=declared, compaction={"delegate": {"plugin": one.name}})
    project.reload()
    talks: list[Talk] = []

    def begin() -> None:
        talks.append(Talk(project, model))
        talks[-1].say("hello")

    assert held_up_s(daemon, begin) < WORST_S
    assert "xxxx" not in talks[0].prompt(talks[0].words[0])
    wait_for(lambda: one.rows("plugin.hook.failed"), "the refusal of what it injects")
    assert "injects more than" in str(one.rows("plugin.hook.failed")[0]["error_message"])
    talks[0].fill(3)
    assert held_up_s(daemon, talks[0].compact) < WORST_S
    assert one.heard(f"kaged.hook.{PRE}")
