"""`kaged answer`: answer an agent's question and follow the run that continues."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.commands.access_asking import (
    answer_access,
    ask_access,
    fetch_access,
    is_access,
    show_access,
    waiting_access,
)
from kaged.cli.commands.asking import answer_of, ask_person, at_terminal, gist_of, show_interaction
from kaged.cli.exits import Exit
from kaged.cli.output import Output, one_line, show_rows
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
    choose: Annotated[
        str | None,
        typer.Option(
            "--choose", help="Answer to a refused call: once, run, session, always or no."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the agent until it is done.")
    ] = False,
) -> None:
    """Answer an agent's question, with options or at the terminal."""
    if request is not None and is_access(request):
        _answer_access(client, output, fetch_access(client, request), choose, follow=follow)
        return
    if choose is not None:
        raise typer.BadParameter("--choose answers the questions of refused calls, by their id")
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
    refused = waiting_access(client)
    if len(waiting) == 1 and not refused:
        return dict(waiting[0])
    output.result({"items": [*waiting, *refused]})
    columns = ("id=request_id", "kind", "agent=caller", ("asks", gist_of))
    if waiting:
        show_rows(waiting, columns, output)
    for one in refused:
        output.line(f"{one['id']}  {one_line(one['title'])}")
    if not waiting and not refused:
        output.note("No questions are pending.")
        return None
    raise typer.Exit(Exit.WAITING)


def _answer_access(
    client: DaemonClient,
    output: Output,
    asked: dict[str, Any],
    choose: str | None,
    *,
    follow: bool,
) -> None:
    """Answer the question of a refused call; its run goes on, or is told that it may not."""
    from kaged.cli.commands.driving import WatchedSession, someone_there
    from kaged.cli.runview import RunView

    if choose is None:
        show_access(asked, output.line)
        if not someone_there() or output.as_json:
            output.result(asked)
            output.note(f"Answer with --choose {'|'.join(asked['choices'])}.")
            raise typer.Exit(Exit.WAITING)
        choose = ask_access(asked, at_terminal)
    if not follow:
        answer_access(client, asked, choose)
        output.result({"id": asked["id"], "choice": choose})
        output.line(f"Answered {asked['id']}.")
        return
    view = RunView(as_json=output.as_json)
    with WatchedSession(client, str(asked["chat_id"]), view, output) as talk:
        run = talk.latest_run()
        answer_access(client, asked, choose)
        assert run is not None  # it is the one that waits
        ended = talk.watch(run)
    raise typer.Exit(ended.exit)


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
