"""`kaged run`: give an agent a task and watch it work."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kaged.cli.commands.inproject import HERE, TEXT_LIMIT_BYTES, InProject, in_project
from kaged.cli.context import AsJson, command
from kaged.cli.output import Output

Agent = Annotated[str, typer.Option("--agent", "-a", help="Which agent gets it, by its path.")]
ModelAlias = Annotated[
    str | None, typer.Option("--model", "-m", help="A model's alias, in place of the agent's own.")
]
MaxSteps = Annotated[
    int | None,
    typer.Option("--max-steps", min=1, max=10_000, help="How many model calls it may make."),
]
Thinking = Annotated[bool, typer.Option("--thinking", help="Also show the model's thinking.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "run")
    def run(
        task: Annotated[str, typer.Argument(help="What to do; `-` reads it from standard input.")],
        agent: Agent = "primary",
        model: ModelAlias = None,
        max_steps: MaxSteps = None,
        session: Annotated[
            str | None,
            typer.Option("--session", "-s", help="Go on with this session; a new one without it."),
        ] = None,
        thinking: Thinking = False,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Start an agent on a task and watch it work; Ctrl-C cancels."""
        from kaged.cli.commands.asking import at_terminal
        from kaged.cli.commands.driving import WatchedSession, begin_session, someone_there
        from kaged.cli.runview import RunView

        text = _task(task)
        output = Output(as_json=as_json)
        view = RunView(as_json=as_json, agent=agent, thinking=thinking)
        read = at_terminal if someone_there() and not as_json else None
        with in_project(project) as client:
            if session is None:
                found = begin_session(client, text=text, model=model)
            else:
                found = str(client.get(f"/sessions/{session}")["id"])
            with WatchedSession(client, found, view, output, read=read) as talk:
                ended = talk.say(text, agent=agent, model=model, max_steps=max_steps)
        raise typer.Exit(ended.exit)


def _task(given: str) -> str:
    if given != "-":
        return given
    data = sys.stdin.buffer.read(TEXT_LIMIT_BYTES + 1)
    if len(data) > TEXT_LIMIT_BYTES:
        raise typer.BadParameter(f"the task has more than {TEXT_LIMIT_BYTES} bytes")
    return data.decode("utf-8")
