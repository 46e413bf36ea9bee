"""`kaged session`: find, read, fork, move between, export and take away sessions of a project."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from kaged.cli.commands.inproject import HERE, InProject, ProjectClient, in_project
from kaged.cli.commands.session_files import CURRENT, Which, register_files
from kaged.cli.context import AsJson, Lines, command
from kaged.cli.output import Output
from kaged.cli.transcript import show_entries, show_tree

PAGE_ENTRIES = 500

Named = Annotated[str, typer.Argument(metavar="SESSION", help="Its id or the beginning of it.")]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Look at sessions and move between them.", no_args_is_help=True)
    _register_reading(app)
    _register_finding(app)
    _register_moving(app)
    register_files(app)
    return app


def _register_reading(app: typer.Typer) -> None:
    @command(app, "list")
    def list_sessions(
        kind: Annotated[str | None, typer.Option(help="Only these: primary or workflow.")] = None,
        lines: Lines = 50,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """List sessions, last used first; * marks the current one."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get("/sessions", {"kind": kind, "limit": lines})
        output.result(found)
        output.table(
            ["", "id", "status", "entries", "used", "title"],
            [
                [
                    "*" if one["current"] else "",
                    one["id"],
                    one["status"],
                    one["entries"],
                    _when(one["updated_at"]),
                    one["title"],
                ]
                for one in found["items"]
            ],
        )
        if found["total"] > len(found["items"]):
            output.note(f"{len(found['items'])} of {found['total']}.")

    @command(app, "show")
    def show(
        session: Which = CURRENT,
        lines: Annotated[
            int, typer.Option("--lines", "-n", min=0, help="How many entries; 0 for all.")
        ] = 40,
        calls: Annotated[bool, typer.Option("--calls", help="Its tool calls instead.")] = False,
        runs: Annotated[bool, typer.Option("--runs", help="Its runs instead.")] = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Show a session: what was said and done in it, the newest last."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get(f"/sessions/{session}")
            if calls:
                rows = client.get(f"/sessions/{found['id']}/tool-calls", {"limit": 200})
                _show_calls(rows, output)
                return
            if runs:
                rows = client.get(f"/sessions/{found['id']}/runs", {"limit": 200})
                _show_runs(rows, output)
                return
            entries = _entries(client, found["id"], lines)
        output.result({**found, "entries_shown": entries})
        output.fields(
            {
                "session": found["id"] + (" (current)" if found["current"] else ""),
                "title": found["title"],
                "status": " ".join(filter(None, (found["status"], found["detail"]))),
                "model": found["model"],
                "forked from": _origin(found),
                "entries": found["entries"],
                "active run": found["active_run"],
                "used": _when(found["updated_at"]),
            }
        )
        show_entries(entries, output)


def _register_finding(app: typer.Typer) -> None:
    @command(app, "tree")
    def tree(project: InProject = HERE, as_json: AsJson = False) -> None:
        """Show which session was forked from which; * marks the current one."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get("/sessions/tree")
        output.result(found)
        show_tree(found["sessions"], output)

    @command(app, "search")
    def search(
        words: Annotated[list[str], typer.Argument(help="What to look for.")],
        session: Annotated[
            str | None, typer.Option("--session", help="Only what this session shows.")
        ] = None,
        lines: Lines = 20,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Search what was said in sessions, newest first."""
        output = Output(as_json=as_json)
        query = {"q": " ".join(words), "session": session, "limit": lines}
        with in_project(project) as client:
            found = client.get("/sessions/search", query)
        output.result(found)
        output.table(
            ["session", "entry", "role", "when", "text"],
            [
                [
                    one["session_id"],
                    one["entry_id"],
                    one["role"] or one["kind"],
                    _when(one["ts"]),
                    one["snippet"],
                ]
                for one in found["items"]
            ],
        )
        if found["total"] > len(found["items"]):
            output.note(f"{len(found['items'])} of {found['total']}.")


def _register_moving(app: typer.Typer) -> None:
    @command(app, "fork")
    def fork(
        session: Which = CURRENT,
        at: Annotated[
            str | None, typer.Option("--at", help="The entry to fork at; the last by default.")
        ] = None,
        switch: Annotated[
            bool, typer.Option("--switch", help="Go to the fork, as a rewind does.")
        ] = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Branch a session off at an entry; it stays as it is."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            done = client.post(f"/sessions/{session}/fork", {"at": at, "switch": switch})
        output.result(done)
        _tell_move(done, "Forked to", output)

    @command(app, "switch")
    def switch_to(session: Named, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Make a session the current one of the project."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            done = client.post(f"/sessions/{session}/switch")
        output.result(done)
        _tell_move(done, "Now in", output)

    @command(app, "resume")
    def resume(
        session: Which = CURRENT, project: InProject = HERE, as_json: AsJson = False
    ) -> None:
        """Go on where a run was cut off, by a restart for instance."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            done = client.post(f"/sessions/{session}/resume")
        output.result(done)
        output.line(f"{done['session_id']} goes on with {done['run_id']}.")

    @command(app, "title")
    def title(
        session: Named,
        text: Annotated[str, typer.Argument(help="The new title.")],
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Change a session's title."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            done = client.patch(f"/sessions/{session}", {"title": text})
        output.result(done)
        output.line(f"{done['id']} is called {done['title']!r} now.")

    @command(app, "compact")
    def compact(
        session: Which = CURRENT,
        agent: Annotated[str, typer.Option("--agent", "-a", help="Whose window.")] = "primary",
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only show what it would do.")
        ] = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Make room in an agent's window; the entries stay in the session."""
        output = Output(as_json=as_json)
        body = {"agent": agent, "dry_run": dry_run}
        with in_project(project) as client:
            done = client.post(f"/sessions/{session}/compact", body)
        output.result(done)
        output.fields({name: value for name, value in done.items() if _plain(value)})

    @command(app, "delete")
    def delete(
        session: Named,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Take a session away, with its runs and tool calls. Forks keep what they share with it."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get(f"/sessions/{session}")
            if not yes and sys.stdin.isatty():
                about = (
                    f"{found['id']} ({found['title'] or 'untitled'}, {found['entries']} entries)"
                )
                typer.confirm(f"Delete {about}?", abort=True, err=True)
            done = client.delete(f"/sessions/{found['id']}")
        output.result(done)
        output.line(f"Deleted {done['id']}.")


def _entries(client: ProjectClient, session: str, lines: int) -> list[dict[str, Any]]:
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


def _show_calls(rows: dict[str, Any], output: Output) -> None:
    output.result(rows)
    output.table(
        ["when", "agent", "tool", "status", "request"],
        [
            [_when(one["started_at"]), one["caller"], one["tool_name"], one["status"],
             one["request_id"]]
            for one in rows["items"]
        ],
    )  # fmt: skip


def _show_runs(rows: dict[str, Any], output: Output) -> None:
    output.result(rows)
    output.table(
        ["run", "status", "cause", "model", "steps", "began", "ended"],
        [
            [one["id"], one["status"], one["cause"], one["model"], one["steps"],
             _when(one["started_at"]), _when(one["ended_at"])]
            for one in rows["items"]
        ],
    )  # fmt: skip


def _tell_move(done: dict[str, Any], words: str, output: Output) -> None:
    if done["pending"]:
        output.line("A run is active; the move is made when it has ended.")
        return
    output.line(f"{words} {done['session']['id']}.")


def _origin(found: dict[str, Any]) -> str | None:
    if found["parent_session"] is None:
        return None
    return f"{found['parent_session']} at {found['parent_entry']}"


def _when(moment: str | None) -> str:
    return "" if moment is None else moment[:19].replace("T", " ")


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool) or value is None
