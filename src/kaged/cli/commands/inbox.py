"""`kaged inbox`: the questions of agents, and your answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.cli.commands.asking import answer_of, gist_of, show_answer, show_interaction
from kaged.cli.output import Output, table
from kaged.cli.runner import group, project_command

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient

ANSWERED = "Answered {request}."

Request = Annotated[str, typer.Argument(help="The question's id.")]
Text = Annotated[str | None, typer.Option("--text", "-t", help="A comment to send along.")]

app = group("Answer the questions of agents.")


def _show_question(found: Any, output: Output) -> None:
    output.fields({name: found[name] for name in ("kind", "status", "caller", "session_id")})
    show_interaction(found, output)
    show_answer(found, output)


@project_command(
    app,
    "list",
    view=table(("id=request_id", "kind", "agent=caller", "status", ("asks", gist_of)), "items"),
)
def list_questions(
    client: DaemonClient,
    every: Annotated[bool, typer.Option("--all", help="Include answered questions.")] = False,
) -> Any:
    """List the questions that wait for an answer."""
    return client.get("/interactions", {"status": None if every else "pending"})


@project_command(app, "show", view=_show_question)
def show(client: DaemonClient, request: Request) -> Any:
    """Show a question in full."""
    return client.get(f"/interactions/{request}")


@project_command(app, "answer", view=ANSWERED)
def answer(
    client: DaemonClient,
    request: Request,
    answers: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", help="NAME=VALUE; repeat it for several choices. JSON if not text."
        ),
    ] = None,
    files: Annotated[
        list[str] | None, typer.Option("--file", "-f", help="NAME=PATH for a field of type file.")
    ] = None,
) -> Any:
    """Answer questions or fill in a form."""
    asked = client.get(f"/interactions/{request}")
    return _send(client, request, answer_of(asked, answers, files))


@project_command(app, "approve", view=ANSWERED)
def approve(client: DaemonClient, request: Request, text: Text = None) -> Any:
    """Approve a checkpoint; the agent continues."""
    return _send(client, request, {"decision": "approve", "text": text})


@project_command(app, "reject", view=ANSWERED)
def reject(client: DaemonClient, request: Request, text: Text = None) -> Any:
    """Reject a checkpoint."""
    return _send(client, request, {"decision": "reject", "text": text})


@project_command(app, "reply", view=ANSWERED)
def reply(
    client: DaemonClient,
    request: Request,
    text: Annotated[str, typer.Argument(help="The text of the reply.")],
) -> Any:
    """Reply to an agent at a checkpoint."""
    return _send(client, request, {"decision": "reply", "text": text})


@project_command(app, "withdraw", view="Withdrew {request}.")
def withdraw(client: DaemonClient, request: Request) -> Any:
    """Withdraw a question; the agent gets no answer."""
    return client.delete(f"/interactions/{request}")


def _send(client: DaemonClient, request: str, body: dict[str, Any]) -> Any:
    return client.post(f"/interactions/{request}/answer", body)
