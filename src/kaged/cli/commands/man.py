"""`kaged man` and `kaged completion`: the manual page, and completion scripts for shells."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from kaged.cli.output import Output
from kaged.cli.runner import command

app = typer.Typer()
completions = typer.Typer()


class Shell(StrEnum):
    """The shells that a script exists for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@command(app, "man")
def man(context: typer.Context, output: Output) -> None:
    """Print the manual page of all commands: `kaged man | man -l -`."""
    from kaged.cli.manual import render_manual

    page = render_manual(context.find_root().command)
    output.text(page, {"page": page})


@command(completions, "completion")
def completion(output: Output, shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the completion script of a shell. Load it with `eval "$(kaged completion bash)"`."""
    from typer.completion import (
        get_completion_script,  # pyright: ignore[reportPrivateImportUsage]  # no public name for it
    )

    script = get_completion_script(
        prog_name="kaged", complete_var="_KAGED_COMPLETE", shell=shell.value
    )
    output.text(script, {"shell": shell.value, "script": script})
