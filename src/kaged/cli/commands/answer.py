"""`kaged answer`: answer an agent's question and follow the run that continues."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.commands.asking import answer_of, ask_person, at_terminal, gist_of, show_interaction
from kaged.cli.exits import Exit
from kaged.cli.output import Output, show_rows
from kaged.cli.runner import DaemonClient, project_command

Given = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE; repeat it for several choices. JSON if not text."),
]
Files = Annotated[
    list[str] | None, typer.Option("--file", "-f", help="NAME=PATH for a field of type file.")
]

app = typer.Typer()


@project_command(app, "answer")
def answer(
    client: DaemonClient,
    output: Output,
    request: Annotated[
        str | None, typer.Argument(help="The question's id. Default: the only one that is pending.")
    ] = None,
    given: Given = None,
    files: Files = None,
    approve: Annotated[bool, typer.Option("--approve", help="Approve the checkpoint.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Reject the checkpoint.")] = False,
    reply: Annotated[
        str | None,
        typer.Option("--reply", help="A text for the agent, with a decision or alone."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the agent until it is done.")
    ] = False,
) -> None:
    """Answer an agent's question, with options or at the terminal."""
    asked = _asked(client, request, output)
    if asked is None:
        return
    body = _decided(approve, reject, reply) or _body(asked, given, files, output)
    if body is None:
        raise typer.Exit(Exit.WAITING)
    if follow:
        _follow(client, asked, body, output)
    output.result(_send(client, asked, body))
    output.line(f"Answered {asked['request_id']}.")


def _asked(client: DaemonClient, request: str | None, output: Output) -> dict[str, Any] | None:
    """Return the question: the one named, or the only pending one. Otherwise list them."""
    if request is not None:
        return dict(client.get(f"/interactions/{request}"))
    waiting = client.get("/interactions", {"status": "pending"})["items"]
    if len(waiting) == 1:
        return dict(waiting[0])
    output.result({"items": waiting})
    columns = ("id=request_id", "kind", "agent=caller", ("asks", gist_of))
    show_rows(waiting, columns, output)
    if not waiting:
        output.note("No questions are pending.")
        return None
    raise typer.Exit(Exit.WAITING)


def _decided(approve: bool, reject: bool, reply: str | None) -> dict[str, Any] | None:
    if approve and reject:
        raise typer.BadParameter("use --approve or --reject, not both")
    if approve or reject:
        return {"decision": "approve" if approve else "reject", "text": reply}
    return None if reply is None else {"decision": "reply", "text": reply}


def _body(
    asked: dict[str, Any], given: list[str] | None, files: list[str] | None, output: Output
) -> dict[str, Any] | None:
    from kaged.cli.commands.driving import someone_there

    if given or files:
        return answer_of(asked, given, files)
    if someone_there() and not output.as_json:
        return ask_person(asked, output, at_terminal)
    output.result(asked)
    show_interaction(asked, output)
    output.note("Answer with --set NAME=VALUE, --approve, --reject or --reply TEXT.")
    return None


def _send(client: DaemonClient, asked: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    return dict(client.post(f"/interactions/{asked['request_id']}/answer", body))


def _follow(
    client: DaemonClient, asked: dict[str, Any], body: dict[str, Any], output: Output
) -> None:
    """Answer, and follow the run that continues with it."""
    from kaged.cli.commands.driving import WatchedSession
    from kaged.cli.views import run_view

    view = run_view(as_json=output.as_json)
    with WatchedSession(client, asked["session_id"], view, output) as talk:
        before = talk.latest_run()
        _send(client, asked, body)
        ended = talk.watch(talk.next_run(before))
    raise typer.Exit(ended.exit)
