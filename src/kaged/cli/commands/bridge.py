"""`kaged bridge`: for authors of programs that give access to people's accounts."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from kaged.base import SystemClock
from kaged.cli.context import AsJson, command
from kaged.cli.exits import Exit
from kaged.cli.output import Output
from kaged.wire.token_keys import SECRET_VARIABLE, parse_key
from kaged.wire.tokens import TOKEN_LIMIT_CHARS, bridge_audience, verify_token

NAMESPACE_OPTION = "--namespace"
Namespace = Annotated[
    str, typer.Option(NAMESPACE_OPTION, "-n", help="The namespace that a host would give it.")
]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Write and check bridges to people's accounts.", no_args_is_help=True)
    _register_check(app)
    _register_claims(app)
    return app


def _register_check(app: typer.Typer) -> None:
    @command(app, "check")
    def check(
        program: Annotated[
            list[str], typer.Argument(help="The bridge and its arguments; put -- before options.")
        ],
        namespace: Namespace,
        env: Annotated[
            list[str] | None,
            typer.Option("--env", help="NAME=VALUE for the bridge, as its section would give it."),
        ] = None,
        timeout: Annotated[
            float, typer.Option("--timeout", min=1, max=300, help="Seconds for one answer.")
        ] = 30.0,
        as_json: AsJson = False,
    ) -> None:
        """Try a bridge out as a host would; exit code 6 when a host could not use it."""
        from kaged.cli.bridge_check import check_command

        output = Output(as_json=as_json)
        variables = dict(_variable(one) for one in env or [])
        report = check_command(program, namespace, variables, timeout)
        output.result(report.as_json())
        rows = [[one.id, one.verdict.value, one.detail, one.fix] for one in report.rows]
        output.table(["check", "result", "found", "what to do"], rows)
        if report.ok:
            output.line(f"A host can use it: {', '.join(report.capabilities)}.")
            return
        raise typer.Exit(Exit.INVALID)


def _register_claims(app: typer.Typer) -> None:
    @command(app, "claims")
    def claims(namespace: Namespace, as_json: AsJson = False) -> None:
        """Check a context token from standard input; print whom it acts for, always as JSON.

        For bridges written in shell: the key is read from ASH_CONTEXT_TOKEN_SECRET. Exit code 1
        and nothing on standard output when the token is not good.
        """
        token = sys.stdin.read(TOKEN_LIMIT_CHARS + 1).strip()
        verified = verify_token(
            parse_key(os.environ.get(SECRET_VARIABLE, "")),
            token,
            clock=SystemClock(),
            audience=bridge_audience(namespace),
        )
        said = {"sub": verified.effective_user_id, **verified.routing._asdict()}
        Output(as_json=as_json).json_line(said)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"{text[:80]!r} is not NAME=VALUE", param_hint="--env")
    return name, value
