"""`kaged session`: find, read, fork, switch, export and delete the sessions of a project."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.inputs import read_bytes
from kaged.cli.named_files import open_export
from kaged.cli.output import Output, View, moment, short_moment, table
from kaged.cli.runner import DaemonClient, Lines, group, project_command
from kaged.cli.transcript import show_entries, show_tree

PAGE_ENTRIES = 500
IMPORT_LIMIT_BYTES = 32 * 1024 * 1024
CURRENT = "current"

Which = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session's id, or the beginning of it.")
]

app = group("Look at sessions and move between them.")

_show_calls = table(
    (
        ("when", moment("started_at")),
        "agent=caller",
        "tool=tool_name",
        "status",
        "request=request_id",
    ),
    "items",
)
_show_runs = table(
    (
        "run=id",
        "status",
        "cause",
        "model",
        "steps",
        ("began", moment("started_at")),
        ("ended", moment("ended_at")),
    ),
    "items",
)


def _show_moved(words: str) -> View:
    def show(done: Any, output: Output) -> None:
        if done["pending"]:
            output.line("A run is active; the session is switched when it has ended.")
        else:
            output.line(f"{words} {done['session']['id']}.")

    return show


def _show_compacted(done: Any, output: Output) -> None:
    plain = str | int | float | bool | None
    output.fields({name: value for name, value in done.items() if isinstance(value, plain)})


@project_command(
    app,
    "list",
    view=table(
        (
            ("", lambda one: "*" if one["current"] else ""),
            "id",
            "status",
            "entries",
            ("used", moment("updated_at")),
            "title",
        ),
        "items",
    ),
)
def list_sessions(
    client: DaemonClient,
    kind: Annotated[str | None, typer.Option(help="Only this kind: primary or workflow.")] = None,
    lines: Lines = 50,
) -> Any:
    """List sessions, the last used first; * marks the current one."""
    return client.get("/sessions", {"kind": kind, "limit": lines})


@project_command(app, "show")
def show(
    client: DaemonClient,
    output: Output,
    session: Which = CURRENT,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Maximum number of entries; 0 for all.")
    ] = 40,
    calls: Annotated[bool, typer.Option("--calls", help="Show its tool calls instead.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="Show its runs instead.")] = False,
) -> None:
    """Show what was said and done in a session, the newest last."""
    found = client.get(f"/sessions/{session}")
    if calls or runs:
        what, view = ("tool-calls", _show_calls) if calls else ("runs", _show_runs)
        rows = client.get(f"/sessions/{found['id']}/{what}", {"limit": 200})
        output.result(rows)
        view(rows, output)
        return
    entries = _entries(client, found["id"], lines)
    output.result({**found, "entries_shown": entries})
    origin = f"{found['parent_session']} at {found['parent_entry']}"
    output.fields(
        {
            "session": found["id"] + (" (current)" if found["current"] else ""),
            "title": found["title"],
            "status": " ".join(filter(None, (found["status"], found["detail"]))),
            "model": found["model"],
            "forked from": None if found["parent_session"] is None else origin,
            "entries": found["entries"],
            "active run": found["active_run"],
            "used": short_moment(found["updated_at"]),
        }
    )
    show_entries(entries, output)


@project_command(app, "tree", view=lambda found, output: show_tree(found["sessions"], output))
def tree(client: DaemonClient) -> Any:
    """Show which session was forked from which. * marks the current one."""
    return client.get("/sessions/tree")


@project_command(
    app,
    "search",
    view=table(
        (
            "session=session_id",
            "entry=entry_id",
            ("role", lambda one: one["role"] or one["kind"]),
            ("when", moment("ts")),
            "text=snippet",
        ),
        "items",
    ),
)
def search(
    client: DaemonClient,
    words: Annotated[list[str], typer.Argument(help="The words to look for.")],
    session: Annotated[
        str | None, typer.Option("--session", help="Only what this session shows.")
    ] = None,
    lines: Lines = 20,
) -> Any:
    """Search what was said in sessions, newest first."""
    query = {"q": " ".join(words), "session": session, "limit": lines}
    return client.get("/sessions/search", query)


@project_command(app, "fork", view=_show_moved("Forked to"))
def fork(
    client: DaemonClient,
    session: Which = CURRENT,
    at: Annotated[
        str | None, typer.Option("--at", help="The entry to fork at. Default: the last one.")
    ] = None,
    switch: Annotated[
        bool, typer.Option("--switch", help="Make the fork the project's current session.")
    ] = False,
) -> Any:
    """Fork a session at an entry; the session itself stays as it is."""
    return client.post(f"/sessions/{session}/fork", {"at": at, "switch": switch})


@project_command(app, "switch", view=_show_moved("Now in"))
def switch_to(client: DaemonClient, session: Which) -> Any:
    """Make a session the current one of the project."""
    return client.post(f"/sessions/{session}/switch")


@project_command(app, "resume", view="{found[session_id]} continues with {found[run_id]}.")
def resume(
    client: DaemonClient,
    output: Output,
    session: Which = CURRENT,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the agent until it is done.")
    ] = False,
) -> Any:
    """Continue a run that was cut off, for example by a restart."""
    if not follow:
        return client.post(f"/sessions/{session}/resume")
    from kaged.cli.commands.driving import WatchedSession
    from kaged.cli.runview import RunView

    found = str(client.get(f"/sessions/{session}")["id"])
    with WatchedSession(client, found, RunView(as_json=output.as_json), output) as talk:
        ended = talk.watch(client.post(f"/sessions/{found}/resume")["run_id"])
    raise typer.Exit(ended.exit)


@project_command(app, "title", view="{found[id]} is called {found[title]!r} now.")
def title(
    client: DaemonClient,
    session: Which,
    text: Annotated[str, typer.Argument(help="The new title.")],
) -> Any:
    """Change a session's title."""
    return client.patch(f"/sessions/{session}", {"title": text})


@project_command(app, "compact", view=_show_compacted)
def compact(
    client: DaemonClient,
    session: Which = CURRENT,
    agent: Annotated[
        str, typer.Option("--agent", "-a", help="The agent whose context window is compacted.")
    ] = "primary",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
) -> Any:
    """Free space in an agent's context window. The entries stay in the session."""
    return client.post(f"/sessions/{session}/compact", {"agent": agent, "dry_run": dry_run})


@project_command(
    app,
    "grants",
    view=table(
        ("id", "agent", "may=words", "until=scope", ("since", moment("granted_at")), "granted_by"),
        "items",
    ),
)
def grants(client: DaemonClient, session: Which = CURRENT) -> Any:
    """List what you let agents do in a session when their calls were refused."""
    return client.get(f"/sessions/{session}/grants")


@project_command(app, "revoke", view="Took back {found[id]}.")
def revoke(
    client: DaemonClient,
    grant: Annotated[str, typer.Argument(help="The id from `kaged session grants`.")],
    session: Annotated[
        str, typer.Option("--session", "-s", help="The session. Default: the current one.")
    ] = CURRENT,
) -> Any:
    """Take back what you let an agent do in a session."""
    found = client.delete(f"/sessions/{session}/grants/{grant}")
    if not found["taken_back"]:
        raise KagedError(
            f"The session has no grant {grant}.",
            code="access_grant_not_found",
            fix="`kaged session grants` lists those that are in force.",
        )
    return {"id": grant, **found}


@project_command(app, "delete", view="Deleted {found[id]}.")
def delete(
    client: DaemonClient,
    session: Which,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> Any:
    """Delete a session with its runs and tool calls. Forks keep the entries they share with it."""
    found = client.get(f"/sessions/{session}")
    if not yes and sys.stdin.isatty():
        about = f"{found['id']} ({found['title'] or 'untitled'}, {found['entries']} entries)"
        typer.confirm(f"Delete {about}?", abort=True, err=True)
    return client.delete(f"/sessions/{found['id']}")


@project_command(app, "export")
def export(
    client: DaemonClient,
    output: Output,
    session: Which = CURRENT,
    file: Annotated[
        Path | None, typer.Argument(help="The file to write. Default: standard output.")
    ] = None,
) -> None:
    """Export a session as JSON lines. `import` reads them back without loss."""
    with open_export(file) as target:
        target.writelines(client.stream(f"/sessions/{session}/export"))
    output.wrote(file)


@project_command(app, "import")
def import_(
    client: DaemonClient,
    output: Output,
    file: Annotated[Path, typer.Argument(help="The exported file, or - for standard input.")],
) -> None:
    """Import an exported session as a new one."""
    done = client.upload("/sessions/import", read_bytes(file, IMPORT_LIMIT_BYTES))
    output.result(done)
    made = done["session"]
    output.line(f"Imported {done['imported_from']} as {made['id']} ({made['entries']} entries).")


def _entries(client: DaemonClient, session: str, lines: int) -> list[dict[str, Any]]:
    path = f"/sessions/{session}/entries"
    if 0 < lines <= PAGE_ENTRIES:
        return client.get(path, {"tail": True, "limit": lines})["items"]
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = client.get(path, {"after": after, "limit": PAGE_ENTRIES})
        found += page["items"]
        after = page["next_after"]
        if after is None:
            return found[-lines:]
