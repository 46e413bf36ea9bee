"""`kaged pipeline check|explain|trace`, as people and programs run them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import ANY_PORT, kaged, make_home

RULES = """\
plugins:
  - name: house-rules
    kind: kaged.pipeline.policies.DenyRules
    hooks: [tool_pre_invoke]
    capabilities: [read_roles]
    config:
      rules:
        - deny: "shell.*"
          unless: {roles: [admin]}
          because: only admins run commands
  - name: headers
    kind: kaged.pipeline.policies.HeaderAllowlist
    hooks: [tool_pre_invoke]
    capabilities: [write_headers]
    priority: 10
    config: {allow: [accept]}
"""
CAGED = """\
plugins:
  - name: caged-rules
    kind: caged
    hooks: [tool_pre_invoke]
    config:
      class_name: kaged.pipeline.policies.DenyRules
      rules: [{deny: "shell.*", because: not in here}]
"""


class Commands:
    """A home and a policy file, and the commands on them."""

    def __init__(self, folder: Path) -> None:
        self.home = make_home(folder / "h")
        self.file = folder / "policies.yaml"

    def run(self, *arguments: str, expect: int = 0) -> str:
        done = kaged(self.home, "pipeline", *arguments)
        assert done.returncode == expect, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def json(self, *arguments: str, expect: int = 0) -> Any:
        done = kaged(self.home, "pipeline", *arguments, "--json")
        assert done.returncode == expect, (done.stdout, done.stderr)
        return json.loads(done.stdout or done.stderr)


@pytest.fixture
def commands() -> Iterator[Commands]:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Commands(Path(folder).resolve())


def test_check_finds_the_file_that_the_settings_name_and_says_what_it_does(
    commands: Commands,
) -> None:
    error = commands.json("check", expect=3)["error"]
    assert error["code"] == "pipeline_file_not_found"
    assert "[pipeline] file" in error["data"]["fix"]
    make_home(commands.home, f'{ANY_PORT}[pipeline]\nfile = "{commands.file}"\n')
    assert commands.json("check", expect=3)["error"]["code"] == "pipeline_file_not_found"
    commands.file.write_text(RULES, encoding="utf-8")
    assert commands.json("check") == {
        "file": str(commands.file),
        "sound": True,
        "problems": [],
        "hooks": {"tool_pre_invoke": ["headers", "house-rules"]},
    }
    assert "is valid: 2 plugins on 1 hook." in commands.run("check")


def test_check_lists_every_problem_with_its_line(commands: Commands) -> None:
    text = RULES.replace("read_roles", "read_role").replace("allow: [accept]", "alow: [accept]")
    commands.file.write_text(text, encoding="utf-8")
    found = commands.json("check", str(commands.file), expect=6)
    assert found["sound"] is False
    assert [one["line"] for one in found["problems"]] == [5, 16]
    shown = commands.run("check", str(commands.file), expect=6)
    assert f"{commands.file}:5:" in shown
    assert "did you mean read_roles" in shown
    assert f"{commands.file}:16:" in shown
    assert "alow" in shown


def test_explain_tells_order_sight_and_rights(commands: Commands) -> None:
    commands.file.write_text(RULES, encoding="utf-8")
    (hook,) = commands.json("explain", str(commands.file))["hooks"]
    assert hook["hook"] == "tool_pre_invoke"
    first, second = hook["steps"]
    assert (first["plugin"], first["order"], second["plugin"]) == ("headers", 1, "house-rules")
    assert "http" in first["may_change"]
    assert "http" not in second["sees"]
    assert "security.subject.roles" in second["sees"]
    assert second["may_deny"] is True
    assert "headers" in commands.run("explain", str(commands.file), "--hook", "tool_pre_invoke")
    assert "No plugin runs on made_up." in commands.run(
        "explain", str(commands.file), "--hook", "made_up"
    )
    commands.file.write_text(RULES.replace("priority: 10", "priority: x"), encoding="utf-8")
    assert commands.json("explain", str(commands.file), expect=6)["problems"][0]["line"] == 15


def test_trace_tells_what_each_plugin_saw_changed_and_was_refused(commands: Commands) -> None:
    commands.file.write_text(RULES, encoding="utf-8")
    slots: dict[str, Any] = {
        "http": {"headers": {"accept": "*/*", "cookie": "TOPSECRET"}},
        "security": {"subject": {"id": "u", "type": "user", "roles": ["admin"]}},
    }
    call = {"name": "shell.run", "args": {"cmd": "ls"}}
    arguments = ("--payload", json.dumps(call), "--slots", json.dumps(slots))
    found = commands.json("trace", str(commands.file), *arguments)
    assert found["allowed"] is True
    first, second = found["steps"]
    assert (first["plugin"], first["changed"], first["outcome"]) == (
        "headers",
        ["http.headers.cookie"],
        "allowed",
    )
    assert "http" in first["read"]
    assert "security.subject.roles" in second["saw"]
    assert second["duration_ns"] >= 0
    assert "TOPSECRET" not in json.dumps(found["steps"])
    assert found["extensions"]["http"] == {"headers": {"accept": "*/*"}}
    # Somebody else is denied, from a file this time.
    slots["security"]["subject"]["roles"] = []
    (commands.home / "slots.json").write_text(json.dumps(slots), encoding="utf-8")
    arguments = ("--payload", json.dumps(call), "--slots", f"@{commands.home}/slots.json")
    denied = commands.json("trace", str(commands.file), *arguments, expect=4)
    assert (denied["allowed"], denied["violation"]) == (False, "only admins run commands")
    assert "denied: only admins" in commands.run("trace", str(commands.file), *arguments, expect=4)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--payload", "{"),
        ("--payload", "[]"),
        ("--payload", "@/does/not/exist"),
        ("--payload", '{"args": {}}'),
        ("--slots", '{"http": 7}'),
    ],
)
def test_trace_says_what_does_not_fit(commands: Commands, arguments: tuple[str, ...]) -> None:
    commands.file.write_text(RULES, encoding="utf-8")
    error = commands.json("trace", str(commands.file), *arguments, expect=6)["error"]
    assert error["code"] == "pipeline_trace_input_invalid"
    assert error["data"]["fix"]


def test_caged_plugins_are_checked_and_traced_in_their_cages(commands: Commands) -> None:
    commands.file.write_text(CAGED, encoding="utf-8")
    assert commands.json("check", str(commands.file))["sound"] is True
    call = json.dumps({"name": "shell.run", "args": {}})
    denied = commands.json("trace", str(commands.file), "--payload", call, expect=4)
    assert denied["violation"] == "not in here"
    commands.file.write_text(CAGED.replace("DenyRules", "NoSuch"), encoding="utf-8")
    found = commands.json("trace", str(commands.file), expect=6)
    assert "NoSuch" in found["problems"][0]["message"]
