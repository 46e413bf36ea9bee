"""`program_runner`: runs an operator's program that prints a credential's value, uncaged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from kaged.cage import Pipes, Spawner, Uncaged, UncagedRequest
from kaged.cage.collect import collect
from kaged.config.credentials_section import MAX_VALUE_CHARS
from kaged.credentials.value_sources import CredentialProgramFailed, RunCommand

PRINTED_LIMIT_BYTES: Final = MAX_VALUE_CHARS


def program_runner(spawner: Spawner, environ: Mapping[str, str]) -> RunCommand:
    """Return what runs such programs, in the daemon's environment.

    The operator names them, so they have the operator's powers; what they write to standard error
    is dropped, because it may hold what they were asked for.
    """

    async def run(name: str, command: tuple[str, ...], seconds: float) -> str:
        request = UncagedRequest(
            f"credential {name}",
            Uncaged(f"the operator's program for the value of the credential {name}"),
            command,
            env=tuple(environ.items()),
            stdio=Pipes(),
        )
        try:
            async with asyncio.timeout(seconds):
                done = await collect(await spawner.spawn(request), limit_bytes=PRINTED_LIMIT_BYTES)
        except TimeoutError:
            raise CredentialProgramFailed(
                f"The program of the credential {name} did not end within {seconds:g} seconds.",
                fix="raise command_seconds, or see what it waits for",
            ) from None
        if done.report.exit_code != 0:
            raise CredentialProgramFailed(
                f"The program of the credential {name} ended with {done.report.exit_code}.",
                fix=f"run {command[0]} by hand and see what it says",
            )
        try:
            return done.stdout.decode("utf-8")
        except UnicodeDecodeError:
            raise CredentialProgramFailed(
                f"The program of the credential {name} printed no text.",
                fix="let it print the value in UTF-8, and nothing else",
            ) from None

    return run
