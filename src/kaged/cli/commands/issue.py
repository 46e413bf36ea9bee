"""`kaged issue`: file, find, read, edit, discuss and move the issues of a project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.cli.commands.inproject import HERE, InProject, in_project, text_or_file
from kaged.cli.context import AsJson, Lines, command
from kaged.cli.output import Output

Number = Annotated[int, typer.Argument(min=1, help="The issue's number.")]
BodyText = Annotated[str | None, typer.Option("--body", "-b", help="The text, in Markdown.")]
BodyFile = Annotated[
    Path | None, typer.Option("--body-file", "-F", help="Read the text from a file; - is stdin.")
]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Work with the issues of a project.", no_args_is_help=True)
    _register_reading(app)
    _register_writing(app)
    _register_moving(app)
    return app


def _register_reading(app: typer.Typer) -> None:
    @command(app, "list")
    def list_issues(
        status: Annotated[
            str | None, typer.Option(help="Only this status; without it all that are not done.")
        ] = None,
        search: Annotated[
            str | None, typer.Option("--search", "-s", help="Words in title or body.")
        ] = None,
        lines: Lines = 50,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """List issues, last changed first."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get("/issues", {"status": status, "search": search, "limit": lines})
        output.result(found)
        output.table(
            ["number", "status", "assignment", "title"],
            [
                [f"#{one['number']}", one["status"], one["assignment"], one["title"]]
                for one in found["items"]
            ],
        )
        if found["total"] > len(found["items"]):
            output.note(f"{len(found['items'])} of {found['total']}.")

    @command(app, "show")
    def show(number: Number, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Show one issue with everything that was said about it and done to it."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get(f"/issues/{number}")
        output.result(found)
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
            output.line(f"-- {update['author']}: {update['kind']}{internal} {_facts(update)}")
            if update["body"]:
                output.line(update["body"])


def _register_writing(app: typer.Typer) -> None:
    @command(app, "create")
    def create(
        title: Annotated[str, typer.Argument(help="What it is about, in one line.")],
        body: BodyText = None,
        body_file: BodyFile = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """File an issue."""
        output = Output(as_json=as_json)
        text = text_or_file(body, body_file) or ""
        with in_project(project) as client:
            found = client.post("/issues", {"title": title, "body": text})
        output.result(found)
        output.line(f"Filed #{found['number']}.")

    @command(app, "edit")
    def edit(
        number: Number,
        title: Annotated[str | None, typer.Option(help="The new title.")] = None,
        body: BodyText = None,
        body_file: BodyFile = None,
        assign: Annotated[
            str | None, typer.Option(help="primary, workflow:NAME or session:ID.")
        ] = None,
        unassign: Annotated[bool, typer.Option("--unassign", help="Unassign it.")] = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Change an issue's title, body or assignment."""
        output = Output(as_json=as_json)
        given = {"title": title, "body": text_or_file(body, body_file), "assignment": assign}
        wanted: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if unassign:
            wanted["assignment"] = None
        with in_project(project) as client:
            found = client.patch(f"/issues/{number}", wanted)
        output.result(found)
        output.line(f"Changed {', '.join(found['updated_fields'])} of #{number}.")

    @command(app, "comment")
    def comment(
        number: Number,
        text: Annotated[str | None, typer.Argument(help="The comment, in Markdown.")] = None,
        body_file: BodyFile = None,
        internal: Annotated[
            bool, typer.Option("--internal", help="For operators and the root agent only.")
        ] = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Add a comment to an issue."""
        output = Output(as_json=as_json)
        body = {
            "body": text_or_file(text, body_file) or "",
            "visibility": "operator_only" if internal else "all",
        }
        with in_project(project) as client:
            found = client.post(f"/issues/{number}/comments", body)
        output.result(found)
        output.line(f"Commented on #{number}.")


def _register_moving(app: typer.Typer) -> None:
    @command(app, "move")
    def move(
        number: Number,
        to: Annotated[
            str,
            typer.Argument(help="triaged, assigned, in_progress, resolved, rejected or reopened."),
        ],
        comment: Annotated[
            str | None,
            typer.Option("--comment", "-c", help="Why; needed for resolved and rejected."),
        ] = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Move an issue to another status."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.post(f"/issues/{number}/transition", {"to": to, "comment": comment})
        output.result(found)
        output.line(f"#{number}: {found['from']} -> {found['to']}")

    @command(app, "bind")
    def bind(
        session: Annotated[str, typer.Option("--session", help="The session's id.")],
        number: Annotated[
            int | None, typer.Argument(min=1, help="The issue; left out, the binding is removed.")
        ] = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Let a session work on an issue, so that its agent has a todo list."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.put(f"/sessions/{session}/issue", {"number": number})
        output.result(found)
        bound = f"works on #{number}" if number else "works on no issue"
        output.line(f"{found['id']} {bound} now.")


def _facts(update: dict[str, Any]) -> str:
    facts = update["metadata"] or {}
    return ", ".join(f"{name} {value}" for name, value in facts.items())
