"""`kaged credential`: what programs in cages use without seeing it. No command prints a value."""

from __future__ import annotations

import getpass
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.context import locations, require_own_daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output, table
from kaged.cli.runner import DaemonClient, daemon_command, group

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.config.tomledit import TomlEdit

LIMIT_CHARS = 64 * 1024
TAKEN_S = 10.0
LOOK_S = 0.05
HERE = "Run it where the daemon runs."

Name = Annotated[str, typer.Argument(help="The credential's name, such as github.")]
Hosts = Annotated[
    list[str], typer.Option("--host", help="A host it may go to, or host:port; may be repeated.")
]
Places = Annotated[
    list[str] | None,
    typer.Option("--place", help="bearer, basic, basic:USER, header:NAME, query:NAME; repeatable."),
]
Rules = Annotated[
    list[str] | None,
    typer.Option("--rule", help="A rule such as 'GET /repos/**'; may be repeated."),
]
Env = Annotated[
    list[str] | None, typer.Option("--env", help="A variable of the cage; may be repeated.")
]
Files = Annotated[
    list[str] | None,
    typer.Option("--file", help="netrc, npmrc, pip or git-credentials; may be repeated."),
]
Projects = Annotated[
    list[str] | None,
    typer.Option("--project", help="A project whose agents may use it; may be repeated."),
]
Agents = Annotated[
    list[str] | None, typer.Option("--agent", help="An agent of those projects, or a glob.")
]
CaFile = Annotated[
    Path | None, typer.Option("--ca-file", help="Certificates that its hosts are checked with.")
]
Program = Annotated[
    str | None, typer.Option("--command", help="A program of yours that prints the value.")
]
AskedPath = Annotated[str, typer.Option("--path", help="What to ask the first host for.")]

app = group("Let programs in cages use credentials that they never see.")


def _hosts(one: dict[str, Any]) -> str:
    return ", ".join(one["hosts"])


@daemon_command(app, "list", view=table(("name", "state", "source", ("hosts", _hosts))))
def list_credentials(client: DaemonClient) -> Any:
    """List the credentials: where each may go and whether it has a value."""
    return client.get("/credentials")["credentials"]


def _show(found: Any, output: Output) -> None:
    output.line(f"● {found['name']}: {found['state']}")
    for problem in found["problems"]:
        output.line(f"  {problem['message']}")
        if problem["fix"]:
            output.line(f"  fix: {problem['fix']}")
    if found["state"] == "invalid":
        return
    if found["detail"]:
        output.line(f"  {found['detail']}")
    if found["fix"]:
        output.line(f"  fix: {found['fix']}")
    output.line(f"  its value comes from: {found['source']}")
    output.line("  a cage that has it:")
    for one in found["allows"]:
        output.line(f"    {one['words']}")
    granted = {key: names for key, names in found["for"].items() if names}
    for key, names in granted.items():
        output.line(f"  {key}: {', '.join(names)}")
    if not granted:
        output.line(f"  Nobody may use it: [credentials.{found['name']}.for] names nobody.")


@daemon_command(app, "show", view=_show)
def show(client: DaemonClient, name: Name) -> Any:
    """Show one credential in words: where it may go, for whom, and what a cage sees of it."""
    return client.get(f"/credentials/{name}")


@daemon_command(app, "add", view=_show)
def add(
    client: DaemonClient,
    name: Name,
    host: Hosts,
    place: Places = None,
    rule: Rules = None,
    env: Env = None,
    file: Files = None,
    project: Projects = None,
    agent: Agents = None,
    ca_file: CaFile = None,
    command: Program = None,
) -> Any:
    """Write [credentials.NAME] into config.toml, and keep the value that is typed in the vault."""
    from kaged.config.credentials_section import check_credential

    require_own_daemon(HERE)
    shown = {"env": env, "files": file}
    granted = {"projects": project, "agents": agent}
    given: dict[str, Any] = {
        "hosts": host,
        "place": place,
        "rules": rule,
        "ca_file": None if ca_file is None else str(ca_file.absolute()),
        "command": command,
        "as": {key: found for key, found in shown.items() if found},
        "for": {key: found for key, found in granted.items() if found},
    }
    section = {key: found for key, found in given.items() if found}
    check_credential(name, section)
    value = None if command is not None else _typed(f"Value of {name}")
    known = {one["name"] for one in client.get("/credentials")["credentials"]}
    if name in known:
        raise KagedError(
            f"There is a credential {name} already.",
            code="credential_exists",
            fix=f"`kaged credential set {name}` gives it another value; config.toml has the rest.",
        )
    _edit(client, lambda edit: edit.set(("credentials", name), section))
    _until(client, name, there=True)
    if value is not None:
        return client.put(f"/credentials/{name}/value", {"value": value})
    return client.get(f"/credentials/{name}")


@daemon_command(app, "set", view="{found[name]} is {found[state]}.")
def set_value(client: DaemonClient, name: Name) -> Any:
    """Keep another value in the vault. It is typed without an echo, or read from a pipe."""
    client.get(f"/credentials/{name}")  # before anybody types
    return client.put(f"/credentials/{name}/value", {"value": _typed(f"Value of {name}")})


def _show_test(found: Any, output: Output) -> Exit | None:
    if found["refused"]:
        output.line(f"Nothing was sent to {found['host']}: {found['detail']} [{found['refused']}]")
    elif found["status"] is None:
        output.line(f"{found['host']} was not reached: {found['detail']}")
    else:
        output.line(f"{found['host']} answered {found['status']} to GET {found['path']}.")
    return None if found["ok"] else Exit.FINDINGS


@daemon_command(app, "test", view=_show_test)
def ask_host(client: DaemonClient, name: Name, path: AskedPath = "/") -> Any:
    """Ask its first host, out of a cage, as an agent's program would. Exit code 8 on a refusal."""
    return client.post(f"/credentials/{name}/test", {"path": path})


@daemon_command(app, "remove", view="The credential {found[name]} is gone.")
def remove(client: DaemonClient, name: Name) -> Any:
    """Forget its value and take it out of config.toml. Cages that run lose it at once."""
    require_own_daemon(HERE)
    known = {one["name"] for one in client.get("/credentials")["credentials"]}
    removed = client.delete(f"/credentials/{name}/value")["removed"]
    if name in known:
        _edit(client, lambda edit: edit.delete(("credentials", name)))
        _until(client, name, there=False)
    elif not removed:
        raise KagedError(
            f"There is no credential {name}.",
            code="credential_not_found",
            fix="`kaged credential list` shows them.",
        )
    return {"name": name, "removed": True}


def _edit(client: DaemonClient, change: Callable[[TomlEdit], None]) -> None:
    from kaged.config.editing import edit_toml

    edit_toml(locations().config_toml, change)
    os.kill(client.get("/status")["pid"], signal.SIGHUP)  # it reads the file again


def _until(client: DaemonClient, name: str, *, there: bool) -> None:
    """Wait until the daemon has read the file."""
    ends_s = time.monotonic() + TAKEN_S
    while True:
        known = {one["name"] for one in client.get("/credentials")["credentials"]}
        if (name in known) is there:
            return
        if time.monotonic() > ends_s:
            raise KagedError(
                "The daemon has not read config.toml again: something else in it is wrong.",
                code="config_invalid",
                fix="`kaged doctor` shows what.",
            )
        time.sleep(LOOK_S)


def _typed(label: str) -> str:
    if sys.stdin.isatty():
        value = getpass.getpass(f"{label}: ", stream=sys.stderr)
    else:
        value = sys.stdin.read(LIMIT_CHARS + 2).removesuffix("\n")
    if not value or len(value) > LIMIT_CHARS:
        raise KagedError(
            "The value is empty or too long.", code="invalid_params", fix="Type it again."
        )
    return value
