"""`kaged plugin …` end to end: the real command, a real daemon, real cages, a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fakes.host_over_http import write_project, write_stub
from fakes.running_daemon import KAGED, environment, kaged, make_home
from requirements import requirement

ECHO = {"on": {"a.b": [{"echo": True}]}}


@pytest.fixture
def own(home: Path) -> Path:
    return make_home(home)


def run(home: Path, *arguments: str, expect: int = 0) -> str:
    done = kaged(home, *arguments)
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def ask(home: Path, *arguments: str, expect: int = 0) -> Any:
    done = kaged(home, *arguments, "--json")
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return json.loads(done.stdout or done.stderr)


def on_terminal(home: Path, *arguments: str, answer: str) -> tuple[int, str]:
    """Run a command on a terminal and type an answer when it asks."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*KAGED, *arguments],
        env=environment(home, NO_COLOR="1"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        close_fds=True,
    )
    os.close(follower)
    text, answered = "", False
    while True:
        ready, _, _ = select.select([leader], [], [], 60)
        assert ready, text
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the terminal closes with its last user
            break
        if not piece:
            break
        text += piece.decode("utf-8", "replace")
        if not answered and "[y/N]" in text:
            os.write(leader, f"{answer}\n".encode())
            answered = True
    os.close(leader)
    return process.wait(60), text.replace("\r\n", "\n")


def facts(directory: Path, **more: Any) -> Path:
    return write_stub(
        directory,
        ECHO,
        description="Does what a test says.",
        license="MIT",
        homepage="https://example.org/stub",
        **more,
    )


@requirement(
    "PH-INST-06", "PH-INST-09", "PH-INST-22", "PH-MANI-06", "PH-MANI-08", "PH-AUD-15", "PH-AUD-16"
)
def test_install_and_upgrade_show_ask_and_default_to_no(own: Path, tmp_path: Path) -> None:
    first = facts(tmp_path / "one", capabilities=["net:example.org:443"])
    code, text = on_terminal(own, "plugin", "install", str(first), answer="")
    assert code != 0
    for shown in ("stub", "1.0.0", "kaged_api: 1", "net:example.org:443", "Does what a test says."):
        assert shown in text
    assert "license: MIT" in text
    assert "Install stub? [y/N]" in text
    assert ask(own, "plugin", "list") == []
    assert not (own / "plugins" / "stub").exists()
    code, text = on_terminal(own, "plugin", "install", str(first), answer="y")
    assert code == 0, text
    assert "kaged plugin enable stub" in text
    assert ask(own, "plugin", "list")[0]["state"] == "disabled"
    second = facts(tmp_path / "two", version="2.0.0", capabilities=["net:example.com:443"])
    for answer, version in (("", "1.0.0"), ("y", "2.0.0")):
        code, text = on_terminal(own, "plugin", "install", str(second), answer=answer)
        assert (code == 0) is (answer == "y")
        assert "already installed (version 1.0.0)" in text
        assert "New version: 2.0.0" in text
        assert "+ net:example.com:443    (NEW)" in text
        assert "- net:example.org:443    (REMOVED)" in text
        assert "Upgrade stub 1.0.0 → 2.0.0? [y/N]" in text
        assert ask(own, "plugin", "list")[0]["version"] == version
    rows = ask(own, "audit", "query", "--event", "plugin.installed", "--event", "plugin.upgraded")
    upgraded, installed = [row["data"] for row in rows]
    assert (installed["name"], installed["version"], installed["local"]) == ("stub", "1.0.0", True)
    assert installed["source"] == str(first)
    assert (upgraded["old_version"], upgraded["new_version"]) == ("1.0.0", "2.0.0")
    assert upgraded["name"] == "stub"
    assert upgraded["capability_diff"]["added"] == ["net:example.com:443"]
    assert upgraded["capability_diff"]["removed"] == ["net:example.org:443"]


def test_a_word_that_is_no_method_name_is_explained_without_a_pattern(own: Path) -> None:
    refused = run(own, "plugin", "call", "foo", "bar", expect=6)
    assert "'bar' is not a method name" in refused
    assert "such as echo.say" in refused
    assert "kaged plugin info foo" in refused
    assert "[a-z]" not in refused
    assert "[a-z]" not in run(own, "plugin", "info", "Foo!", expect=6)


@requirement("PH-INST-27", "PH-INST-29", "PH-MANI-09", "PH-AUD-17", "PH-INST-01")
def test_a_plugins_way_through_the_commands(own: Path, tmp_path: Path) -> None:
    run(own, "plugin", "install", str(facts(tmp_path / "one")), "--yes")
    listed = run(own, "plugin", "list")
    assert "Does what a test says." in listed
    assert "disabled" in listed
    assert "https://example.org/stub" not in listed
    assert "https://example.org/stub" in run(own, "plugin", "list", "--verbose")
    assert "stub is running." in run(own, "plugin", "enable", "stub")
    assert "running" in run(own, "plugin", "list")
    assert '"x": 1' in run(own, "plugin", "call", "stub", "a.b", '{"x": 1}')
    info = run(own, "plugin", "info", "stub")
    assert "calls" in info
    assert "mean_ms" in info
    assert "stub is disabled." in run(own, "plugin", "disable", "stub")
    root = write_project(tmp_path / "boats", {"plugins": {"stub": {"package": "stub"}}})
    assert "Loaded boats" in run(own, "project", "load", str(root))
    run(own, "plugin", "enable", "stub")
    text = run(own, "plugin", "uninstall", "stub", "--force")
    lines = [line for line in text.splitlines() if line.startswith("✓")]
    assert lines == ["✓ Stopped stub", "✓ Removed plugin files", "✓ Removed local config entry"]
    assert not (own / "plugins" / "stub").exists()
    assert "stub" not in (own / "local.toml").read_text(encoding="utf-8")
    (row,) = ask(own, "audit", "query", "--event", "plugin.uninstalled")
    assert (row["data"]["name"], row["data"]["version"]) == ("stub", "1.0.0")
    assert run(own, "plugin", "info", "stub", expect=3)


def test_a_plugin_that_does_not_start_makes_enable_fail(own: Path, tmp_path: Path) -> None:
    run(own, "plugin", "install", str(write_stub(tmp_path / "one", {"greet": "exit"})), "--yes")
    text = run(own, "plugin", "enable", "stub", expect=1)
    assert "stub is failed." in text
    assert "no reason to live" in text


@requirement("PH-BEY-12")
def test_a_plugin_is_checked_without_being_installed(own: Path, tmp_path: Path) -> None:
    good = facts(tmp_path / "good")
    assert "handshake ok" in run(own, "plugin", "check", str(good))
    report = ask(own, "plugin", "check", str(good))
    assert report["ok"] is True
    liar = write_stub(tmp_path / "liar", {"answer": {"version": "9.9.9"}})
    text = run(own, "plugin", "check", str(liar), expect=6)
    assert "the manifest says version '1.0.0', the handshake says '9.9.9'" in text
    assert "handshake failed" in text
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "kaged-plugin.yaml").write_text("name: bad\nversion: 1\n", encoding="utf-8")
    assert "kaged-plugin.yaml:2" in run(own, "plugin", "check", str(tmp_path / "bad"), expect=6)
    assert not (own / "plugins").exists() or list((own / "plugins").iterdir()) == []


def test_consent_over_the_command_line(own: Path, tmp_path: Path) -> None:
    declared = {"stub": {"package": "stub", "source": "./tools/stub"}}
    root = write_project(tmp_path / "boats", {"plugins": declared})
    facts(root / "tools" / "stub")
    assert "No consent requests" in run(own, "plugin", "consents")
    assert "kaged plugin consents" in run(own, "project", "load", str(root))
    (asked,) = ask(own, "plugin", "consents", "--project", "boats")
    assert ask(own, "project", "list")[0]["state"] == "pending"
    assert asked["id"] in run(own, "plugin", "consents")
    assert "asks again" in run(own, "plugin", "deny", asked["id"])
    assert "declined" in run(own, "plugin", "consents")
    run(own, "project", "reload", "boats")
    (again,) = ask(own, "plugin", "consents")
    code, text = on_terminal(own, "plugin", "approve", again["id"], answer="")
    assert code != 0
    assert ask(own, "plugin", "list") == []
    code, text = on_terminal(own, "plugin", "approve", again["id"], "--enable", answer="y")
    assert code == 0, text
    assert "license: MIT" in text
    assert "stub is running." in text
    assert ask(own, "project", "list")[0]["state"] == "loaded"
    assert run(own, "plugin", "approve", "consent_nothing", expect=1)


KNOBS = {
    "budget": {
        "type": "int_range", "label": "Budget", "min": 0, "max": 10, "step": 1, "default": 1,
        "binds_to": "config.budget",
    },
    "title": {"type": "text", "label": "Title", "default": "", "binds_to": "config.title"},
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"budget": {"type": "integer"}, "title": {"type": "string"}},
}


def test_knobs_over_the_command_line(own: Path, tmp_path: Path) -> None:
    run(own, "plugin", "install", str(facts(tmp_path / "one", knobs=KNOBS, config_schema=SCHEMA)),
        "--yes")  # fmt: skip
    run(own, "plugin", "enable", "stub")
    assert "int_range" in run(own, "plugin", "knobs", "stub")
    run(own, "plugin", "knobs", "stub", "--set", "budget=2", expect=6)
    root = write_project(tmp_path / "boats", {"plugins": {"stub": {"package": "stub"}}})
    file = root / ".kaged" / "project.yaml"
    file.write_text("# mine\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    run(own, "project", "load", str(root))
    text = run(own, "plugin", "knobs", "stub", "--project", "boats", "--set", "budget=5",
               "--set", "title=5")  # fmt: skip
    assert "budget: 1 → 5" in text
    shown = ask(own, "plugin", "knobs", "stub")
    assert (shown["budget"]["value"], shown["title"]["value"]) == (5, "5")
    written = file.read_text(encoding="utf-8")
    assert written.startswith("# mine\n")
    assert "budget: 5" in written
    for wrong in ("budget=11", "nothing=1", "budget=x", "budget"):
        assert run(
            own, "plugin", "knobs", "stub", "--set", wrong, expect=4 if wrong == "budget=11" else 6
        )
    assert file.read_text(encoding="utf-8") == written


def test_reload_renew_and_export_over_the_command_line(own: Path, tmp_path: Path) -> None:
    run(own, "plugin", "install", str(facts(tmp_path / "one")), "--yes")
    run(own, "plugin", "enable", "stub")
    facts(own / "plugins" / "stub", author="Somebody")
    assert "changed after the operator agreed" in run(own, "plugin", "reload", "stub", expect=1)
    code, text = on_terminal(own, "plugin", "renew", "stub", answer="")
    assert code != 0
    assert "[y/N]" in text
    assert "Agreed to stub" in run(own, "plugin", "renew", "stub", "--yes")
    assert "stub is running." in run(own, "plugin", "reload", "stub")
    target = tmp_path / "out.sql"
    assert "0 rows of 0 tables" in run(own, "plugin", "export", "stub", str(target))
    assert target.exists()
