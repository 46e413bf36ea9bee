"""Servers are added, imported from other clients' files and removed by commands."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.mcp import TOOLS, node_server, python_server
from whole.harness.model import ModelServer
from whole.harness.project import Project

VENV = Path(sys.prefix)
MODULES = TOOLS / "node_modules"
COMMENT = "# what I wrote about MCP\n"
CONFIG = f"""\
[daemon]
bind = "127.0.0.1:0"

{COMMENT}[mcp.servers.byhand]
command = ["true"]
enabled = false
secrets = {{ HAND = "hand" }}

# what I wrote about the log
[log]
level = "info"
"""
KEY = "kw-0815-flamingo"


@pytest.fixture
def here(own: Callable[..., Daemon], model: ModelServer) -> Daemon:
    """Return a daemon that runs, with a section and comments of somebody's."""
    made = own(config=CONFIG, local=model.local_toml() + "\n# mine\n")
    made.start()
    return made


def config_of(daemon: Daemon) -> str:
    return (daemon.home / "config.toml").read_text(encoding="utf-8")


def local_of(daemon: Daemon) -> str:
    path = daemon.home / "local.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text(encoding="utf-8")


def names_of(daemon: Daemon) -> dict[str, str]:
    return {one["name"]: one["state"] for one in daemon.get("/mcp/servers")["servers"]}


def add(daemon: Daemon, name: str, command: list[str], *options: str, code: int = 0) -> Any:
    done = daemon.cli("mcp", "add", name, *options, "--", *command, code=code)
    return done.out + done.err


def importing(daemon: Daemon, *words: str, code: int | None = 0, **options: Any) -> Any:
    done = daemon.cli("mcp", "import", "--json", *words, code=code, **options)
    return {one["original"]: one for one in done.json["servers"]}


def test_a_published_server_is_added_tried_used_and_removed(here: Daemon, tmp_path: Path) -> None:
    said = add(
        here, "every", node_server("everything"),
        "--read", str(MODULES), "--env", f"MY_KEY={KEY}", "--env", "MY_HOME=${HOME}",
    )  # fmt: skip
    assert "tool: echo" in said
    assert "network: none" in said
    assert f"reads: {MODULES}" in said
    assert KEY not in said
    assert names_of(here)["every"] == "running"
    assert COMMENT in config_of(here)
    assert "# what I wrote about the log" in config_of(here)
    assert KEY not in config_of(here)
    assert f'mcp-every-MY_KEY = "{KEY}"' in local_of(here)
    project = here.load(Project(tmp_path / "p"))
    shown = json.dumps(project.call("every.get-env"))
    assert KEY in shown
    assert str(here.home) in shown

    # The second one, beside the first.
    clock = python_server("time", "--local-timezone", "UTC")
    add(here, "clock", clock, "--read", str(VENV), "--env", "OTHER=kw-other")
    running = {name for name, state in names_of(here).items() if state == "running"}
    assert running == {"every", "clock"}
    assert "mcp_server_exists" in add(here, "clock", ["true"], code=7)
    assert "mcp_server_not_found" in here.cli("mcp", "remove", "nobody", code=3).err

    here.cli("mcp", "remove", "every")
    assert set(names_of(here)) == {"byhand", "clock"}
    assert KEY not in local_of(here)
    assert "kw-other" in local_of(here)
    assert "# mine" in local_of(here)
    here.cli("mcp", "remove", "clock")
    here.cli("mcp", "remove", "byhand")
    lines = [line for line in config_of(here).splitlines() if line]
    assert lines[2:] == [COMMENT.strip(), "# what I wrote about the log", "[log]", 'level = "info"']
    assert names_of(here) == {}


def test_a_server_that_does_not_start_is_taken_back(here: Daemon) -> None:
    before = config_of(here), (here.home / "local.toml").read_text(encoding="utf-8")
    bad = ["sh", "-c", "echo the flamingo is missing >&2; exit 3"]
    said = add(here, "bad", bad, "--env", f"A={KEY}", code=1)
    assert "the flamingo is missing" in said
    assert "mcp_server_unavailable" in said
    assert "bad" not in names_of(here)
    assert KEY not in local_of(here)
    assert "mcp.servers.bad" not in config_of(here)
    assert COMMENT in config_of(here)

    # In the place of one that runs: that one is back, and runs.
    every = node_server("everything")
    add(here, "every", every, "--read", str(MODULES), "--env", f"A={KEY}")
    add(here, "every", bad, "--replace", code=1)
    wait_for(lambda: names_of(here)["every"] == "running")
    assert KEY in local_of(here)
    here.cli("mcp", "remove", "every")
    assert config_of(here).replace("\n", "") == before[0].replace("\n", "")

    add(here, "bad", bad, "--no-try")
    wait_for(lambda: names_of(here)["bad"] in {"crashed", "failed"})


def test_a_file_that_is_wrong_elsewhere_takes_no_server(here: Daemon) -> None:
    here.write(
        "config.toml", config_of(here).replace("[log]", "[lsp]\nidle_timeout_seconds = 0\n[log]")
    )
    before = config_of(here)
    said = add(here, "every", node_server("everything"), "--env", f"A={KEY}", code=1)
    assert "something else in config.toml is wrong" in said
    assert KEY not in local_of(here)
    assert config_of(here).replace("\n", "") == before.replace("\n", "")


def test_a_package_needs_its_runner_and_gets_no_network(here: Daemon, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    empty = {"PATH": str(tmp_path / "bin")}
    for package in ("npm:@scope/some-server@1.2.3", "pypi:some-server==1"):
        done = here.cli("mcp", "add", "some", package, env=empty, code=6)
        assert "Install" in done.err
    npx = tmp_path / "bin" / "npx"
    npx.write_text("#!/bin/sh\n", encoding="utf-8")
    npx.chmod(0o755)
    done = here.cli(
        "mcp", "add", "some", "npm:@scope/some-server@1.2.3", "--no-try", "--json",
        "--net", "registry.example:443", env=empty,
    )  # fmt: skip
    assert done.json["command"] == [str(npx), "-y", "@scope/some-server@1.2.3"]
    assert done.json["net"] == ["registry.example:443"]
    for wrong in ("npm:a b", "npm:--help", "npm:../x", "pypi:-r", "npm:"):
        here.cli("mcp", "add", "other", wrong, code=6)
    here.cli("mcp", "add", "Odd Name", "https://one.example/mcp", code=6)
    here.cli("mcp", "add", "search", "https://one.example/mcp", code=6)
    here.cli("mcp", "add", "url", "https://one.example/mcp", "--no-try")
    assert 'url = "https://one.example/mcp"' in config_of(here)


FILES = {
    ".claude.json": {
        "mcpServers": {"Claude Code": {"command": "cc", "args": ["-x"], "env": {"K": KEY}}},
        "projects": {"PROJECT": {"mcpServers": {"of-project": {"command": "true"}}}, "/x": 1},
    },
    ".config/Claude/claude_desktop_config.json": {
        "mcpServers": {"desk/top": {"command": "true", "env": {"REF": "${HOME}"}}}
    },
    ".config/opencode/opencode.json": {
        "mcp": {
            "oc": {"type": "local", "command": ["oc", "serve"], "environment": {"A": "{env:HOME}"}},
            "oc-remote": {"type": "remote", "url": "https://oc.example/mcp", "enabled": False},
        }
    },
    ".config/zed/settings.json": {
        "context_servers": {"zed": {"command": {"path": "z", "args": ["1"], "env": {"Z": KEY}}}}
    },
}
CODEX = """\
model = "o"
[mcp_servers.codex]
command = "cx"
args = ["--stdio"]
env_vars = ["HOME"]
[mcp_servers.codex.env]
C = "kw-codex"
[mcp_servers.remote]
url = "https://codex.example/mcp"
bearer_token_env_var = "HOME"
"""
VSCODE = """\
{
  // comments are allowed here
  "inputs": [{"type": "promptString", "id": "key", "password": true}],
  "servers": {
    "code": {"type": "stdio", "command": "vs", "env": {"K": "${input:key}"},},
    "not//a comment": {"type": "http", "url": "https://vs.example/mcp"}, /* the last */
  },
}
"""


@pytest.fixture
def folder(here: Daemon, tmp_path: Path) -> Path:
    """Return a folder with files of clients; the home has the others."""
    project = tmp_path / "p"
    for name, content in FILES.items():
        here.write(name, json.dumps(content).replace("PROJECT", str(project)))
    here.write(".codex/config.toml", CODEX)
    (project / ".vscode").mkdir(parents=True)
    (project / ".vscode" / "mcp.json").write_text(VSCODE, encoding="utf-8")
    asks = {"command": "true", "env": {"A": "${HOME}", "B": "x${HOME}", "C": "c"}}
    shared = {
        "mcpServers": {"Shared": {"command": "true"}, "byhand": {"command": "x"}, "asks": asks}
    }
    (project / ".mcp.json").write_text(json.dumps(shared), encoding="utf-8")
    return project


def test_what_other_clients_have_is_shown_without_a_value(here: Daemon, folder: Path) -> None:
    before = config_of(here)
    dry = here.cli("mcp", "import", "--dry-run", cwd=folder)
    assert "would be written" in dry.out
    assert "variable K: mcp-claude-code-K of [secrets] in local.toml" in dry.out
    assert KEY not in dry.out + dry.err
    assert config_of(here) == before


def test_what_other_clients_have_is_imported(here: Daemon, folder: Path) -> None:
    only = importing(here, "--from", "codex", "codex", cwd=folder)
    assert set(only) == {"codex"}
    rows = importing(here, cwd=folder)
    assert {one["state"] for one in rows.values()} == {"written", "skipped"}
    assert {name for name, one in rows.items() if one["state"] == "skipped"} == {"byhand", "codex"}
    assert rows["Claude Code"]["command"] == ["cc", "-x"]
    assert rows["desk/top"]["name"] == "desk-top"
    assert rows["desk/top"]["env"] == {"REF": "${HOME}"}
    assert rows["oc"]["command"] == ["oc", "serve"]
    assert rows["oc"]["env"] == {"A": "${HOME}"}
    assert rows["oc-remote"]["enabled"] is False
    assert only["codex"]["env"] == {"HOME": "${HOME}"}
    assert only["codex"]["command"] == ["cx", "--stdio"]
    assert rows["remote"]["env"] == {"MCP_AUTHORIZATION": "Bearer ${HOME}"}
    assert rows["zed"]["command"] == ["z", "1"]
    assert rows["code"]["name"] == "code-mcp"  # `code` are tools of kaged's own
    assert "as mcp-code-mcp-K" in rows["code"]["notes"][0]
    assert rows["not//a comment"]["url"] == "https://vs.example/mcp"
    # What a folder of anybody's names of the environment is not handed out by itself.
    asked = rows["asks"]
    assert asked["env"] == {}
    assert len(asked["notes"]) == 2
    assert "${HOME}" not in local_of(here)
    for value in (KEY, "kw-codex"):
        assert value not in config_of(here)
        assert value in local_of(here)
    assert COMMENT in config_of(here)
    assert "cage" not in config_of(here)
    known = names_of(here)
    assert {"claude-code", "of-project", "desk-top", "oc", "zed", "codex", "shared"} <= set(known)
    code = here.get("/mcp/servers/code-mcp")
    assert (code["state"], "mcp-code-mcp-K" in code["note"]) == ("disabled", True)


def test_a_second_import_skips_what_is_there_unless_told(here: Daemon, folder: Path) -> None:
    importing(here, cwd=folder)
    again = importing(here, cwd=folder)
    assert {one["state"] for one in again.values()} == {"skipped"}
    words = ("Claude Code", "--replace", "--net", "a.example:443", "--read", "/opt")
    other = importing(here, *words, cwd=folder)
    assert other["Claude Code"]["net"] == ["a.example:443"]
    assert "a.example:443" in config_of(here)
    assert here.cli("mcp", "import", "nobody", cwd=folder, code=8).err


HOSTILE: dict[str, Any] = {
    "bell\x07\x1b[31m": {"command": "true"},
    "\ud800": {"command": "true"},
    "../../etc": {"command": "true"},
    "no": "table",
    "none": {},
    "both": {"command": "a", "url": "https://a.example"},
    "escape": {"command": "true", "args": ["\x1b]0;x\x07"]},
    "surrogate": {"command": "true", "env": {"A": "\udfff"}},
    "argument": {"command": "true", "args": ["--api-key", "sk-flamingoflamingoflamingo"]},
    "address": {"url": f"https://user:{KEY}@a.example/mcp"},
    "folder": {"command": "${workspaceFolder}/x"},
    "variable": {"command": "true", "env": {"A-B": "c"}},
    "header": {"url": "https://a.example", "headers": {"X-Key": KEY}},
    "file": {"url": "file:///etc/passwd"},
    "long": {"command": "x" * 5000},
    "many": {"command": "true", "args": ["x"] * 500},
    "sse": {"type": "sse", "url": "https://a.example"},
    "nul": {"command": "true", "env": {"A": "a\x00"}},
}
TAKEN = {"bell-31m", "etc", "ud800"}


def test_hostile_files_are_refused_piece_by_piece(here: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps({"mcpServers": HOSTILE}), encoding="utf-8")
    plain = here.cli("mcp", "import", "--from", str(file), "--dry-run", code=8)
    assert "\x1b" not in plain.out + plain.err
    assert KEY not in plain.out + plain.err
    assert "sk-flamingo" not in plain.out + plain.err
    rows = importing(here, "--from", str(file), code=8)
    taken = {name for name, one in rows.items() if one["state"] == "written"}
    assert {rows[one]["name"] for one in taken} == TAKEN
    assert KEY not in config_of(here) + local_of(here)
    here.restart()  # and what was written can be read
    wait_for(lambda: set(names_of(here)) >= TAKEN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "too deeply"),
        ('{"mcpServers": {"a": {"env": {"A": "' + KEY + '"}', "is not valid JSON"),
        ("[]", "holds no object"),
        ("{}" + " " * (17 * 1024 * 1024), "hostile.json"),
        (json.dumps({"mcpServers": {str(one): {} for one in range(300)}}), "more than 200"),
    ],
    ids=["deep", "broken", "list", "huge", "many"],
)
def test_a_file_that_cannot_be_used_says_why(
    own: Callable[..., Daemon], tmp_path: Path, text: str, said: str
) -> None:
    daemon = own(config=CONFIG)
    before = config_of(daemon)
    file = tmp_path / "hostile.json"
    file.write_text(text, encoding="utf-8")
    done = daemon.cli("mcp", "import", "--from", str(file), code=8)
    assert said in done.err
    assert KEY not in done.err
    assert config_of(daemon) == before


def test_links_and_pipes_in_a_project_lead_nowhere(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon, project = own(config=CONFIG), tmp_path / "p"
    project.mkdir()
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps({"mcpServers": {"far": {"command": "true"}}}), encoding="utf-8")
    (project / ".mcp.json").symlink_to(outside)
    (project / ".vscode").mkdir()
    os.mkfifo(project / ".vscode" / "mcp.json")
    done = daemon.cli("mcp", "import", cwd=project, code=8)
    assert ".mcp.json" in done.err
    assert "a link that leaves the project" in done.err
    assert ".vscode/mcp.json: error: is a FIFO" in done.err
    assert "far" not in config_of(daemon)
