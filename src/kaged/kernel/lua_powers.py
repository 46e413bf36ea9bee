"""Lua powers (`exec`, `session_write`, …): what a script gets when granted *and* asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import cast

from kaged.base.errors import KagedError
from kaged.kernel.decision import Decision, fail_closed


class LuaPower(StrEnum):
    """One power that a script can be given beyond the base functions. None implies another."""

    SESSION_WRITE = "session_write"
    EXEC = "exec"
    CONTEXT = "context"
    ENV = "env"
    NET = "net"
    FS_WRITE = "fs_write"
    PROVIDER = "provider"
    CRYPTO = "crypto"


LuaPowers = frozenset[LuaPower]


class LuaPowerInvalid(KagedError):
    """A list of Lua powers has an unknown name or is no list of texts."""

    code = "lua_power_invalid"


def parse_powers(value: object) -> LuaPowers:
    """Read a list of power names, from a grant or from a script's request; repeats count once.

    Raises:
        LuaPowerInvalid: not a list of texts, or a name that does not exist; the message has the
            word and the known names.
    """
    if not isinstance(value, list | tuple):
        raise LuaPowerInvalid(
            f"capabilities must be a list of names, not {ascii(value)[:80]}",
            fix='write it as a list, for example ["exec"]',
        )
    return frozenset(map(_parse_power, cast("Iterable[object]", value)))


def print_powers(powers: LuaPowers) -> list[str]:
    """Write a set as the sorted list of its names."""
    return sorted(str(power) for power in powers)


def active_powers(granted: LuaPowers, requested: LuaPowers, shipped: LuaPowers) -> LuaPowers:
    """Return the powers a script really has: granted by the user, asked for by it, and built."""
    return granted & requested & shipped


def answer_request(
    requested: LuaPowers, granted: LuaPowers, shipped: LuaPowers
) -> dict[LuaPower, bool]:
    """Answer `kage.request_capabilities`: exactly the requested names, true only when active."""
    active = active_powers(granted, requested, shipped)
    return {power: power in active for power in sorted(requested)}


@fail_closed("lua.power")
def decide_power(active: LuaPowers, wanted: LuaPower) -> Decision:
    """Decide whether a script with these active powers may use this one."""
    # Looked up, not compared: a name from another vocabulary is no power.
    if LuaPower(wanted) in active:
        return Decision.allow("lua.power", str(wanted))
    return Decision.deny(
        "lua.power", str(wanted), f"grant {wanted} in [plugins.capabilities] and let the script ask"
    )


def _parse_power(name: object) -> LuaPower:
    known = {str(power): power for power in LuaPower}
    if isinstance(name, str) and name in known:
        return known[name]
    near = difflib.get_close_matches(str(name)[:64], list(known), n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    raise LuaPowerInvalid(
        f"unknown capability {ascii(name)[:80]}{hint} (known: {', '.join(known)})"
    )
