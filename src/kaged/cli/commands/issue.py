"""`kaged issue`: file, find, read, edit, discuss and move the issues of a project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.cli.inputs import text_or_file
from kaged.cli.output import Output, table
from kaged.cli.runner import DaemonClient, Lines, group, project_command

Number = Annotated[int, typer.Argument(min=1, help="The issue's number.")]
BodyText = Annotated[str | None, typer.Option("--body", "-b", help="The text, in Markdown.")]
BodyFile = Annotated[
    Path | None,
    typer.Option("--body-file", "-F", help="Read the text from a file, or from stdin with -."),
]

app = group("Work with the issues of a project.")


def _show_issue(found: Any, output: Output) -> None:
    output.fields(
        {
            "issue": f"#{found['number']} {found['title']}",
            "status": found["status"],
            "assignment": found["assignment"],
            "by": found["created_by"],
            "resolved by": found["resolved_by"],
        }
    )
    output.line()
    output.line(found["body"])
    for update in found["updates"]:
        output.line()
        internal = " (operators only)" if update["visibility"] != "all" else ""
        facts = ", ".join(f"{name} {value}" for name, value in (update["metadata"] or {}).items())
        output.line(f"-- {update['author']}: {update['kind']}{internal} {facts}")
        if update["body"]:
            output.line(update["body"])


@project_command(
    app,
    "list",
    view=table(
        (("number", lambda one: f"#{one['number']}"), "status", "assignment", "title"), "items"
    ),
)
def list_issues(
    client: DaemonClient,
    status: Annotated[
        str | None, typer.Option(help="Only this status. Default: every issue that is not done.")
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", "-s", help="Words in the title or the body.")
    ] = None,
    lines: Lines = 50,
) -> Any:
    """List issues, the last changed first."""
    return client.get("/issues", {"status": status, "search": search, "limit": lines})


@project_command(app, "show", view=_show_issue)
def show(client: DaemonClient, number: Number) -> Any:
    """Show an issue with its comments and changes."""
    return client.get(f"/issues/{number}")


@project_command(app, "create", view="Filed #{found[number]}.")
def create(
    client: DaemonClient,
    title: Annotated[str, typer.Argument(help="The title, in one line.")],
    body: BodyText = None,
    body_file: BodyFile = None,
) -> Any:
    """File an issue."""
    text = text_or_file(body, body_file) or ""
    return client.post("/issues", {"title": title, "body": text})


@project_command(app, "edit")
def edit(
    client: DaemonClient,
    output: Output,
    number: Number,
    title: Annotated[str | None, typer.Option(help="The new title.")] = None,
    body: BodyText = None,
    body_file: BodyFile = None,
    assign: Annotated[
        str | None, typer.Option(help="The assignee: primary, workflow:NAME or session:ID.")
    ] = None,
    unassign: Annotated[bool, typer.Option("--unassign", help="Remove the assignment.")] = False,
) -> None:
    """Change an issue's title, body or assignment."""
    given = {"title": title, "body": text_or_file(body, body_file), "assignment": assign}
    wanted: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if unassign:
        wanted["assignment"] = None
    found = client.patch(f"/issues/{number}", wanted)
    output.result(found)
    output.line(f"Changed {', '.join(found['updated_fields'])} of #{number}.")


@project_command(app, "comment", view="Commented on #{number}.")
def comment(
    client: DaemonClient,
    number: Number,
    text: Annotated[str | None, typer.Argument(help="The comment, in Markdown.")] = None,
    body_file: BodyFile = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="Only operators and the root agent can read it.")
    ] = False,
) -> Any:
    """Add a comment to an issue."""
    body = {
        "body": text_or_file(text, body_file) or "",
        "visibility": "operator_only" if internal else "all",
    }
    return client.post(f"/issues/{number}/comments", body)


@project_command(app, "move", view="#{number}: {found[from]} -> {found[to]}")
def move(
    client: DaemonClient,
    number: Number,
    to: Annotated[
        str,
        typer.Argument(help="triaged, assigned, in_progress, resolved, rejected or reopened."),
    ],
    comment: Annotated[
        str | None,
        typer.Option("--comment", "-c", help="The reason; required for resolved and rejected."),
    ] = None,
) -> Any:
    """Move an issue to another status."""
    return client.post(f"/issues/{number}/transition", {"to": to, "comment": comment})


@project_command(app, "bind")
def bind(
    client: DaemonClient,
    output: Output,
    session: Annotated[str, typer.Option("--session", help="The session's id.")],
    number: Annotated[
        int | None, typer.Argument(min=1, help="The issue. Without it, the binding is removed.")
    ] = None,
) -> None:
    """Bind a session to an issue, so that its agent has a todo list."""
    found = client.put(f"/sessions/{session}/issue", {"number": number})
    output.result(found)
    bound = f"works on #{number}" if number else "works on no issue"
    output.line(f"{found['id']} {bound} now.")
