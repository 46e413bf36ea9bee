"""`ServerTable`: how an MCP server is started, as people write it down."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kaged.base import KagedError
from kaged.cage import CageKind, CageRequest
from kaged.pipeline.cage_reach import CageReach

MAX_WORDS = 256


class ServerTable(BaseModel):
    """The `mcp` table of a plugin: a program that speaks MCP over its standard streams."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    proto: str = "STDIO"
    cmd: list[str] | None = Field(default=None, min_length=1, max_length=MAX_WORDS)
    script: str | None = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    cage: CageReach = Field(default_factory=CageReach)

    @property
    def command(self) -> tuple[str, ...]:
        """Return the words to start: `cmd`, or Python with `script`."""
        return tuple(self.cmd) if self.cmd is not None else ("python3", str(self.script))


def parse_table(table: dict[str, Any]) -> ServerTable:
    """Read a server's table. Raises `mcp_server_invalid`."""
    proto = str(table.get("proto", "STDIO")).upper()
    if proto != "STDIO":
        raise _invalid(
            f"transport {proto} is not supported",
            "use proto: STDIO with cmd; the server then runs in a cage of its own",
        )
    try:
        found = ServerTable.model_validate({**table, "proto": proto})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _invalid(
            f"{where}: {first['msg']}", "known are proto, cmd, script, cwd, env and cage"
        ) from error
    if (found.cmd is None) == (found.script is None):
        raise _invalid("needs either cmd or script", "give exactly one of the two")
    return found


def cage_request(name: str, table: ServerTable) -> CageRequest:
    """Put the server's cage together.

    Raises `mcp_server_invalid` for a grant that makes no sense.
    """
    script = () if table.script is None else (table.script,)
    try:
        policy = table.cage.policy(table.env, also_read=script)
    except KagedError as error:
        raise _invalid(f"cage: {error.message}", error.fix) from error
    return CageRequest(
        name=name, policy=policy, command=table.command, kind=CageKind.SERVER, cwd=table.cwd
    )


def _invalid(message: str, fix: str | None) -> KagedError:
    return KagedError(message, code="mcp_server_invalid", fix=fix)
