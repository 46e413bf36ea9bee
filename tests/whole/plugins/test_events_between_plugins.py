"""Events from plugin to plugin: through the host, by capability, and to nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_relay import Relay

PUBLISH, SUBSCRIBE = "kaged:events:publish", "kaged:events:subscribe"


class Listener:
    """A plugin that asks for topics when it is called, and writes down what it is told."""

    def __init__(
        self, daemon: Daemon, root: Path, name: str, topics: list[str], *capabilities: str
    ) -> None:
        self.heard_file = root / f"{name}.jsonl"
        asked = {"ask": ["kaged.events.subscribe", {"topics": topics}]}
        self.folder = PluginFolder(
            daemon,
            root / name,
            {"log": str(self.heard_file), "on": {"a.b": [asked]}},
            name=name,
            capabilities=[*capabilities, f"write:fs:{root}"],
        )
        assert self.folder.run()["state"] == "running"

    def subscribe(self) -> Any:
        """Let it ask for its topics."""
        return self.folder.call("a.b")

    def heard(self) -> list[dict[str, Any]]:
        """Return the events that it was told of."""
        lines = self.heard_file.read_text("utf-8").splitlines()
        told = [json.loads(line) for line in lines]
        return [one["params"] for one in told if one.get("method") == "kaged.event"]


@pytest.fixture
def sender(daemon: Daemon, tmp_path: Path) -> Relay:
    """Return a plugin that may publish."""
    return Relay(
        daemon, tmp_path, f"sender-{tmp_path.name[-4:].lower().replace('_', 'x')}", PUBLISH
    )


@whole("PH-BEY-03")
def test_who_may_and_asked_for_it_hears_an_event_and_nobody_else(
    daemon: Daemon, tmp_path: Path, sender: Relay
) -> None:
    mark = sender.name.removeprefix("sender-")
    one = Listener(daemon, tmp_path, f"one-{mark}", ["build.*"], SUBSCRIBE)
    two = Listener(daemon, tmp_path, f"two-{mark}", ["build.failed"], SUBSCRIBE)
    assert one.subscribe() == {"topics": ["build.*"]}
    two.subscribe()
    for topic in ("build.finished", "build.failed", "deploy.done"):
        said = sender.ask("kaged.events.publish", topic=topic, data={"n": topic})
        assert said == {"result": {"accepted": True}}
    wait_for(lambda: len(one.heard()) >= 2 and two.heard())
    assert [each["topic"] for each in one.heard()] == ["build.finished", "build.failed"]
    assert two.heard() == [
        {"topic": "build.failed", "from": sender.name, "data": {"n": "build.failed"}}
    ]
    rows = sender.folder.audit("plugin.event_published")
    assert [row["data"]["to"] for row in rows] == [
        [one.folder.name],
        [one.folder.name, two.folder.name],
        [],
    ]
    # One that was started anew has asked for nothing yet.
    daemon.post(f"/plugins/{one.folder.name}/restart")
    sender.ask("kaged.events.publish", topic="build.failed", data=None)
    wait_for(lambda: len(two.heard()) == 2)
    assert len(one.heard()) == 2


@whole("PH-BEY-03")
def test_without_the_capability_neither_is_possible(
    daemon: Daemon, tmp_path: Path, sender: Relay
) -> None:
    mark = sender.name.removeprefix("sender-")
    nobody = Relay(daemon, tmp_path, f"nobody-{mark}", "kaged:storage:write")
    for method in ("publish", "subscribe"):
        said = nobody.ask(f"kaged.events.{method}", topic="a.b", topics=["a.b"])
        assert said["error"]["code"] == -32001, method
        assert f"kaged:events:{method}" in said["error"]["message"]
    # One does not include the other, and a plugin's own notifications stay with the host.
    assert sender.ask("kaged.events.subscribe", topics=["a.b"])["error"]["code"] == -32001
    ear = Listener(daemon, tmp_path, f"ear-{mark}", ["a.b"], SUBSCRIBE)
    ear.subscribe()
    assert sender.ask("kaged.event", topic="a.b", data=1)["error"]["code"] == -32601
    sender.ask("kaged.events.publish", topic="a.b", data="last")
    wait_for(ear.heard)
    assert [each["data"] for each in ear.heard()] == ["last"]


@whole("PH-BEY-03")
def test_what_is_no_event_is_refused(sender: Relay) -> None:
    wrong: list[dict[str, Any]] = [
        {"topic": "nodots", "data": 1},
        {"topic": "kaged.own", "data": 1},
        {"data": 1},
        {"topic": "a.b", "data": "x" * 65537},
    ]
    for given in wrong:
        said = sender.ask("kaged.events.publish", **given)
        assert said["error"]["code"] == -32602, given
    many = [("kaged.events.publish", {"topic": "a.b", "data": n}) for n in range(64)]
    said = [each.get("error", {}).get("code") for each in sender.together(*many)]
    assert set(said) == {None, -32005}, "64 at once are more than 50 in a second"


@whole("PH-BEY-03")
def test_consent_says_what_it_means(daemon: Daemon, tmp_path: Path) -> None:
    both = PluginFolder(daemon, tmp_path / "both", name="both", capabilities=[PUBLISH, SUBSCRIBE])
    shown = json.dumps(daemon.post("/plugins/preview", {"path": str(both.root)}))
    assert "send events to other plugins" in shown
    assert "receive the events of other plugins" in shown
