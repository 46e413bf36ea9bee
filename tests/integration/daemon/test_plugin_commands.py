"""`kaged plugin …` with a real daemon and real cages, beside what `tests/whole/plugins` shows.

Installing, upgrading, removing, checking, renewing and exporting by command are shown there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.commands import Commands, load_project
from fakes.host_over_http import write_stub
from fakes.running_daemon import DaemonProcess, make_project, on_terminal

ECHO = {"on": {"a.b": [{"echo": True}]}}
USING = """\
version: 1
project: %s
primary: {model: default, system_prompt: You help., plugins: %s}
"""
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


@pytest.fixture
def commands(shared: DaemonProcess, tmp_path: Path) -> Commands:
    """Return commands in the folder of a loaded project."""
    return load_project(shared, tmp_path / "sample")


def test_what_is_no_method_or_no_plugin_is_explained_without_a_pattern(commands: Commands) -> None:
    refused = commands.said("plugin", "call", "foo", "bar", expect=6)
    assert "'bar' is not a method name" in refused
    assert "such as echo.say" in refused
    assert "kaged plugin info foo" in refused
    assert "[a-z]" not in refused
    assert "[a-z]" not in commands.said("plugin", "info", "Foo!", expect=6)
    assert commands.said("plugin", "info", "foo", expect=3)


def test_a_plugin_is_enabled_called_looked_at_and_disabled(
    commands: Commands, tmp_path: Path
) -> None:
    folder = write_stub(tmp_path / "one", ECHO, name="called", knobs=KNOBS, config_schema=SCHEMA)
    commands.said("plugin", "install", str(folder), "--yes")
    assert "called is running." in commands.said("plugin", "enable", "called")
    assert '"x": 1' in commands.said("plugin", "call", "called", "a.b", '{"x": 1}')
    info = commands.said("plugin", "info", "called")
    assert "calls" in info
    assert "mean_ms" in info

    # Knobs: what is typed becomes what the knob holds, or nothing is written.
    assert "int_range" in commands.said("plugin", "knobs", "called")
    commands.said("plugin", "knobs", "called", "--set", "budget=2", expect=6)
    make_project(commands.root, USING % (commands.slug, "{called: {package: called}}"))
    commands.said("project", "reload", commands.slug, "--trust")
    text = commands.said(
        "plugin", "knobs", "called", "--project", commands.slug, "--set", "budget=5", "--set",
        "title=5",
    )  # fmt: skip
    assert "budget: 1 → 5" in text
    shown = commands.json("plugin", "knobs", "called")
    assert (shown["budget"]["value"], shown["title"]["value"]) == (5, "5")
    file = commands.root / ".kaged" / "project.yaml"
    written = file.read_text(encoding="utf-8")
    for wrong, code in (("budget=11", 4), ("nothing=1", 6), ("budget=x", 6), ("budget", 6)):
        assert commands.said("plugin", "knobs", "called", "--set", wrong, expect=code)
    assert file.read_text(encoding="utf-8") == written
    assert "called is disabled." in commands.said("plugin", "disable", "called")


def test_a_plugin_that_does_not_start_makes_enable_fail(commands: Commands, tmp_path: Path) -> None:
    folder = write_stub(tmp_path / "one", {"greet": "exit"}, name="lifeless")
    commands.said("plugin", "install", str(folder), "--yes")
    text = commands.said("plugin", "enable", "lifeless", expect=1)
    assert "lifeless is failed." in text
    assert "no reason to live" in text
    commands.said("plugin", "disable", "lifeless")


def test_consent_is_listed_denied_and_given_by_command(commands: Commands) -> None:
    mine = ("--project", commands.slug)

    def state() -> str:
        listed = commands.json("project", "list")
        return str(next(one["state"] for one in listed if one["id"] == commands.project_id))

    assert "No consent requests" in commands.said("plugin", "consents", *mine)
    write_stub(commands.root / "tools" / "asked", ECHO, name="asked", license="MIT")
    declared = "{asked: {package: asked, source: ./tools/asked}}"
    make_project(commands.root, USING % (commands.slug, declared))
    assert "kaged plugin consents" in commands.said(
        "project", "load", "--trust", str(commands.root)
    )
    (asked,) = commands.json("plugin", "consents", *mine)
    assert state() == "pending"
    assert asked["id"] in commands.said("plugin", "consents")
    assert "asks again" in commands.said("plugin", "deny", asked["id"])
    assert "declined" in commands.said("plugin", "consents", *mine)
    commands.said("project", "reload", commands.slug, "--trust")
    (again,) = commands.json("plugin", "consents", *mine)
    words = ("plugin", "approve", again["id"])
    assert on_terminal(commands.home, *words, answer="", NO_COLOR="1")[0] != 0
    assert "asked" not in {one["name"] for one in commands.json("plugin", "list")}
    code, text = on_terminal(commands.home, *words, "--enable", answer="y", NO_COLOR="1")
    assert code == 0, text
    assert "license: MIT" in text
    assert "asked is running." in text
    assert state() == "loaded"
    assert commands.said("plugin", "approve", "consent_nothing", expect=1)
    commands.said("plugin", "disable", "asked")
