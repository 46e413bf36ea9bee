"""The cost guard of the gallery: it hears what runs take from the daemon, tells, and ends runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.gallery import (
    LIMIT_KIB,
    StandIn,
    command_pid,
    resident_kib,
    set_up,
    write_section,
)
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import ENDED, Listener, fresh, listening

FOREVER_MS = 600_000
WARNING, REACHED, CANCELLED = "costs.warning", "costs.reached", "costs.cancelled"
DAILY = {"tokens_per_day": 10**9}


@pytest.fixture(scope="module")
def apprise() -> Iterator[StandIn]:
    """Yield an Apprise API server."""
    made = StandIn(lambda asked: (200, {"error": None}))
    yield made
    made.close()


@pytest.fixture(scope="module")
def project(daemon: Daemon, module_path: Path) -> Project:
    """Return a project that uses `notify`."""
    return daemon.load(Project(module_path / "p", plugins={"notify": {"package": "notify"}}))


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, apprise: StandIn) -> Iterator[Daemon]:
    """Yield a daemon with the guard, installed by command and asked first."""
    models = model.local_toml() + model.local_toml("house", name="nobody-knows-its-price")
    made = Daemon(module_path / "h", local=models)
    made.start()
    asked = made.cli("plugin", "install", "gallery:cost-guard", stdin="n\n", code=None)
    assert "cost-guard" in asked.out
    assert "cost-guard" not in made.cli("plugin", "list").out
    port = int(made.url.rstrip("/").rpartition(":")[2])
    set_up(
        made, "cost-guard", port, daemon=f"http://localhost:{port}", daemon_token=made.token,
        every_s=1, **DAILY,
    )  # fmt: skip
    set_up(made, "notify", apprise.port, url=apprise.url, key="house", per_hour=1000)
    yield made
    made.close()


def _limit(daemon: Daemon, **limits: Any) -> None:
    """Let the guard keep other limits from now on; what is not named is out of reach."""
    far = dict.fromkeys(("tokens_per_session", "usd_per_session", "usd_per_day"), 10**9)
    usual = {"stop": False, "notify_project": "", **DAILY}
    write_section(daemon, "cost-guard", **{**far, **usual, **limits})
    daemon.post("/plugins/cost-guard/restart")
    wait_for(lambda: _shown(daemon)["connected"])


def _shown(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = daemon.post("/plugins/cost-guard/call/costs.status")["result"]
    return found


def _told(stream: Listener, kind: str, which: str) -> dict[str, Any]:
    """Return what a client of the event stream was told, as soon as it is."""

    def right(event: dict[str, Any]) -> bool:
        return kind in str(event) and which in str(event)

    return next(one for one in stream.until(right) if right(one))


def _count(daemon: Daemon, kind: str) -> int:
    rows = daemon.audit("plugin.notification")
    return len([one for one in rows if kind in str(one)])


def _begin(project: Project, word: str, **more: Any) -> str:
    session = str(project.post("/sessions", {})["id"])
    project.post(f"/sessions/{session}/message", {"text": f"{word} please", **more})
    return session


def _run(project: Project, session: str) -> dict[str, Any]:
    found: dict[str, Any] = project.get(f"/sessions/{session}/runs")["items"][0]
    return found


def _ended(project: Project, session: str) -> dict[str, Any]:
    wait_for(lambda: _run(project, session)["status"] in ENDED)
    return _run(project, session)


def test_a_run_that_goes_beyond_its_sessions_limit_is_cancelled_while_it_runs(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    _limit(daemon, tokens_per_session=30, stop=True)
    word = fresh("dear")
    # After this step the run waits, and is in no sum of runs yet: those are of ended ones.
    first = {**call("file.list", path="."), "usage": {"input_tokens": 40, "output_tokens": 5}}
    model.play(word, first, {**say("Never said."), "latency": FOREVER_MS})
    with listening(daemon, "plugin:cost-guard") as stream:
        session = _begin(project, word)
        run = _ended(project, session)
        assert run["status"] == "cancelled", run
        assert _told(stream, REACHED, session)
        assert _told(stream, CANCELLED, session)
    assert _shown(daemon)["cancelled"] >= 1


def test_near_the_limit_it_warns_once_and_lets_runs_go_on(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    word = fresh("near")
    model.play(word, say("One."))
    session = _begin(project, word)
    used = _ended(project, session)["usage"]
    assert used["cost_usd"] > 0
    before = _count(daemon, WARNING)
    with listening(daemon, "plugin:cost-guard") as stream:
        _limit(daemon, usd_per_session=used["cost_usd"] / 0.9, stop=True)
        _told(stream, WARNING, session)
        looks = _shown(daemon)["looks"]
        wait_for(lambda: _shown(daemon)["looks"] > looks + 1)
        assert _count(daemon, WARNING) == before + 1
        assert not [one for one in stream.heard if REACHED in str(one) and session in str(one)]
        more = fresh("near")
        model.play(more, say("Two."))
        project.post(f"/sessions/{session}/message", {"text": f"{more} please"})
        assert _ended(project, session)["status"] == "completed"
        _told(stream, REACHED, session)


def test_a_spent_day_ends_the_runs_of_all_sessions_until_the_limit_is_raised(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    spent = fresh("spent")
    model.play(spent, say("One."))
    _ended(project, _begin(project, spent))
    wait_for(lambda: (_shown(daemon)["day"] or {}).get("tokens"))
    before = _shown(daemon)["day"]
    with listening(daemon, "plugin:cost-guard") as stream:
        _limit(daemon, tokens_per_day=before["tokens"])
        _told(stream, REACHED, before["date"])
    word = fresh("only-told")
    model.play(word, {**say("Never said."), "latency": FOREVER_MS})
    session = _begin(project, word)
    looks = _shown(daemon)["looks"]
    wait_for(lambda: _shown(daemon)["looks"] > looks + 1)
    assert _run(project, session)["status"] == "running"
    _limit(daemon, tokens_per_day=before["tokens"], stop=True)
    slow = [fresh("slow"), fresh("slow")]
    for one in slow:
        model.play(one, {**say("Never said."), "latency": FOREVER_MS})
    sessions = [_begin(project, one) for one in slow]
    ends = [_ended(project, one)["status"] for one in (session, *sessions)]
    assert ends == ["cancelled"] * 3
    _limit(daemon, stop=True)
    again = fresh("again")
    model.play(again, say("Fine."))
    assert _ended(project, _begin(project, again))["status"] == "completed"


def test_people_hear_of_it_through_notify_where_a_project_uses_that(
    daemon: Daemon, project: Project, model: ModelServer, apprise: StandIn
) -> None:
    word = fresh("told")
    model.play(word, say("One."))
    session = _begin(project, word)
    _ended(project, session)
    apprise.take()
    _limit(daemon, tokens_per_session=1, notify_project=project.id)

    def bodies() -> list[str]:
        return [one.body["body"] for one in apprise.asked if session in one.body["body"]]

    [body] = wait_for(bodies)
    assert body.startswith(f"Session {session} has reached its limit: ")
    # One that cannot be told is in the log, and guarding goes on.
    _limit(daemon, tokens_per_session=1, notify_project="prj_00000000000000000000000000")
    wait_for(lambda: "notify.send" in str(daemon.get("/plugins/cost-guard/logs")))
    looks = _shown(daemon)["looks"]
    wait_for(lambda: _shown(daemon)["looks"] > looks)


def test_what_has_no_price_is_told_where_the_limit_is_in_dollars(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    word = fresh("free")
    model.play(word, say("Who knows."))
    session = _begin(project, word, model="house")
    assert _ended(project, session)["usage"]["cost_usd"] is None
    with listening(daemon, "plugin:cost-guard") as stream:
        _limit(daemon, usd_per_session=1000)
        assert "'unpriced': 1" in str(_told(stream, WARNING, session))


def test_without_a_limit_or_a_daemon_it_guards_nothing_and_says_so(daemon: Daemon) -> None:
    daemon.post("/plugins/cost-guard/restart")
    kib = resident_kib(command_pid(daemon.get("/plugins/cost-guard")["pid"]))
    assert kib <= LIMIT_KIB, kib
    write_section(daemon, "cost-guard", daemon_token="wrong")
    daemon.post("/plugins/cost-guard/restart")
    wait_for(lambda: "401" in str(daemon.get("/plugins/cost-guard/logs")))
    assert _shown(daemon)["connected"] is False
