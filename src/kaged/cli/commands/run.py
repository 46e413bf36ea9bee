"""`kaged run`: give an agent a task and follow the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kaged.cli.inputs import read_text
from kaged.cli.output import Output
from kaged.cli.runner import AgentPath, DaemonClient, note_restricted, project_command

ModelAlias = Annotated[
    str | None, typer.Option("--model", "-m", help="A model alias to use instead of the agent's.")
]
MaxSteps = Annotated[
    int | None,
    typer.Option("--max-steps", min=1, max=10_000, help="Maximum number of model calls."),
]
Thinking = Annotated[bool, typer.Option("--thinking", help="Also show the model's thinking.")]

app = typer.Typer()


@project_command(app, "run")
def run(
    client: DaemonClient,
    output: Output,
    task: Annotated[str, typer.Argument(help="The task, or - to read it from standard input.")],
    agent: AgentPath = "primary",
    model: ModelAlias = None,
    max_steps: MaxSteps = None,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", help="Continue this session. Default: a new one."),
    ] = None,
    thinking: Thinking = False,
) -> None:
    """Start a task with an agent and follow the run; Ctrl-C cancels it."""
    from kaged.cli.client import DaemonRefused
    from kaged.cli.commands.driving import WatchedSession, begin_session
    from kaged.cli.views import run_view

    note_restricted(client.get(""), output)
    text = read_text(Path(task)) if task == "-" else task
    view = run_view(as_json=output.as_json, agent=agent, thinking=thinking)
    if session is None:
        found = begin_session(client, text=text, model=model)
    else:
        found = str(client.get(f"/sessions/{session}")["id"])
    with WatchedSession(client, found, view, output) as talk:
        try:
            ended = talk.say(text, agent=agent, model=model, max_steps=max_steps)
        except DaemonRefused as error:
            from kaged.cli.commands.model_add import offer_model

            if not offer_model(error, output):
                raise
            ended = talk.say(text, agent=agent, model=model, max_steps=max_steps)
    raise typer.Exit(ended.exit)
