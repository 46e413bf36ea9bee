"""What plugins push: recorded, forwarded to who listens to that plugin, and limited in number."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, unix_connect

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import Guest

PUSHES = """
from kit import *
greet()
def on(message):
    params = message["params"]
    for _ in range(params.get("times", 1)):
        notify(params["kind"], params.get("body", {}))
    answer(message, "pushed")
serve(on)
"""


@contextlib.contextmanager
def listening(daemon: Daemon, topics: str) -> Generator[ClientConnection]:
    """Listen to the daemon's events, as a page in a browser does."""
    sock = str(next(daemon.home.rglob("*.sock")))
    address = f"ws://kaged/api/v1/events?topics={topics}"
    with unix_connect(sock, address) as link:
        assert json.loads(link.recv())["type"] == "hello"
        yield link


def arrived(link: ClientConnection, until: str) -> list[dict[str, Any]]:
    """Return the events up to the one of this kind."""
    found: list[dict[str, Any]] = []
    while True:
        message = json.loads(link.recv(timeout=20))
        if message["type"] != "event":
            continue
        found.append(message)
        if until in json.dumps(message):
            return found


@pytest.fixture(scope="module")
def pushing(daemon: Daemon, module_path: Path) -> Guest:
    """Return a plugin that pushes what it is told to push."""
    made = Guest(daemon, module_path, PUSHES, name="pushing")
    assert made.run()["state"] == "running"
    return made


@pytest.fixture(scope="module")
def neighbour(daemon: Daemon, module_path: Path) -> Guest:
    """Return a second plugin of the same kind."""
    made = Guest(daemon, module_path, PUSHES, name="neighbour")
    assert made.run()["state"] == "running"
    return made


@whole("PH-NOTIF-02", "PH-NOTIF-03", "PH-NOTIF-04")
def test_a_notification_is_recorded_once_and_forwarded_to_who_listens_to_that_plugin(
    daemon: Daemon, pushing: Guest, neighbour: Guest
) -> None:
    with (
        listening(daemon, "plugin:pushing") as mine,
        listening(daemon, "plugin:neighbour") as theirs,
        listening(daemon, "plugin") as all_of_them,
    ):
        pushing.call(kind="catalog.updated", body={"entries": [1, 2]})
        neighbour.call(kind="last.word", body={})
        pushing.call(kind="last.word", body={})
        got = arrived(mine, "last.word")
        assert [one["topic"] for one in got] == ["plugin:pushing"] * 2
        assert "catalog.updated" in json.dumps(got[0])
        assert {"entries": [1, 2]} in got[0]["data"].values()
        others = arrived(theirs, "last.word")
        assert [one["topic"] for one in others] == ["plugin:neighbour"]
        every = arrived(all_of_them, "catalog.updated")
        assert every[-1]["data"] == got[0]["data"]
    rows = exactly(
        1, lambda: [x for x in pushing.rows("plugin.notification") if "updated" in str(x)]
    )
    assert (rows[0]["name"], rows[0]["notification_type"]) == ("pushing", "catalog.updated")
    answered = [one for one in pushing.heard() if "method" not in one]
    assert answered == [], "nothing is ever written back"


@whole("PH-NOTIF-01", "PH-AMB-49")
@pytest.mark.parametrize(
    ("kind", "fine"),
    [
        ("catalog.updated", True),
        ("a.b.c.d", True),
        ("Catalog", False),
        ("Catalog.updated", False),
        ("catalog", False),
        ("a.b.c.d.e", False),
        ("kaged.x", False),
        ("system.rate_limited", False),
        ("a..b", False),
    ],
)
def test_names_of_notifications_obey_the_rules_of_methods(
    pushing: Guest, kind: str, fine: bool
) -> None:
    accepted = len(pushing.rows("plugin.notification"))
    violations = len(pushing.rows("plugin.protocol_violation"))
    pushing.call(kind=kind)
    wanted = (accepted + 1, violations) if fine else (accepted, violations + 1)
    wait_for(
        lambda: (
            (
                len(pushing.rows("plugin.notification")),
                len(pushing.rows("plugin.protocol_violation")),
            )
            == wanted
        )
    )
    if not fine:
        found = pushing.rows("plugin.protocol_violation")[-1]
        assert found["violation_type"] == "notification_name"
    assert pushing.state()["state"] == "running"
    assert pushing.rows("plugin.crashed") == []


@whole("PH-AMB-49")
def test_a_notification_that_was_not_announced_is_a_warning_and_nothing_more(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, PUSHES, notifications=["from.manifest"])
    guest.run()
    for kind in ("x.y", "from.manifest", "never.announced"):
        guest.call(kind=kind)
    rows = exactly(3, lambda: guest.rows("plugin.notification"))
    assert [one["declared"] for one in rows] == [True, True, False]
    (warning,) = guest.logged("plugin.notification_undeclared")
    assert "never.announced" in warning
    assert '"warning"' in warning


@whole("PH-NOTIF-05", "PH-NOTIF-06", "PH-NOTIF-07", "PH-NOTIF-08")
def test_a_flood_is_cut_told_and_survived(daemon: Daemon, neighbour: Guest, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, PUSHES)
    guest.run()
    with listening(daemon, f"plugin:{guest.name}") as mine:
        assert guest.call(kind="x.y", times=150) == "pushed"
        # PH-NOTIF-09: the neighbour is not the one who floods.
        before = len(neighbour.rows("plugin.notification"))
        neighbour.call(kind="x.y")
        exactly(before + 1, lambda: neighbour.rows("plugin.notification"))
        assert guest.call(kind="calm.word", times=0) == "pushed"
        assert guest.state()["state"] == "running"
        (flood,) = exactly(1, lambda: guest.rows("plugin.notification_flood"))
        assert flood["name"] == guest.name
        assert flood["rate"] > 100
        assert len(guest.logged("plugin.notifications_dropped")) == 1
        (told,) = exactly(1, lambda: guest.heard("system.rate_limited"))
        assert "id" not in told
        assert len(guest.rows("plugin.notification")) == 100
        # PH-NOTIF-10: once the second is over, notifications are accepted again.
        wait_for(
            lambda: (
                guest.call(kind="again.accepted")
                and [x for x in guest.rows("plugin.notification") if "again" in str(x)]
            )
        )
        got = arrived(mine, "again.accepted")
        assert len(got) == 101
        assert [one for one in got if "again.accepted" in json.dumps(one)] == got[-1:]
        # The next flood is told like the first.
        guest.call(kind="x.y", times=150)
        exactly(2, lambda: guest.rows("plugin.notification_flood"))
        exactly(2, lambda: guest.heard("system.rate_limited"))
    assert guest.rows("plugin.crashed") == []


@whole("PH-NOTIF-09", "PH-NOTIF-10")
def test_the_limit_is_each_plugins_own_and_ends_with_the_second(
    daemon: Daemon, neighbour: Guest, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, PUSHES)
    guest.run()
    with listening(daemon, "plugin:neighbour") as theirs:
        guest.call(kind="x.y", times=400)
        neighbour.call(kind="only.one", body={"n": 1})
        assert len(arrived(theirs, "only.one")) == 1
    guest.await_rows("plugin.notification_flood")
    accepted = wait_for(
        lambda: (
            guest.call(kind="after.flood")
            and [x for x in guest.rows("plugin.notification") if "after.flood" in str(x)]
        )
    )
    assert len(accepted) == 1


@whole("PH-WIRE-22")
def test_a_plugin_may_push_unasked_while_a_call_is_open(daemon: Daemon, tmp_path: Path) -> None:
    unasked = """
from kit import *
greet()
def on(message):
    notify("x.y", {"while": "open"})
    while not os.path.exists(DIARY + ".go"):
        time.sleep(0.01)
    answer(message, "late")
threading.Thread(target=lambda: (time.sleep(0.3), notify("x.y", {"by": "itself"}))).start()
serve(on)
"""
    guest = Guest(daemon, tmp_path, unasked)
    guest.run()
    guest.await_rows("plugin.notification")
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(guest.call)
        guest.await_rows("plugin.notification", 2)
        assert not calling.done()
        (guest.shared / "diary.go").touch()
        assert calling.result() == "late"
