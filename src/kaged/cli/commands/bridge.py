"""`kaged bridge`: for authors of programs that give access to people's accounts."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from kaged.base import SystemClock
from kaged.cli.exits import Exit
from kaged.cli.output import Output
from kaged.cli.runner import command, group
from kaged.wire.token_keys import SECRET_VARIABLE, parse_key
from kaged.wire.tokens import TOKEN_LIMIT_CHARS, bridge_audience, verify_token

Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="The namespace that a host would give the bridge.")
]

app = group("Write and check bridges to people's accounts.")


@command(app, "check")
def check(
    output: Output,
    program: Annotated[
        list[str], typer.Argument(help="The bridge and its arguments; put -- before options.")
    ],
    namespace: Namespace,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", help="NAME=VALUE for the bridge's environment; repeatable."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=300, help="Seconds to wait for each answer.")
    ] = 30.0,
    sidecar: Annotated[
        bool, typer.Option("--sidecar", help='It is a sidecar: type = "sidecar".')
    ] = False,
) -> None:
    """Run a bridge as a host would. Exit code 6 if a host could not use it."""
    from kaged.cli.checks import check_command

    variables = dict(_variable(one) for one in env or [])
    report = check_command(program, namespace, variables, timeout, sidecar=sidecar)
    output.result(report.as_json())
    rows = [[one.id, one.verdict.value, one.detail, one.fix] for one in report.rows]
    output.table(["check", "result", "found", "what to do"], rows)
    if not report.ok:
        raise typer.Exit(Exit.INVALID)
    output.line(f"A host can use it: {', '.join(report.capabilities)}.")


@command(app, "claims")
def claims(output: Output, namespace: Namespace) -> None:
    """Verify a context token from standard input and print its claims.

    For bridges written in shell. The claims are always printed as JSON. The key is read from
    ASH_CONTEXT_TOKEN_SECRET. If the token is not valid, nothing is printed to standard output and
    the exit code is 6.
    """
    token = sys.stdin.read(TOKEN_LIMIT_CHARS + 1).strip()
    verified = verify_token(
        parse_key(os.environ.get(SECRET_VARIABLE, "")),
        token,
        clock=SystemClock(),
        audience=bridge_audience(namespace),
    )
    output.json_line({"sub": verified.effective_user_id, **verified.routing._asdict()})


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"{text[:80]!r} is not NAME=VALUE", param_hint="--env")
    return name, value
