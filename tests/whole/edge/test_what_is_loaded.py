"""What a command and an idle daemon load. Everybody who runs them waits for it and pays for it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project

TOLD = {"PYTHONPROFILEIMPORTTIME": "1"}
"""Makes Python write a line to standard error for each module that it loads."""

LINE = re.compile(r"^import time: +\d+ \| +\d+ \| *(\S+)$", re.MULTILINE)

FOR_ONE_ANSWER = {
    "asyncio", "cryptography", "email", "fastapi", "http", "httpx", "importlib.metadata", "logging",
    "msgspec", "pydantic", "pydantic_core", "rich", "sqlalchemy", "sqlite3", "ssl", "starlette",
    "structlog", "uvicorn", "websockets", "kaged.app", "kaged.audit", "kaged.cage", "kaged.serve",
    "kaged.store", "kaged.tools",
}  # fmt: skip
"""What no command needs to ask a running daemon and to show its answer in a pipe."""

FOR_NOTHING_YET = {
    "anthropic", "authlib", "cryptography", "debugpy", "httpx", "httpx2", "icalendar", "lupa",
    "mcp", "openai", "pydantic_ai", "pygments", "rich.console", "ruamel", "sqlglot", "typer",
    "kaged.cli.app", "kaged.sandbox", "kaged.sdk",
}  # fmt: skip
"""What a daemon without projects, accounts, scripts and model calls has no use for."""


def loaded(told: str) -> set[str]:
    """Return the modules that Python said it loaded, with the packages that they are in."""
    names = set(LINE.findall(told))
    return names | {
        name.rsplit(".", count)[0] for name in names for count in range(1, name.count(".") + 1)
    }


@pytest.mark.parametrize(
    "command",
    [
        ["daemon", "status"],
        ["status", "--json"],
        ["project", "list"],
        ["audit", "tail", "--lines", "3"],
    ],
    ids=" ".join,
)
def test_a_command_loads_little(daemon: Daemon, command: list[str]) -> None:
    done = daemon.cli(*command, env=TOLD)
    found = loaded(done.err)
    assert "kaged.cli.client" in found, "nothing was told"
    assert found & FOR_ONE_ANSWER == set()


def test_a_tool_call_loads_little(daemon: Daemon, project: Project) -> None:
    (project.root / "a.txt").write_text("one line\n", encoding="utf-8")
    where = ["--project", str(project.root)]
    done = daemon.cli("tool", "call", "file.read", "path=a.txt", *where, env=TOLD)
    assert "one line" in done.out
    assert loaded(done.err) & FOR_ONE_ANSWER == set()


def test_the_help_of_all_commands_needs_neither_daemon_nor_client(daemon: Daemon) -> None:
    done = daemon.cli("--help", env=TOLD)
    assert "project" in done.out
    found = loaded(done.err)
    assert "kaged.cli.app" in found
    assert found & {"httpx", "pydantic", "rich", "fastapi", "sqlalchemy", "kaged.app"} == set()


def test_an_idle_daemon_loads_nothing_that_nobody_asked_for(own: Callable[..., Daemon]) -> None:
    daemon = own(env=TOLD)
    daemon.start()
    assert daemon.get("/status")["projects"] == 0  # answered once everything is open
    found = loaded(daemon.log())
    assert "kaged.app.subsystems" in found, "nothing was told"
    assert found & FOR_NOTHING_YET == set()
