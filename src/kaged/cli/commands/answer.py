"""`kaged answer`: answer what an agent asks, and watch it go on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.commands.asking import answer_of, ask_person, at_terminal, gist_of, show_interaction
from kaged.cli.commands.inproject import HERE, InProject, ProjectClient, in_project
from kaged.cli.context import AsJson, command
from kaged.cli.exits import Exit
from kaged.cli.output import Output

Given = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE; again for several choices. JSON for non-texts."),
]
Files = Annotated[list[str] | None, typer.Option("--file", "-f", help="NAME=PATH of a file field.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "answer")
    def answer(
        request: Annotated[
            str | None, typer.Argument(help="The question; the one that waits, or a list of them.")
        ] = None,
        given: Given = None,
        files: Files = None,
        approve: Annotated[
            bool, typer.Option("--approve", help="Approve what the agent asks for.")
        ] = False,
        reject: Annotated[
            bool, typer.Option("--reject", help="Reject what the agent asks for.")
        ] = False,
        reply: Annotated[
            str | None,
            typer.Option("--reply", help="A text for the agent; with a decision, or alone."),
        ] = None,
        follow: Annotated[
            bool, typer.Option("--follow", help="Watch the agent until it is done.")
        ] = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Answer what an agent asks: by flags, or when asked at the terminal."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            asked = _asked(client, request, output)
            if asked is None:
                return
            body = _decided(approve, reject, reply) or _body(asked, given, files, output)
            if body is None:
                raise typer.Exit(Exit.WAITING)
            if follow:
                _follow(client, asked, body, output)
            found = _send(client, asked, body)
        output.result(found)
        output.line(f"Answered {asked['request_id']}.")


def _asked(client: ProjectClient, request: str | None, output: Output) -> dict[str, Any] | None:
    """Find the question: the one named, or the only one that waits. Without one, list them."""
    if request is not None:
        return dict(client.get(f"/interactions/{request}"))
    waiting = client.get("/interactions", {"status": "pending"})["items"]
    if len(waiting) == 1:
        return dict(waiting[0])
    output.result({"items": waiting})
    output.table(
        ["id", "kind", "agent", "asks"],
        [[one["request_id"], one["kind"], one["caller"], gist_of(one)] for one in waiting],
    )
    if not waiting:
        output.note("No questions are pending.")
        return None
    raise typer.Exit(Exit.WAITING)


def _decided(approve: bool, reject: bool, reply: str | None) -> dict[str, Any] | None:
    if approve and reject:
        raise typer.BadParameter("approve or reject, not both")
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


def _send(client: ProjectClient, asked: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    return dict(client.post(f"/interactions/{asked['request_id']}/answer", body))


def _follow(
    client: ProjectClient, asked: dict[str, Any], body: dict[str, Any], output: Output
) -> None:
    """Answer, and watch the run that goes on with it."""
    from kaged.cli.commands.driving import WatchedSession, someone_there
    from kaged.cli.runview import RunView

    view = RunView(as_json=output.as_json)
    read = at_terminal if someone_there() and not output.as_json else None
    with WatchedSession(client, asked["session_id"], view, output, read=read) as talk:
        before = talk.latest_run()
        _send(client, asked, body)
        ended = talk.watch(talk.next_run(before))
    raise typer.Exit(ended.exit)
