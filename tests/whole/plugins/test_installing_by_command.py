"""`kaged plugin install … uninstall` as an operator types them, at a terminal and over HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_store import as_json, kept, manifest_folder, preview
from whole.harness.plugin_terminal import at_terminal
from whole.harness.project import Project

ECHO = {"on": {"a.b": [{"echo": True}]}}
Maker = Callable[..., PluginFolder]


def files(root: Path) -> dict[str, bytes]:
    """Return the files below a folder."""
    found = [one for one in root.rglob("*") if one.is_file() and "__pycache__" not in one.parts]
    return {str(one.relative_to(root)): one.read_bytes() for one in found}


@pytest.fixture
def facts(plugin: Maker) -> PluginFolder:
    """Return a plugin that tells everything about itself."""
    return plugin(
        ECHO,
        description="Does what a test says.",
        license="MIT",
        homepage="https://example.org/stub",
        capabilities=["net:example.org:443"],
    )


@whole("PH-INST-01", "PH-INST-06", "PH-INST-09", "PH-MANI-08")
def test_an_install_shows_everything_asks_and_takes_silence_for_no(
    daemon: Daemon, facts: PluginFolder
) -> None:
    name = facts.name
    before = kept(daemon)
    code, text = at_terminal(daemon, "plugin", "install", str(facts.root), answer="")
    assert code != 0
    for shown in (
        f"name: {name}",
        "version: 1.0.0",
        "kaged_api: 1",
        "net:example.org:443",
        "description: Does what a test says.",
        "license: MIT",
        f"Install {name}? [y/N]",
    ):
        assert shown in text
    assert kept(daemon) == before
    code, text = at_terminal(daemon, "plugin", "install", str(facts.root), answer="y")
    assert code == 0, text
    assert "disabled" in text
    assert f"kaged plugin enable {name}" in text
    assert facts.state()["state"] == "disabled"
    assert facts.state()["pid"] is None


@whole("PH-INST-02", "PH-INST-03", "PH-INST-04")
def test_without_a_yes_to_exactly_these_files_nothing_is_installed(
    daemon: Daemon, facts: PluginFolder, tmp_path: Path
) -> None:
    before = kept(daemon)
    digest = preview(daemon, facts.root)["digest"]
    path = str(facts.root)
    assert daemon.error("POST", "/plugins", {"path": path})["code"] == "invalid_request"
    no = daemon.error("POST", "/plugins", {"path": path, "digest": "0" * 64})
    assert no["code"] == "plugin_consent_missing"
    (facts.root / "behaviour.json").write_text("{}", encoding="utf-8")
    changed = daemon.error("POST", "/plugins", {"path": path, "digest": digest})
    assert changed["code"] == "plugin_consent_missing"
    code, _ = at_terminal(daemon, "plugin", "install", path, answer="n")
    assert code != 0
    assert daemon.cli("plugin", "install", path, code=None).code != 0, "nobody to ask"
    (tmp_path / "empty").mkdir()
    missing = daemon.cli("plugin", "install", str(tmp_path / "empty"), "--yes", code=None)
    assert (missing.code != 0, "kaged-plugin.yaml" in missing.err) == (True, True)
    wrong = manifest_folder(tmp_path / "wrong", as_json(name="wrong", version="one"))
    refused = daemon.cli("plugin", "install", str(wrong), "--yes", code=None)
    assert (refused.code != 0, "version" in refused.err) == (True, True)
    assert kept(daemon) == before


@whole("PH-INST-07", "PH-INST-08", "PH-INST-10", "PH-AUD-15")
def test_a_yes_copies_the_folder_writes_the_entry_and_is_on_record(
    daemon: Daemon, facts: PluginFolder
) -> None:
    (facts.root / "lib" / "deep").mkdir(parents=True)
    (facts.root / "lib" / "deep" / "data.bin").write_bytes(bytes(range(256)))
    facts.install()
    assert files(daemon.home / "plugins" / facts.name) == files(facts.root)
    entry = f'[plugins.{facts.name}]\ninstalled = "1.0.0"\nlocal = true\n'
    assert entry in (daemon.home / "local.toml").read_text(encoding="utf-8")
    (row,) = exactly(1, lambda: facts.audit("plugin.installed"))
    said = {key: row["data"][key] for key in ("name", "version", "source", "local")}
    assert said == {
        "name": facts.name,
        "version": "1.0.0",
        "source": str(facts.root),
        "local": True,
    }
    assert row["request_id"].startswith("req_")


@whole("PH-INST-05", "PH-INST-22", "PH-INST-23", "PH-INST-25")
def test_another_version_is_an_upgrade_with_its_difference_and_a_question(
    daemon: Daemon, facts: PluginFolder
) -> None:
    facts.install()
    name = facts.name
    facts.write(
        ECHO, name=name, version="2.0.0", capabilities=["net:example.com:443", "kaged:storage:read"]
    )
    for answer, version in (("", "1.0.0"), ("y", "2.0.0")):
        code, text = at_terminal(daemon, "plugin", "install", str(facts.root), answer=answer)
        assert (code == 0) is (answer == "y")
        assert f"{name} is already installed (version 1.0.0)" in text
        assert "New version: 2.0.0" in text
        assert "+ net:example.com:443    (NEW)" in text
        assert "+ kaged:storage:read    (NEW)" in text
        assert "- net:example.org:443    (REMOVED)" in text
        assert f"Upgrade {name} 1.0.0 → 2.0.0? [y/N]" in text
        assert facts.state()["version"] == version
    (row,) = exactly(1, lambda: facts.audit("plugin.upgraded"))
    assert (row["data"]["name"], row["data"]["old_version"]) == (name, "1.0.0")
    assert row["data"]["new_version"] == "2.0.0"
    difference = row["data"]["capability_diff"]
    assert sorted(difference["added"]) == ["kaged:storage:read", "net:example.com:443"]
    assert difference["removed"] == ["net:example.org:443"]


@whole("PH-AUD-16", "PH-AMB-43", "PH-MANI-03")
def test_the_same_version_again_is_refused_and_an_older_one_is_a_downgrade(
    daemon: Daemon, facts: PluginFolder, tmp_path: Path
) -> None:
    facts.install()
    before = kept(daemon)
    again = daemon.error("POST", "/plugins/preview", {"path": str(facts.root)})
    assert again["code"] == "plugin_already_installed"
    done = daemon.cli("plugin", "install", str(facts.root), "--yes", code=None)
    assert done.code != 0
    twin = manifest_folder(tmp_path / "twin", as_json(name=facts.name, description="Another."))
    assert daemon.error("POST", "/plugins/preview", {"path": str(twin)})["code"] == again["code"]
    assert kept(daemon) == before
    facts.write(ECHO, name=facts.name, version="0.9.0")
    shown = preview(daemon, facts.root)
    assert (shown["change"], shown["old_version"]) == ("downgrade", "1.0.0")
    assert any("downgrade" in line.lower() for line in [*shown["lines"], shown["question"]])
    facts.install()
    (row,) = facts.audit("plugin.upgraded")
    assert (row["data"]["old_version"], row["data"]["new_version"]) == ("1.0.0", "0.9.0")
    store = daemon.home / "plugins"
    assert [one for one in store.iterdir() if facts.name in one.name] == [store / facts.name]


@whole("PH-INST-24")
def test_an_upgrade_restarts_what_runs_and_leaves_alone_what_does_not(
    daemon: Daemon, plugin: Maker
) -> None:
    running = plugin(ECHO)
    pid = running.run()["pid"]
    running.write(ECHO, name=running.name, version="2.0.0")
    running.install()
    now = running.state()
    assert (now["state"], now["version"]) == ("running", "2.0.0")
    assert now["pid"] not in (pid, None)
    assert running.call(x=1)["x"] == 1
    resting = plugin(ECHO)
    resting.install()
    resting.write(ECHO, name=resting.name, version="2.0.0")
    resting.install()
    assert (resting.state()["state"], resting.state()["version"]) == ("disabled", "2.0.0")
    assert resting.audit("plugin.spawned") == []


@whole("PH-INST-29", "PH-MANI-06", "PH-MANI-09")
def test_the_list_shows_what_a_plugin_is_and_only_verbose_where_to_read_more(
    daemon: Daemon, facts: PluginFolder
) -> None:
    facts.install()

    def line(text: str) -> str:
        return next(one for one in text.splitlines() if facts.name in one)

    shown = daemon.cli("plugin", "list").out
    assert "disabled" in line(shown)
    assert "Does what a test says." in shown
    assert "https://example.org/stub" not in shown
    assert "https://example.org/stub" in daemon.cli("plugin", "list", "--verbose").out
    daemon.cli("plugin", "enable", facts.name)
    assert "running" in line(daemon.cli("plugin", "list").out)


@whole("PH-INST-01", "PH-INST-27", "PH-INST-28", "PH-AUD-17")
def test_uninstalling_stops_removes_and_says_so_in_three_lines(
    daemon: Daemon, facts: PluginFolder, tmp_path: Path
) -> None:
    name = facts.name
    other = PluginFolder(daemon, tmp_path / "other", ECHO, name=f"{name}-other")
    other.install()
    daemon.cli("plugin", "install", str(facts.root), "--yes")
    assert f"{name} is running." in daemon.cli("plugin", "enable", name).out
    assert f"{name} is disabled." in daemon.cli("plugin", "disable", name).out
    assert facts.state()["state"] == "disabled"
    daemon.cli("plugin", "enable", name)
    pid = facts.state()["pid"]
    out = daemon.cli("plugin", "uninstall", name, "--force").out
    lines = [one for one in out.splitlines() if one.startswith("✓")]
    assert lines == [
        f"✓ Stopped {name}",
        "✓ Removed plugin files",
        "✓ Removed local config entry",
    ]
    assert not Path(f"/proc/{pid}").exists()
    names, local, config = kept(daemon)
    assert name not in names
    assert f"{name}-other" in names
    assert f"[plugins.{name}]" not in local
    assert f"[plugins.{name}-other]" in local
    assert f'"{name}"' not in config
    rows = [one for one in facts.audit("plugin.uninstalled") if one["data"]["name"] == name]
    assert len(rows) == 1
    assert rows[0]["data"]["version"] == "1.0.0"
    assert daemon.cli("plugin", "info", name, code=None).code != 0


@whole("PH-INST-26")
def test_uninstalling_is_refused_while_sessions_use_the_plugin(
    daemon: Daemon, plugin: Maker, project: Project, model: ModelServer, tmp_path: Path
) -> None:
    used = plugin(ECHO)
    used.run()
    project.describe(plugins={used.name: {"package": used.name}}, cage="disabled")
    project.reload()
    word = f"pelican-{used.name}"
    model.play(word, call("shell.bash", command="touch begun; sleep 600"), say("Done."))
    session = project.post("/sessions", {})["id"]
    project.post(f"/sessions/{session}/message", {"text": word})
    wait_for((project.root / "begun").exists)
    before = kept(daemon)
    refused = daemon.cli("plugin", "uninstall", used.name, code=None)
    assert refused.code != 0
    says = f"Plugin {used.name} is active in 1 session(s). Stop sessions first, or use --force."
    assert says in re.sub(r"\s+", " ", refused.err)
    assert kept(daemon) == before
    assert used.call(x=1)["x"] == 1
    project.post(f"/sessions/{session}/cancel")
    daemon.cli("plugin", "uninstall", used.name)
    assert used.name not in kept(daemon)[0]


@whole("PH-AMB-54")
def test_enabling_is_in_one_file_and_installing_in_the_other(daemon: Daemon, plugin: Maker) -> None:
    one = plugin(ECHO)
    _, local, config = kept(daemon)
    one.install()
    _, after_install, config_then = kept(daemon)
    assert config_then == config
    assert after_install != local
    daemon.post(f"/plugins/{one.name}/enable")
    assert kept(daemon)[1] == after_install
    assert f'"{one.name}"' in kept(daemon)[2]
    daemon.post(f"/plugins/{one.name}/disable")
    assert kept(daemon)[1] == after_install
    assert f'"{one.name}"' not in kept(daemon)[2]
    daemon.post(f"/plugins/{one.name}/enable")
    daemon.ask("DELETE", f"/plugins/{one.name}")
    assert all(one.name not in text for text in kept(daemon)[1:])


@whole("PH-INST-31")
def test_a_failure_half_way_leaves_what_was_there(daemon: Daemon, facts: PluginFolder) -> None:
    facts.install()
    stored = daemon.home / "plugins" / facts.name
    before, was = files(stored), kept(daemon)
    facts.write(ECHO, name=facts.name, version="2.0.0")
    digest = preview(daemon, facts.root)["digest"]
    body = {"path": str(facts.root), "digest": digest}
    last = facts.root / "main.py"
    last.chmod(0)
    assert daemon.error("POST", "/plugins", body)["status"] >= 400
    last.chmod(0o644)
    store = daemon.home / "plugins"
    scratch = [one for one in (store, *store.glob(".kaged/*"), store / ".kaged") if one.is_dir()]
    for folder in scratch:
        folder.chmod(0o500)
    failed = daemon.error("POST", "/plugins", body)
    for folder in scratch:
        folder.chmod(0o700)
    assert failed["code"] == "plugin_store_failed", failed
    assert (files(stored), kept(daemon)) == (before, was)
    assert facts.state()["version"] == "1.0.0"
    assert facts.audit("plugin.upgraded") == []
    facts.install()
    assert facts.state()["version"] == "2.0.0"


@whole("PH-INST-32")
@pytest.mark.parametrize("target", ["/etc/hostname", "../secret", "lib/../../secret"])
def test_a_link_out_of_the_folder_is_refused(
    daemon: Daemon, facts: PluginFolder, tmp_path: Path, target: str
) -> None:
    (tmp_path / "secret").write_text("s", encoding="utf-8")
    (facts.root / "lib").mkdir()
    (facts.root / "link").symlink_to(target)
    refused = daemon.error("POST", "/plugins/preview", {"path": str(facts.root)})
    assert "link" in refused["message"]
    assert facts.name not in kept(daemon)[0]
    (facts.root / "link").unlink()
    (facts.root / "link").symlink_to("lib")
    facts.install()
    assert (daemon.home / "plugins" / facts.name / "link").readlink() == Path("lib")


@whole("PH-BEY-15")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("read:fs:/usr/share/doc", "read:fs:/usr/share"),
        ("read:fs:/usr/share", "write:fs:/usr/share"),
        ("net:example.org:443", "net:example.org:*"),
    ],
)
def test_more_of_the_same_is_marked_as_wider(
    daemon: Daemon, facts: PluginFolder, old: str, new: str
) -> None:
    facts.write(ECHO, name=facts.name, capabilities=[old])
    facts.install()
    facts.write(ECHO, name=facts.name, version="2.0.0", capabilities=[new])
    shown = preview(daemon, facts.root)
    assert shown["widens"] is True
    (added,) = shown["added"]
    assert (added["text"], added["widening"]) == (new, True)
    assert any(new in line and "NEW" in line and "wid" in line.lower() for line in shown["lines"])
    facts.install()
    facts.write(ECHO, name=facts.name, version="3.0.0", capabilities=[old])
    back = preview(daemon, facts.root)
    assert back["widens"] is False
    assert [(one["text"], one["widening"]) for one in back["added"]] == [(old, False)]


@whole("PH-INST-30")
@pytest.mark.parametrize("mode", ["home", "dir"])
def test_the_store_is_where_the_configuration_says(
    own: Callable[..., Daemon], tmp_path: Path, mode: str
) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    line = f'[daemon]\nhome = "{place}"\n' if mode == "home" else f'[plugins]\ndir = "{place}"\n'
    daemon = own(config=line)
    daemon.start()
    one = PluginFolder(daemon, tmp_path / "moved", ECHO, name="moved")
    one.run()
    store = place / "plugins" if mode == "home" else place
    assert files(store / "moved") == files(one.root)
    assert not (daemon.home / "plugins" / "moved").exists()
    one.write({"on": {"a.b": [{"env": True}]}}, name="moved", version="2.0.0")
    one.install()
    assert one.call()["env"]["KAGED_PLUGIN_DIR"] == str(store / "moved")
    daemon.ask("DELETE", "/plugins/moved")
    assert not (store / "moved").exists()
    assert (one.root / "main.py").exists()
