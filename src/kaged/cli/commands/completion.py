"""`kaged completion`: completion scripts for shells."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import (
    get_completion_script,  # pyright: ignore[reportPrivateImportUsage]  # no public name for it
)

from kaged.cli.context import AsJson, command
from kaged.cli.output import Output


class Shell(StrEnum):
    """The shells that a script exists for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "completion")
    def completion(
        shell: Annotated[Shell, typer.Argument(help="Which shell.")], as_json: AsJson = False
    ) -> None:
        """Print the completion script of a shell: `eval "$(kaged completion bash)"`."""
        output = Output(as_json=as_json)
        script = get_completion_script(
            prog_name="kaged", complete_var="_KAGED_COMPLETE", shell=shell.value
        )
        output.result({"shell": shell.value, "script": script})
        if not as_json:
            output.raw(script)
