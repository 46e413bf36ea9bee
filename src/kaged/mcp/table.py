"""`ServerTable`: how an MCP server is started, as people write it down."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kaged.base import KagedError
from kaged.cage import CageKind, CageRequest
from kaged.kernel.net import parse_target
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode

MAX_WORDS = 256


class ServerCage(BaseModel):
    """What the server reaches beside the system's programs: nothing, unless written down here."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    read: list[str] = Field(default_factory=list)
    write: list[str] = Field(default_factory=list)
    net: list[str] = Field(default_factory=list)
    memory_mb: int = Field(default=512, ge=64, le=65536)


class ServerTable(BaseModel):
    """The `mcp` table of a plugin: a program that speaks MCP over its standard streams."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    proto: str = "STDIO"
    cmd: list[str] | None = Field(default=None, min_length=1, max_length=MAX_WORDS)
    script: str | None = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    cage: ServerCage = Field(default_factory=ServerCage)

    @property
    def command(self) -> tuple[str, ...]:
        """Return the words to start: `cmd`, or Python with `script`."""
        return tuple(self.cmd) if self.cmd is not None else ("python3", str(self.script))


def parse_table(table: dict[str, Any]) -> ServerTable:
    """Read a server's table. Raises `mcp_server_invalid`."""
    proto = str(table.get("proto", "STDIO")).upper()
    if proto != "STDIO":
        raise KagedError(
            f"transport {proto} is not supported",
            code="mcp_server_invalid",
            fix="use proto: STDIO with cmd; the server then runs in a cage of its own",
        )
    try:
        found = ServerTable.model_validate({**table, "proto": proto})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise KagedError(
            f"{where}: {first['msg']}",
            code="mcp_server_invalid",
            fix="known are proto, cmd, script, cwd, env and cage",
        ) from error
    if (found.cmd is None) == (found.script is None):
        raise KagedError(
            "needs either cmd or script",
            code="mcp_server_invalid",
            fix="give exactly one of the two",
        )
    return found


def cage_request(name: str, table: ServerTable) -> CageRequest:
    """Put the server's cage together.

    Raises `mcp_server_invalid` for a grant that makes no sense.
    """
    cage = table.cage
    reads = [*cage.read, *([] if table.script is None else [table.script])]
    try:
        policy = CagePolicy(
            fs=(
                *(FsGrant(path, FsMode.RO) for path in reads),
                *(FsGrant(path, FsMode.RW) for path in cage.write),
            ),
            net=tuple(parse_target(target) for target in cage.net),
            env=tuple(table.env.items()),
            limits=CageLimits(memory_mb=cage.memory_mb),
        )
    except KagedError as error:
        raise KagedError(
            f"cage: {error.message}", code="mcp_server_invalid", fix=error.fix
        ) from error
    return CageRequest(
        name=name, policy=policy, command=table.command, kind=CageKind.SERVER, cwd=table.cwd
    )
