"""`kaged mcp add`, `import` and `remove`: sections of outside MCP servers in config.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.context import daemon, locations, require_own_daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output, one_line
from kaged.cli.runner import command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kaged.cli.mcp_clients import ClientFile, Found
    from kaged.cli.mcp_sections import Reach, Written

HERE = "Run it where the daemon runs."

Name = Annotated[str, typer.Argument(help="The server's name in config.toml.")]
Words = Annotated[
    list[str],
    typer.Argument(help="npm:PACKAGE, pypi:PACKAGE, a URL, or -- and the words of a command."),
]
Names = Annotated[
    list[str] | None, typer.Argument(help="The servers to import; all of them by default.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="claude-code, claude-desktop, opencode, codex, zed, vscode, or a file; "
        "all these clients by default.",
    ),
]
Net = Annotated[
    list[str] | None,
    typer.Option("--net", help="A target that its cage reaches, as host:port; may be repeated."),
]
Read = Annotated[
    list[Path] | None,
    typer.Option("--read", help="A path that its cage has for reading; may be repeated."),
]
Write = Annotated[
    list[Path] | None,
    typer.Option("--write", help="A path that its cage has for writing; may be repeated."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help="VARIABLE=VALUE for it, kept in local.toml; ${NAME} is the daemon's; repeatable.",
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace a server of that name.")]
NoTry = Annotated[bool, typer.Option("--no-try", help="Write the section and start nothing.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be written, only.")]

app = typer.Typer(help="Serve an agent's tools over MCP; manage outside MCP servers.")


def _show_added(found: Any, output: Output) -> Exit | None:
    _show_asked(found, output)
    for tool in found["tools"]:
        held = "" if tool["offered"] else f" (not offered: {tool['why']})"
        output.line(f"  tool: {one_line(tool['original'])}{held}")
    output.line(f"Wrote [mcp.servers.{found['name']}] to {found['file']}.")
    return None


@command(app, "add", view=_show_added)
def add(
    name: Name,
    words: Words,
    net: Net = None,
    read: Read = None,
    write: Write = None,
    env: Env = None,
    replace: Replace = False,
    no_try: NoTry = False,
) -> Any:
    """Write [mcp.servers.NAME], caged, and see what tools it offers. What fails is taken back."""
    from kaged.cli.inputs import pairs_of
    from kaged.cli.mcp_foreign import with_values
    from kaged.cli.mcp_sections import Reach, kept, let_read, parse_source, put, written_of

    require_own_daemon(HERE)
    server = parse_source(name, words)
    if env:
        server = with_values(server, dict(pairs_of(env)))
    reach = Reach.of(net, read, write)
    written = written_of(name, server, reach)
    before = kept(name)
    if before is not None and not replace:
        raise KagedError(
            f"There is an MCP server {name} already.",
            code="mcp_server_exists",
            fix="Choose another name, or give --replace.",
        )
    tools: list[Any] = []
    if no_try:
        put(name, written)
        let_read()
    else:
        tools = _put_and_try(name, written, before)
    asked = _asked(name, written, reach)
    return {**asked, "file": str(locations().config_toml), "tools": tools}


def _put_and_try(name: str, written: Written, before: Written | None) -> list[Any]:
    """Write a server and let the daemon start it; one that does not start is taken back."""
    from kaged.cli.mcp_sections import last_lines, let_read, put, tried

    with daemon() as client:
        client.get("/status")  # starts it, while the files are as they were
        put(name, written)
        keeps = False
        try:
            found = tried(client, name)
            keeps = found.get("state") == "running"
            if keeps:
                return list(found["tools"])
            note, lines = str(found.get("note", "")), last_lines(client, name)
        finally:
            if not keeps:  # also when somebody interrupts
                _put_back(name, before)
                let_read()
    said = "".join(f"\n  {one_line(line)[:400]}" for line in lines)
    raise KagedError(
        f"{name} does not start: {note or 'it says nothing'}. Its section was taken back."
        + (f" The last that it wrote:{said}" if said else ""),
        code="mcp_server_unavailable",
        fix="A cage has no network and no folders but those of --net, --read and --write. "
        "A runner such as npx has to reach its registry.",
        stderr=[*lines],
    )


def _put_back(name: str, before: Written | None) -> None:
    from kaged.cli.mcp_sections import put, take_away

    if before is None:
        take_away(name)
    else:
        put(name, before)


@command(app, "remove", view="Removed [mcp.servers.{name}].")
def remove(name: Name) -> Any:
    """Remove a server from config.toml, and its secrets from local.toml."""
    from kaged.cli.mcp_sections import kept_sections, let_read, take_away

    require_own_daemon(HERE)
    if name not in kept_sections():
        raise KagedError(
            f"config.toml has no section [mcp.servers.{name}].",
            code="mcp_server_not_found",
            fix="`kaged mcp servers` lists them.",
        )
    take_away(name)
    let_read()
    return {"name": name, "file": str(locations().config_toml)}


def _show_imported(found: Any, output: Output) -> Exit | None:
    for one in found["servers"]:
        if one["state"] in {"written", "would be written"}:
            _show_asked(one, output)
        else:
            output.line(f"● {one_line(one['original'])}: {one['state']}, {one['reason']}")
            output.line(f"  from: {one['from']}")
    for problem in found["problems"]:
        output.note(problem)
    if not found["servers"]:
        output.note("No MCP servers were found.")
    bad = found["problems"] or any(one["state"] == "refused" for one in found["servers"])
    return Exit.FINDINGS if bad else None


@command(app, "import", view=_show_imported)
def import_servers(
    names: Names = None,
    source: From = None,
    net: Net = None,
    read: Read = None,
    write: Write = None,
    replace: Replace = False,
    dry_run: DryRun = False,
) -> Any:
    """Take over MCP servers of other clients: each caged, without network and folders.

    Exit code 8 when a file or a server cannot be used.
    """
    from kaged.cli.mcp_sections import Reach, let_read

    require_own_daemon(HERE)
    files, project = _files(source), Path.cwd()
    found, problems = _read_all(files, project)
    rows = list(
        _imported(
            found,
            set(names or ()),
            Reach.of(net, read, write),
            replaces=replace,
            dry_run=dry_run,
        )
    )
    known = {one[key] for one in rows for key in ("name", "original")}
    problems += [f"No client has a server {one!r}." for one in names or () if one not in known]
    if any(one["state"] == "written" for one in rows):
        let_read()
    return {"servers": rows, "problems": problems}


def _files(source: str | None) -> Sequence[ClientFile]:
    from kaged.cli.mcp_clients import CLIENTS, ClientFile, files_of

    if source is not None and source not in CLIENTS:
        return (ClientFile(Path(source)),)
    return files_of(CLIENTS if source is None else (source,), Path.home(), Path.cwd())


def _read_all(files: Sequence[ClientFile], project: Path) -> tuple[list[Found], list[str]]:
    from kaged.cli.mcp_clients import read_client

    found: list[Found] = []
    problems: list[str] = []
    for file in files:
        try:
            servers = read_client(file, project)
        except KagedError as error:
            problems.append(error.message)
            continue
        if servers is None and len(files) == 1:
            problems.append(f"There is no file {file.path}.")
        found += servers or ()
    return found, problems


def _imported(
    found: Sequence[Found], names: set[str], reach: Reach, *, replaces: bool, dry_run: bool
) -> Iterator[dict[str, Any]]:
    from kaged.cli.mcp_foreign import Refused
    from kaged.cli.mcp_sections import kept_sections, own_name, put, written_of

    known = set(kept_sections())
    taken: dict[str, Path] = {}
    for one in found:
        name = own_name(one.server.original)
        if names and not names & {name, one.server.original}:
            continue
        row = {"name": name, "original": one.server.original, "from": str(one.file)}
        if isinstance(one.server, Refused):
            yield {**row, "state": "refused", "reason": one.server.reason}
            continue
        if name in taken:
            yield {**row, "state": "skipped", "reason": f"{name} is from {taken[name]}"}
            continue
        if name in known and not replaces:
            reason = f"config.toml has {name} already; --replace replaces it"
            yield {**row, "state": "skipped", "reason": reason}
            continue
        try:
            written = written_of(name, one.server, reach)
        except KagedError as error:
            yield {**row, "state": "refused", "reason": one_line(error.message)}
            continue
        taken[name] = one.file
        if not dry_run:
            put(name, written)
        state = "would be written" if dry_run else "written"
        asked = _asked(name, written, reach)
        notes = [
            *one.server.notes,
            *(_to_put(written, variable) for variable in one.server.missing),
        ]
        yield {**row, **asked, "state": state, "notes": notes}


def _to_put(written: Written, variable: str) -> str:
    entries = written.section["secrets"]
    assert isinstance(entries, dict)
    return f"put the value of {variable} under [secrets] in local.toml, as {entries[variable]}"


def _asked(name: str, written: Written, reach: Reach) -> dict[str, Any]:
    """Return what a server asks for; no value of a variable is in it."""
    section = written.section
    return {
        "name": name,
        "command": section.get("command", []),
        "url": section.get("url"),
        "env": section.get("env", {}),
        "secrets": section.get("secrets", {}),
        "enabled": section.get("enabled", True),
        "net": list(reach.net),
        "read": list(reach.read),
        "write": list(reach.write),
    }


def _show_asked(one: dict[str, Any], output: Output) -> None:
    import shlex

    output.line(f"● {one['name']}" + (f": {one['state']}" if "state" in one else ""))
    if "from" in one:
        output.line(f"  from: {one['from']}, where it is {one_line(one['original'])}")
    if one["url"] is not None:
        output.line(f"  connects to: {one['url']}, and nowhere else")
    else:
        output.line(f"  runs, in a cage: {one_line(shlex.join(one['command']))}")
    for variable, text in one["env"].items():
        output.line(f"  variable {variable}: {text} of the daemon's environment")
    for variable, entry in one["secrets"].items():
        output.line(f"  variable {variable}: {entry} of [secrets] in local.toml")
    for words, key in (("network", "net"), ("reads", "read"), ("writes", "write")):
        if one[key] or (key == "net" and one["url"] is None):
            output.line(f"  {words}: {', '.join(one[key]) or 'none'}")
    if not one["read"] and not one["write"]:
        output.line("  folders: none")
    if not one["enabled"]:
        output.line("  It is switched off, as it was there.")
    for note in one.get("notes", ()):
        output.line(f"  {note}")
