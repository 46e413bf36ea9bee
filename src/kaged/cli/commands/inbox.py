"""`kaged inbox`: what waits for you, the questions of agents among it, and your answers."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from kaged.cli.commands.asking import answer_of, gist_of, show_answer, show_interaction
from kaged.cli.context import daemon, report
from kaged.cli.output import Output, show_rows, table
from kaged.cli.runner import (
    AsJson,
    DaemonClient,
    NoStart,
    daemon_command,
    find_project,
    project_command,
)

ANSWERED = "Answered {request}."

Request = Annotated[str, typer.Argument(help="The question's id.")]
Text = Annotated[str | None, typer.Option("--text", "-t", help="A comment to send along.")]

ANSWERS: Final = {
    "ask": "kaged inbox answer {id} -p {project_id} --set NAME=VALUE",
    "form": "kaged inbox answer {id} -p {project_id} --set NAME=VALUE",
    "checkpoint": "kaged inbox approve {id} -p {project_id}",
    "plugin_consent": "kaged plugin approve {id}",
    "project_consent": "kaged plugin approve {id}",
    "account_approval": "kaged account approve {id}",
    "mcp_tools": "kaged mcp approve {name}",
    "trust": "kaged project trust {project_id}",
    "skill_consent": "kaged skill approve {id}",
    "account_relink": "kaged account link PROVIDER",
    "call_approval": "kaged inbox choose {id} yes",
    "access": "kaged answer {id} --choose once",
}
"""The command that answers each kind; a dialog is answered where its script was started."""

app = typer.Typer(help="List everything that waits for you; answer the questions of agents.")


@app.callback(invoke_without_command=True)
def everything(
    context: typer.Context,
    project: Annotated[
        str, typer.Option("--project", "-p", help="Only of this loaded project: id, slug, folder.")
    ] = "",
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", "-k", help="Only of this kind; repeatable.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Include what has been answered.")] = False,
    as_json: AsJson = False,
    no_start: NoStart = False,
) -> None:
    """List everything that waits for a person, with the command that answers it."""
    if context.invoked_subcommand is not None:
        return
    output = Output(as_json=as_json)
    try:
        with daemon(start=not no_start) as client:
            wanted = {
                "project_id": find_project(client, project)["id"] if project else None,
                "kind": kinds,
                "state": None if every else "pending",
            }
            _show_all(list(client.pages("/inbox", wanted)), output)
    except Exception as error:  # noqa: BLE001  # boundary: command; every error has an exit
        raise typer.Exit(report(error, output)) from None


def _show_all(found: list[Any], output: Output) -> None:
    for one in found:
        name = one["id"].partition("_")[2]
        command = ANSWERS.get(one["kind"], "").format_map({**one, "name": name})
        one["command"] = command if one["state"] == "pending" else ""
    output.result(found)
    if not found:
        output.line("Nothing is waiting for you.")
        return
    show_rows(found, ("id", "kind", "state", "asks=title", "answer with=command"), output)


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


def _register_decision(decision: str, text: str) -> None:
    @project_command(app, decision, view=ANSWERED, text=text)
    def decide(client: DaemonClient, request: Request, text: Text = None) -> Any:
        return _send(client, request, {"decision": decision, "text": text})


_register_decision("approve", "Approve a checkpoint; the agent continues.")
_register_decision("reject", "Reject a checkpoint.")


def _show_chosen(found: Any, output: Output) -> None:
    output.line(found["title"])
    for line in found["details"]:
        output.line(line)
    output.line(f"Answered {found['choice']}.")


@daemon_command(app, "choose", view=_show_chosen, no_start=True)
def choose(
    client: DaemonClient,
    request: Annotated[str, typer.Argument(help="The id from `kaged inbox`.")],
    choice: Annotated[str, typer.Argument(help="One of its choices, such as yes or no.")],
) -> Any:
    """Answer what has choices, such as a call that a policy stopped, in exactly its words."""
    asked = client.get(f"/inbox/{quote(request, safe='')}")
    answer = {"digest": asked["digest"], "answer": {"choice": choice}}
    client.post(f"/inbox/{asked['id']}/answer", answer)
    return {**asked, "choice": choice}


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
