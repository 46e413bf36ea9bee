"""`kaged chat`: talk with an agent, message by message."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from kaged.cli.commands.chat_session import Chat, current_session
from kaged.cli.commands.run import MaxSteps, ModelAlias, Thinking
from kaged.cli.output import Output
from kaged.cli.runner import AgentPath, DaemonClient, note_restricted, project_command

app = typer.Typer()


@project_command(app, "chat")
def chat(
    client: DaemonClient,
    output: Output,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", help="Continue this session. Default: the current one."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Start a new session.")] = False,
    agent: AgentPath = "primary",
    model: ModelAlias = None,
    max_steps: MaxSteps = None,
    thinking: Thinking = False,
) -> None:
    """Talk to an agent, message by message. /help lists the commands."""
    note_restricted(client.get(""), output)
    options = {"agent": agent, "model": model, "max_steps": max_steps}
    if sys.stdin.isatty() and not as_json_or_plain(output):
        from kaged.cli.commands.chat_terminal import ChatTerminal

        terminal = ChatTerminal(client, options, thinking=thinking)
        terminal.run(None if new else session or current_session(client))
        return
    talk = Chat(client, output, options, thinking=thinking)
    talk.enter(None if new else session or current_session(client))
    talk.run(_lines(talk))


def _lines(talk: Chat) -> Callable[[], str | None]:
    """Return a reader of lines: a prompt at a terminal, plain lines from a pipe."""

    def ask() -> str | None:
        try:
            return input(f"{talk.session_id[-6:]}> ")
        except (EOFError, KeyboardInterrupt):
            return None

    def read() -> str | None:
        return sys.stdin.readline() or None

    return ask if sys.stdin.isatty() else read


def as_json_or_plain(output: Output) -> bool:
    """Return whether lines are all that can be shown here."""
    from kaged.cli.views import can_draw

    return output.as_json or not can_draw()
