"""`kaged inbox`: what agents ask you, and your answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.commands.asking import answer_of, gist_of, show_answer, show_interaction
from kaged.cli.commands.inproject import HERE, InProject, in_project
from kaged.cli.context import AsJson, command
from kaged.cli.output import Output

Request = Annotated[str, typer.Argument(help="The id of the question.")]
Text = Annotated[str | None, typer.Option("--text", "-t", help="A comment to send along.")]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Answer what agents ask you.", no_args_is_help=True)
    _register_reading(app)
    _register_answering(app)
    _register_deciding(app)
    return app


def _register_reading(app: typer.Typer) -> None:
    @command(app, "list")
    def list_questions(
        every: Annotated[bool, typer.Option("--all", help="Also what was answered.")] = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """List what waits for you."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get("/interactions", {"status": None if every else "pending"})
        output.result(found)
        output.table(
            ["id", "kind", "agent", "status", "asks"],
            [
                [one["request_id"], one["kind"], one["caller"], one["status"], gist_of(one)]
                for one in found["items"]
            ],
        )

    @command(app, "show")
    def show(request: Request, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Show a question in full."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get(f"/interactions/{request}")
        output.result(found)
        output.fields({name: found[name] for name in ("kind", "status", "caller", "session_id")})
        show_interaction(found, output)
        show_answer(found, output)


def _register_answering(app: typer.Typer) -> None:
    @command(app, "answer")
    def answer(
        request: Request,
        answers: Annotated[
            list[str] | None,
            typer.Option(
                "--set", "-s", help="NAME=VALUE; again for several choices. JSON for non-texts."
            ),
        ] = None,
        files: Annotated[
            list[str] | None, typer.Option("--file", "-f", help="NAME=PATH of a file field.")
        ] = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Answer questions or fill in a form."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            asked = client.get(f"/interactions/{request}")
            body = answer_of(asked, answers, files)
            found = client.post(f"/interactions/{request}/answer", body)
        output.result(found)
        output.line(f"Answered {request}.")


def _register_deciding(app: typer.Typer) -> None:
    @command(app, "approve")
    def approve(
        request: Request, text: Text = None, project: InProject = HERE, as_json: AsJson = False
    ) -> None:
        """Let an agent go on that paused at a checkpoint."""
        _decide(request, {"decision": "approve", "text": text}, project, as_json)

    @command(app, "reject")
    def reject(
        request: Request, text: Text = None, project: InProject = HERE, as_json: AsJson = False
    ) -> None:
        """Reject what an agent asks for at a checkpoint."""
        _decide(request, {"decision": "reject", "text": text}, project, as_json)

    @command(app, "reply")
    def reply(
        request: Request,
        text: Annotated[str, typer.Argument(help="The text of the reply.")],
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Reply to an agent at a checkpoint."""
        _decide(request, {"decision": "reply", "text": text}, project, as_json)

    @command(app, "withdraw")
    def withdraw(request: Request, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Withdraw a question: the agent gets no answer."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.delete(f"/interactions/{request}")
        output.result(found)
        output.line(f"Withdrew {request}.")


def _decide(request: str, body: dict[str, Any], project: str, as_json: bool) -> None:
    output = Output(as_json=as_json)
    with in_project(project) as client:
        found = client.post(f"/interactions/{request}/answer", body)
    output.result(found)
    output.line(f"Answered {request}.")
