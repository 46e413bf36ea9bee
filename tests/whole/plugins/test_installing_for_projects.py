"""A project asks for plugins: the operator sees what, says yes or no, and only then it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_repos import git_server, repository
from whole.harness.plugin_store import as_json, kept, manifest_folder
from whole.harness.plugin_terminal import at_terminal
from whole.harness.project import Project

ECHO = {"on": {"a.b": [{"echo": True}]}}
Maker = Callable[..., PluginFolder]
SOURCES = '[plugins]\nallow_sources = ["git+file", "git+http-loopback"]\n'


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose operator allows sources on this machine."""
    made = Daemon(module_path / "h", config=SOURCES, local=model.local_toml())
    made.start()
    yield made
    made.close()


class Asking:
    """A project that declares one plugin, and what the operator is asked because of it."""

    def __init__(self, project: Project, name: str, **declared: Any) -> None:
        self.project = project
        self.name = name
        self.declare(**declared)

    def declare(self, **declared: Any) -> None:
        """Declare the plugin, and let the daemon read that."""
        self.project.describe(plugins={"mine": {"package": self.name, **declared}})
        self.project.reload()

    @property
    def state(self) -> str:
        """The project's state."""
        return str(self.project.get("")["state"])

    def asked(self) -> list[dict[str, Any]]:
        """Return the questions because of this project."""
        got = self.project.daemon.get(f"/consents?project_id={self.project.id}")
        return list(got["items"] if isinstance(got, dict) else got)

    def answer(self, **body: Any) -> dict[str, Any]:
        """Answer the one question."""
        (one,) = self.asked()
        got: dict[str, Any] = self.project.daemon.post(f"/consents/{one['id']}", body)
        return got

    def yes(self, **more: Any) -> dict[str, Any]:
        """Agree to exactly what is shown."""
        (one,) = self.asked()
        return self.answer(allowed=True, digest=one["prompt"]["digest"], **more)


@pytest.fixture
def asking(project: Project) -> Callable[..., Asking]:
    """Return a maker of projects that ask for a plugin."""
    return lambda name, **declared: Asking(project, name, **declared)


@whole("PH-INST-11", "PH-INST-12", "PH-INST-01")
def test_a_missing_plugin_is_one_question_that_shows_it_all(
    daemon: Daemon, project: Project, plugin: Maker, asking: Callable[..., Asking]
) -> None:
    here = PluginFolder(
        daemon,
        project.root / "tools" / "mem",
        ECHO,
        name="boat-mem",
        version="1.2.0",
        capabilities=["net:*"],
    )
    ask = asking("boat-mem", source="./tools/mem", version="^1")
    daemon.cli("plugin", "list")  # a daemon that has just started knows no plugins yet
    said = daemon.cli("project", "load", "--trust", str(project.root))
    assert "kaged plugin consents" in said.out + said.err
    (one,) = ask.asked()
    assert (one["name"], one["project_id"], one["source"]) == (
        "boat-mem",
        project.id,
        "./tools/mem",
    )
    assert (one["prompt"]["version"], one["capabilities"]) == ("1.2.0", ["net:*"])
    assert ask.state == "pending"
    project.reload()
    assert [again["id"] for again in ask.asked()] == [one["id"]], "asked once, however often read"
    listed = daemon.cli("plugin", "consents").out
    assert one["id"] in listed
    code, screen = at_terminal(daemon, "plugin", "approve", one["id"], answer="")
    assert code != 0
    for shown in ("boat-mem", "1.2.0", "./tools/mem", "net:*", here.manifest["description"]):
        assert shown in screen
    assert "boat-mem" not in kept(daemon)[0]


@whole("PH-INST-13", "PH-INST-15", "PH-INST-16", "PH-AMB-27")
def test_a_yes_installs_for_this_project_and_for_no_other(
    daemon: Daemon, project: Project, asking: Callable[..., Asking], tmp_path: Path
) -> None:
    made = PluginFolder(
        daemon, project.root / "tools" / "mem", {"on": {"car-mem.retain": [{"echo": True}]}},
        name="car-mem", methods=None,
        tools=[{"name": "retain", "description": "x", "parameters_schema": {"type": "object"}}],
    )  # fmt: skip
    ask = asking("car-mem", source="./tools/mem")
    assert ask.answer(allowed=True, digest=ask.asked()[0]["prompt"]["digest"])["done"]
    assert (ask.asked(), ask.state) == ([], "loaded")
    state = daemon.post("/plugins/car-mem/enable")
    assert (state["state"], state["local"], state["projects"]) == ("running", False, [project.id])
    entry = '[plugins.car-mem]\ninstalled = "1.0.0"\nlocal = false\n'
    assert entry in kept(daemon)[1]
    (row,) = made.audit("plugin.installed")
    assert (row["data"]["local"], row["data"]["source"]) == (False, "./tools/mem")
    assert project.call("car-mem.retain", x=1)["x"] == 1
    second = daemon.load(Project(tmp_path / "second"))
    assert second.fail("car-mem.retain", x=1)["code"] == "tool_not_found"
    other = Asking(second, "car-mem")
    assert other.state == "pending"
    (one,) = other.asked()
    assert one["step"] == "use"
    assert second.fail("car-mem.retain", x=1)["code"] == "tool_not_found"
    assert other.answer(allowed=True)["done"]
    assert other.state == "loaded"
    assert second.call("car-mem.retain", x=2)["x"] == 2
    assert set(made.state()["projects"]) == {project.id, second.id}
    local = PluginFolder(daemon, tmp_path / "anyones", ECHO, name="anyones")
    local.run()
    Asking(second, "anyones")
    assert other.state == "loaded", "what the operator installed is any project's"


@whole("PH-INST-14")
def test_a_no_leaves_the_project_pending_and_fetches_nothing(
    daemon: Daemon, asking: Callable[..., Asking], tmp_path: Path
) -> None:
    repository(tmp_path / "git", "gull", {"v1.0.0": "1.0.0"})
    before = kept(daemon)
    with git_server(tmp_path / "git") as (url, seen):
        ask = asking("gull", source=f"git+{url}/gull.git")
        assert ask.answer(allowed=False)["done"] is False
        assert ask.state == "pending"
        (one,) = ask.asked()
        assert one["declined"] is True
        assert seen == []
        assert kept(daemon) == before
        assert ask.answer(allowed=True)["done"] is False  # the no was not the last word
        (one,) = ask.asked()
        assert (one["step"], one["declined"]) == ("install", False)
        assert seen != []


@whole("PH-INST-21", "PH-AMB-44", "PH-INST-19")
def test_fetching_and_installing_are_two_questions_and_nothing_moves_before_either(
    daemon: Daemon, asking: Callable[..., Asking], tmp_path: Path
) -> None:
    repository(
        tmp_path / "git", "heron", {"v1.0.0": "1.0.0", "v1.1.0": "1.1.0", "v2.0.0": "2.0.0"},
        capabilities=["net:example.org:443"],
    )  # fmt: skip
    with git_server(tmp_path / "git") as (url, seen):
        source = f"git+{url}/heron.git"
        ask = asking("heron", source=source, version="1.1.0")
        (first,) = ask.asked()
        assert (first["step"], first["source"], first["name"]) == ("fetch", source, "heron")
        assert "1.1.0" in str(first["version"])
        assert seen == []
        code, screen = at_terminal(daemon, "plugin", "approve", first["id"], answer="")
        assert code != 0
        assert source in screen
        assert seen == []
        following = ask.answer(allowed=True)["next"]
        assert following["step"] == "install"
        assert following["capabilities"] == ["net:example.org:443"]
        fetched = "\n".join(seen)
        assert "deepen 1" in fetched, "a shallow clone"
        assert "heron" not in kept(daemon)[0]
        assert ask.state == "pending"
        assert ask.yes()["done"]
        assert ask.state == "loaded"
        changes = daemon.home / "plugins" / "heron" / "CHANGES"
        assert changes.read_text(encoding="utf-8") == "v1.1.0"
        assert not (daemon.home / "plugins" / "heron" / ".git").exists()
        bare = repository(tmp_path / "git", "hollow", {"v1.0.0": "1.0.0"}, below="deeper")
        assert bare.exists()
        empty = asking("hollow", source=f"git+{url}/hollow.git")
        (one,) = empty.asked()
        refused = daemon.error("POST", f"/consents/{one['id']}", {"allowed": True})
        assert "kaged-plugin.yaml" in refused["message"]
        assert "hollow" not in kept(daemon)[0]


@whole("PH-INST-17", "PH-AMB-44")
def test_a_relative_source_is_read_in_the_project_and_never_above_it(
    daemon: Daemon, project: Project, asking: Callable[..., Asking], tmp_path: Path
) -> None:
    manifest_folder(tmp_path / "outside", as_json(name="ibis"))
    (project.root / "empty").mkdir()
    (project.root / "out").symlink_to(tmp_path / "outside")
    for source in ("./../outside", "./out", "./empty", "./nowhere"):
        body = {"plugins": {"mine": {"package": "ibis", "source": source}}}
        project.describe(**body)
        refused = daemon.client.post(f"/api/v1/projects/{project.id}/reload", json={"trust": True})
        if refused.is_success:
            (one,) = Asking(project, "ibis", source=source).asked()
            assert one["problem"], (source, one)
            answer = daemon.error("POST", f"/consents/{one['id']}", {"allowed": True})
            assert answer["status"] >= 400
        assert "ibis" not in kept(daemon)[0]
    manifest_folder(project.root / "tools" / "ibis", as_json(name="ibis"))
    ask = asking("ibis", source="./tools/ibis")
    (one,) = ask.asked()
    assert one["step"] == "install", "it is here already: nothing to fetch"
    assert ask.yes()["done"]
    stored = daemon.home / "plugins" / "ibis" / "main.py"
    assert stored.read_bytes() == (project.root / "tools" / "ibis" / "main.py").read_bytes()


@whole("PH-INST-20")
def test_a_missing_source_asks_for_a_path(
    daemon: Daemon, asking: Callable[..., Asking], tmp_path: Path
) -> None:
    ask = asking("jay")
    (one,) = ask.asked()
    assert one["source"] == "source not specified"
    code, screen = at_terminal(daemon, "plugin", "approve", one["id"], answer="")
    assert code != 0
    assert "source not specified" in screen
    folder = manifest_folder(tmp_path / "jay", as_json(name="jay"))
    following = ask.answer(allowed=True, path=str(folder))["next"]
    assert following["prompt"]["name"] == "jay"
    assert ask.yes()["done"]
    assert "jay" in kept(daemon)[0]


@whole("PH-AMB-66")
@pytest.mark.parametrize(
    ("wanted", "tag"),
    [("1.0.0", "v1.0.0"), ("1.1.0", "1.1.0"), ("^1", "1.1.0"), (None, "v3.0.0-rc.1")],
)
def test_a_version_finds_its_tag_however_that_is_spelled(
    daemon: Daemon, asking: Callable[..., Asking], tmp_path: Path, wanted: str | None, tag: str
) -> None:
    name = f"kite-{len(wanted or '')}-{tag.replace('.', '-')}"
    bare = repository(
        tmp_path / "git",
        name,
        {"v1.0.0": "1.0.0", "1.1.0": "1.1.0", "v2.0.0": "2.0.0", "v3.0.0-rc.1": "3.0.0-rc.1"},
    )
    more = {} if wanted is None else {"version": wanted}
    ask = asking(name, source=f"git+file://{bare}", **more)
    ask.answer(allowed=True)
    assert ask.yes()["done"]
    changes = daemon.home / "plugins" / name / "CHANGES"
    assert changes.read_text(encoding="utf-8") == tag


@whole("PH-AMB-66")
def test_no_match_lists_the_tags_and_other_addresses_name_the_supported_forms(
    daemon: Daemon, project: Project, asking: Callable[..., Asking], tmp_path: Path
) -> None:
    bare = repository(tmp_path / "git", "lark", {"v1.0.0": "1.0.0", "1.1.0": "1.1.0"})
    ask = asking("lark", source=f"git+file://{bare}", version="9.9.9")
    (one,) = ask.asked()
    refused = daemon.error("POST", f"/consents/{one['id']}", {"allowed": True})
    assert "v1.0.0" in str(refused)
    assert "1.1.0" in str(refused)
    for source in ("ftp://example.org/x", "http://example.org/x.git", "git@github.com:a/b"):
        project.describe(plugins={"mine": {"package": "lark", "source": source}})
        wrong = daemon.error("POST", f"/projects/{project.id}/reload")
        assert "https://github.com/" in str(wrong)
        assert "git+https://" in str(wrong)
    assert "lark" not in kept(daemon)[0]


@whole("PH-AMB-66")
def test_a_source_on_this_machine_needs_the_operators_word(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    bare = repository(tmp_path / "git", "merle", {"v1.0.0": "1.0.0"})
    project = daemon.load(Project(tmp_path / "p"))
    with git_server(tmp_path / "git") as (url, seen):
        for source in (f"git+file://{bare}", f"git+{url}/merle.git"):
            project.describe(plugins={"mine": {"package": "merle", "source": source}})
            loaded = daemon.client.post(
                f"/api/v1/projects/{project.id}/reload", json={"trust": True}
            )
            if loaded.is_success:
                (one,) = Asking(project, "merle", source=source).asked()
                refused = daemon.error("POST", f"/consents/{one['id']}", {"allowed": True})
                assert "allow_sources" in str(refused), refused
            assert "merle" not in kept(daemon)[0]
        assert seen == []
    github = "https://github.com/nobody/merle"
    ask = Asking(project, "merle", source=github, version="1.0.0")
    (one,) = ask.asked()
    assert (one["step"], one["source"]) == ("fetch", github)


@whole("PH-AMB-27")
def test_a_block_for_the_whole_project_is_refused_and_points_to_the_agents(
    daemon: Daemon, project: Project
) -> None:
    project.describe(top={"plugins": {"mine": {"package": "lark"}}})
    refused = daemon.error("POST", f"/projects/{project.id}/reload")
    assert "primary" in str(refused["data"]["problems"])
    assert any("plugins" in one["key_path"] for one in refused["data"]["problems"])


@whole("PH-MANI-04")
def test_a_version_that_does_not_meet_the_declaration_is_reported(
    daemon: Daemon, plugin: Maker, project: Project
) -> None:
    one = plugin(ECHO, version="1.4.2")
    one.run()
    project.describe(plugins={one.name: {"package": one.name, "version": "^2"}})
    project.reload()
    (refused,) = one.state()["refused"]
    assert refused == f"{project.id} primary: version 1.4.2 is installed, ^2 is asked for"
    project.describe(plugins={one.name: {"package": one.name, "version": "~1.4"}})
    project.reload()
    assert one.state()["refused"] == []
    assert one.state()["projects"] == [project.id]
