"""The plugins of the gallery in their cages, against services that speak as the real ones do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.gallery import (
    LIMIT_KIB,
    Asked,
    Reply,
    StandIn,
    command_pid,
    resident_kib,
    set_up,
    write_section,
)
from whole.harness.model import ModelServer
from whole.harness.project import Project

CALLED_KIB = 18_900
"""What it may take once it was called; with TLS, which none of these uses itself, it is 20,400."""
ROOT = Path(__file__).parents[3] / "plugins"
ISSUE = {
    "number": 7, "title": "It leaks", "state": "open", "user": {"login": "ann"}, "body": "Water.",
    "labels": [{"name": "bug"}], "html_url": "https://github.com/sea/boats/issues/7",
    "updated_at": "2026-11-01T10:00:00Z",
}  # fmt: skip
PULL = {**ISSUE, "number": 8, "pull_request": {"url": "x"}}
GITLAB_ISSUE = {
    "id": 9001, "iid": 3, "title": "Rudder", "state": "opened", "author": {"username": "bo"},
    "labels": ["bug"], "web_url": "https://gitlab.com/sea/boats/-/issues/3",
    "updated_at": "2026-11-02T10:00:00Z", "description": "Stuck.",
}  # fmt: skip
FEED = """\
BEGIN:VCALENDAR
BEGIN:VEVENT
UID:standup
DTSTART;TZID=Europe/Berlin:20261102T090000
DTEND;TZID=Europe/Berlin:20261102T093000
RRULE:FREQ=WEEKLY;BYDAY=MO,WE;UNTIL=20261130T235959Z
EXDATE;TZID=Europe/Berlin:20261118T090000
SUMMARY:Stand-up\\, with
  tea
BEGIN:VALARM
TRIGGER:-PT5M
END:VALARM
END:VEVENT
BEGIN:VEVENT
UID:standup
RECURRENCE-ID;TZID=Europe/Berlin:20261123T090000
DTSTART;TZID=Europe/Berlin:20261123T110000
DURATION:PT30M
SUMMARY:Stand-up later
END:VEVENT
BEGIN:VEVENT
UID:dentist
DTSTART:20261123T101500Z
DTEND:20261123T110000Z
SUMMARY:Dentist
LOCATION:Harbour 1
END:VEVENT
BEGIN:VEVENT
UID:off
DTSTART;VALUE=DATE:20261124
DTEND;VALUE=DATE:20261126
SUMMARY:Off
END:VEVENT
BEGIN:VEVENT
UID:gone
DTSTART:20261123T120000Z
STATUS:CANCELLED
SUMMARY:Cancelled
END:VEVENT
END:VCALENDAR
""".replace("\n", "\r\n")


def apprise(asked: Asked) -> Reply:
    """Answer as an Apprise API server: `POST /notify/KEY`."""
    if asked.path != "/notify/house":
        return 204, ""
    return (424, {"error": "failed"}) if asked.body["body"] == "boom" else (200, {"error": None})


def code_host(asked: Asked) -> Reply:
    """Answer as GitHub's REST API, and below `/api/v4` as GitLab's."""
    if asked.path.startswith("/api/v4/"):
        if asked.headers.get("private-token") != "glpat-1":
            return 401, {"message": "401 Unauthorized"}
        if asked.path.endswith("/notes") and asked.method == "GET":
            note = {"author": {"username": "bo"}, "created_at": "2026-11-02", "body": "Yes."}
            return 200, [note, {**note, "system": True, "body": "closed"}]
        return 200, (GITLAB_ISSUE if asked.path.endswith("/3") else [GITLAB_ISSUE])
    if asked.headers.get("authorization") != "Bearer ghp_1":
        return 401, {"message": "Bad credentials"}
    if not asked.path.startswith("/repos/sea/boats/"):
        return 404, {"message": "Not Found"}
    rest = asked.path.removeprefix("/repos/sea/boats")
    if asked.method == "POST":
        made = {**ISSUE, "number": 9, "title": (asked.body or {}).get("title", "")}
        return 201, {"id": 555} if rest.endswith("/comments") else made
    if rest == "/issues/7/comments":
        return 200, [{"user": {"login": "bo"}, "created_at": "2026-11-01", "body": "Bail."}]
    return 200, (ISSUE if rest == "/issues/7" else [ISSUE, PULL])


def search_engine(asked: Asked) -> Reply:
    """Answer as SearXNG with its JSON format, as Brave, and as a service for embeddings."""
    if asked.path == "/v1/embeddings":
        rows = [
            {
                "object": "embedding",
                "index": index,
                "embedding": [float("schedule" in text or "deploy" in text), 0.1],
            }
            for index, text in enumerate(asked.body["input"])
        ]
        return 200, {"object": "list", "data": rows[::-1], "model": asked.body["model"]}
    hit = {"title": "A <b>boat</b>", "url": "https://example.org/boat"}
    if asked.path == "/search" and asked.query.get("format") == "json":
        rows = [{**hit, "content": "It\n floats."}, {"title": "x", "url": "javascript:1"}]
        return 200, {"query": asked.query["q"], "results": rows * 2}
    if asked.path == "/res/v1/web/search":
        if asked.headers.get("x-subscription-token") != "BSA1":
            return 422, {"error": {}}
        return 200, {"web": {"results": [{**hit, "description": "It <strong>sinks</strong>."}]}}
    return 403, "Forbidden"


def calendar(asked: Asked) -> Reply:
    """Answer as a calendar's public address does."""
    if asked.path != "/ann.ics":
        return 404, "no"
    if asked.headers.get("if-none-match") == '"v1"':
        return 304, ""
    return 200, FEED, {"ETag": '"v1"', "Content-Type": "text/calendar"}


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, StandIn]]:
    """Yield the services that the plugins ask."""
    answers = {
        "notify": apprise, "issues": code_host, "search": search_engine, "calendar": calendar
    }  # fmt: skip
    made = {name: StandIn(answer) for name, answer in answers.items()}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, services: dict[str, StandIn]) -> Iterator[Daemon]:
    """Yield a daemon whose operator has set up the plugins that ask outside."""
    made = Daemon(module_path / "h", local=model.local_toml())
    made.start()
    hosts = {name: one.port for name, one in services.items()}
    set_up(made, "notify", hosts["notify"], url=services["notify"].url, key="house", per_hour=4)
    set_up(
        made, "issues", hosts["issues"], url=services["issues"].url, token="ghp_1",
        repositories=["sea/*", "land/cars"], allow_writes=False,
    )  # fmt: skip
    set_up(made, "web-search", hosts["search"], url=services["search"].url)
    feeds = {"Ann": f"{services['calendar'].url}/ann.ics", "Bo": f"{services['calendar'].url}/bo"}
    set_up(made, "calendar-digest", hosts["calendar"], feeds=feeds, zone="Europe/Berlin")
    yield made
    made.close()


@pytest.fixture(scope="module")
def boats(daemon: Daemon, module_path: Path) -> Project:
    """Return a project that uses all of them."""
    plugins = _declared(repository="sea/boats")
    return daemon.load(Project(module_path / "boats", plugins=plugins))


def test_the_gallery_lists_what_can_be_installed_and_asks_first(daemon: Daemon) -> None:
    listed = daemon.cli("plugin", "gallery").out
    for name in (
        "notify",
        "issues",
        "web-search",
        "calendar-digest",
        "git-insight",
        "slack",
        "cost-guard",
    ):
        assert name in listed
    asked = daemon.cli("plugin", "install", "gallery:git-insight", stdin="n\n", code=None)
    assert "run the program git in" in asked.out + asked.err
    assert "gallery:git-insight" in asked.out
    assert "git-insight" not in daemon.cli("plugin", "list").out
    assert "✓ Installed" in daemon.cli("plugin", "install", "gallery:git-insight", "--yes").out
    unknown = daemon.cli("plugin", "install", "gallery:nope", "--yes", code=None)
    assert unknown.code != 0
    assert "The gallery has no plugin 'nope'." in unknown.err
    assert "calendar-digest" in unknown.err
    for word in ("gallery:../examples/git-insight", "gallery:"):
        shown = daemon.error("POST", "/plugins/preview", {"path": word})
        assert (shown["status"], shown["code"]) == (404, "plugin_not_in_gallery")


def test_notifications_go_through_apprise_and_not_without_end(
    boats: Project, services: dict[str, StandIn]
) -> None:
    apprise_server = services["notify"]
    assert boats.call("notify.send", body="Low tide.", title="Harbour", type="warning") == {
        "sent": True
    }
    [asked] = apprise_server.take()
    assert (asked.method, asked.path) == ("POST", "/notify/house")
    assert asked.body == {
        "body": "Low tide.", "title": "Harbour", "type": "warning", "format": "text", "tag": "crew"
    }  # fmt: skip
    assert "could not deliver" in boats.fail("notify.send", body="boom")["message"]
    for _ in range(2):
        boats.call("notify.send", body="More.")
    assert "within the last hour" in boats.fail("notify.send", body="Too many.")["message"]
    assert len(apprise_server.take()) == 3


def test_issues_are_read_and_a_project_chooses_a_repository_and_no_more(
    boats: Project, services: dict[str, StandIn]
) -> None:
    host = services["issues"]
    [issue] = boats.call("issues.list", labels=["bug"], limit=5)["issues"]
    assert (issue["number"], issue["author"], issue["labels"]) == (7, "ann", ["bug"])
    [asked] = host.take()
    assert asked.path == "/repos/sea/boats/issues"
    assert asked.query == {"state": "open", "labels": "bug", "per_page": "5"}
    assert asked.headers["accept"] == "application/vnd.github+json"
    assert asked.headers["x-github-api-version"] == "2022-11-28"
    whole = boats.call("issues.get", number=7)
    assert (whole["body"], whole["comments"][0]["body"]) == ("Water.", "Bail.")
    assert "ghp_1" not in str(whole)
    host.take()
    assert "reading only" in boats.fail("issues.create", title="x")["message"]
    assert "reading only" in boats.fail("issues.comment", number=7, body="x")["message"]
    assert host.take() == []
    for repository, said in (("land/ships", "does not allow"), ("../x", "is no repository")):
        _configure(boats, repository=repository)
        assert said in boats.fail("issues.list")["message"]
    assert host.take() == []
    _configure(boats, repository="land/cars")
    assert "no such repository" in boats.fail("issues.list")["message"]
    _configure(boats, repository="sea/boats")


def test_writing_and_gitlab_are_the_operators_settings(
    daemon: Daemon, boats: Project, services: dict[str, StandIn]
) -> None:
    host = services["issues"]
    _operator(daemon, "issues", allow_writes=True)
    host.take()
    made = boats.call("issues.create", title="New", body="text", labels=["bug"])
    assert (made["number"], made["title"]) == (9, "New")
    assert host.take()[0].body == {"title": "New", "body": "text", "labels": ["bug"]}
    assert boats.call("issues.comment", number=7, body="Aye.")["comment_id"] == 555
    _operator(daemon, "issues", provider="gitlab", token="glpat-1")
    host.take()
    assert boats.call("issues.list", state="open")["issues"][0]["state"] == "open"
    [asked] = host.take()
    assert asked.path == "/api/v4/projects/sea%2Fboats/issues"
    assert asked.query["state"] == "opened"
    found = boats.call("issues.get", number=3)
    assert (found["number"], found["body"], len(found["comments"])) == (3, "Stuck.", 1)


def test_the_web_is_searched_by_searxng_and_by_brave(
    daemon: Daemon, boats: Project, services: dict[str, StandIn]
) -> None:
    found = boats.call("web-search.search", query="wooden boats", limit=1, page=2)
    assert found == {
        "results": [
            {"title": "A boat", "url": "https://example.org/boat", "extract": "It floats."}
        ],
        "count": 1,
    }
    [asked] = services["search"].take()
    assert asked.query == {"q": "wooden boats", "format": "json", "pageno": "2"}
    _operator(daemon, "web-search", provider="brave", token="BSA1")
    [hit] = boats.call("web-search.search", query="boats")["results"]
    assert hit["extract"] == "It sinks."
    [asked] = services["search"].take()
    assert asked.query == {"q": "boats", "count": "8"}


def test_a_digest_has_the_events_of_all_calendars_that_can_be_read(
    boats: Project, services: dict[str, StandIn]
) -> None:
    said = boats.call("calendar-digest.digest", start="2026-11-18", days=8)
    shown = [(one["start"], one["title"]) for one in said["events"]]
    assert shown == [
        ("2026-11-23T11:00+01:00", "Stand-up later"),
        ("2026-11-23T11:15+01:00", "Dentist"),
        ("2026-11-24", "Off"),
        ("2026-11-25T09:00+01:00", "Stand-up, with tea"),
    ]
    assert said["events"][1]["conflicts_with"] == "Stand-up later"
    assert said["events"][1]["place"] == "Harbour 1"
    assert said["unread"] == [{"calendar": "Bo", "problem": "it answered 404"}]
    services["calendar"].take()
    again = boats.call("calendar-digest.digest", start="2026-11-18", days=8)
    assert again == said
    [ann] = [one for one in services["calendar"].take() if one.path == "/ann.ics"]
    assert ann.headers["if-none-match"] == '"v1"'
    assert boats.call("calendar-digest.digest", start="2026-12-02", days=2)["events"] == []


def test_without_a_grant_the_cage_lets_nobody_out(daemon: Daemon, boats: Project) -> None:
    _operator(daemon, "web-search", provider="searxng", url="http://localhost:1")
    assert "was not reached" in boats.fail("web-search.search", query="x")["message"]


def test_no_plugin_brings_a_copy_or_a_path_of_what_the_sdk_gives_it() -> None:
    found = [one for kind in ("gallery", "examples") for one in ROOT.glob(f"{kind}/*/*.py")]
    assert len(found) > len([*ROOT.glob("gallery/*")])
    for one in found:
        text = one.read_text("utf-8")
        assert "posix_spawn" not in text, one
        assert "sys.path" not in text, one


def _configure(project: Project, **config: Any) -> None:
    """Set what the project says about `issues`."""
    plugins = _declared(**config)
    project.describe(plugins=plugins)
    project.reload()


def _declared(**issues: Any) -> dict[str, Any]:
    names = ("notify", "issues", "web-search", "calendar-digest")
    plugins: dict[str, Any] = {name: {"package": name} for name in names}
    plugins["issues"]["config"] = issues
    plugins["notify"]["config"] = {"tag": "crew"}
    return plugins


def _operator(daemon: Daemon, name: str, **settings: Any) -> None:
    """Change the operator's settings of a plugin and start it anew."""
    write_section(daemon, name, **settings)
    daemon.post(f"/plugins/{name}/restart")


def test_memories_are_found_by_words_and_where_there_is_a_service_by_meaning(
    daemon: Daemon, module_path: Path, services: dict[str, StandIn]
) -> None:
    set_up(daemon, "memory-markdown", services["search"].port)
    project = daemon.load(
        Project(module_path / "ships", plugins={"memory": {"package": "memory-markdown"}})
    )
    for content in ("The harbour closes at ten.", "We deploy on Fridays."):
        project.call("memory-markdown.retain", content=content)
    found = project.call("memory-markdown.recall", query="release schedule")
    assert found["memories"] == []
    url = f"{services['search'].url}/v1"
    _operator(daemon, "memory-markdown", embeddings_url=url, embeddings_model="tiny")
    services["search"].take()
    found = project.call("memory-markdown.recall", query="release schedule")
    assert [one["content"] for one in found["memories"]] == ["We deploy on Fridays."]
    [asked] = services["search"].take()
    assert (asked.method, asked.path, asked.body["model"]) == ("POST", "/v1/embeddings", "tiny")
    assert len(asked.body["input"]) == 3
    project.call("memory-markdown.recall", query="release schedule")
    assert len(services["search"].take()[0].body["input"]) == 1, "vectors are kept"
    _operator(daemon, "memory-markdown", embeddings_url=f"{services['search'].url}/broken")
    found = project.call("memory-markdown.recall", query="harbour")
    assert [one["content"] for one in found["memories"]] == ["The harbour closes at ten."]
    assert "answered 403" in found["by_words_only"]


def test_none_takes_much_memory_while_it_waits(daemon: Daemon, boats: Project) -> None:
    daemon.post("/plugins/git-insight/enable")
    names = ("notify", "issues", "web-search", "calendar-digest", "git-insight", "memory-markdown")
    for name in names:
        daemon.post(f"/plugins/{name}/restart")
        pid = daemon.get(f"/plugins/{name}")["pid"]
        kib = resident_kib(command_pid(pid))
        assert kib <= LIMIT_KIB, (name, kib)
    # The first call brings the event loop, which stays; TLS comes with the first who uses it.
    calls: dict[str, dict[str, Any]] = {
        "notify.send": {"body": "Low tide."}, "issues.list": {},
        "web-search.search": {"query": "a"},
        "calendar-digest.digest": {"start": "2026-11-18", "days": 2},
    }  # fmt: skip
    for tool, params in calls.items():
        name = tool.partition(".")[0]
        body = {"agent": "primary", "tool": tool, "params": params}
        # Whatever it answers: the service behind it may be there or not.
        daemon.client.post(f"/api/v1/projects/{boats.id}/tools/call", json=body)
        kib = resident_kib(command_pid(daemon.get(f"/plugins/{name}")["pid"]))
        assert kib <= CALLED_KIB, (name, kib)
