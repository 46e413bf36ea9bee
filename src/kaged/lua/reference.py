"""The pages that are drawn from the code: the reference of `kage`, and its stub for editors.

`python -m kaged.lua.reference` writes both; a test fails when they are out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from kaged.kernel.lua_powers import LuaPower
from kaged.lua.calls import SHIPPED
from kaged.lua.events import CONTEXT_EVENTS, EVENTS, REFUSED_EVENTS
from kaged.lua.limits import ScriptLimits
from kaged.lua.surface import SURFACE, TYPES, Function

PAGE: Final = "kage.md"
STUB: Final = "kage.lua"

_HEAD = """\
# The `kage` table

What Lua scripts have. Scripts lie in `[lua] dir` and are loaded for every project, in order of
their file names, each in a caged process of its own: no network, no files, no Python to reach.
Everything below is done by the daemon, which checks each call against what the operator granted to
that script and what the script asked for. [Your first script](../tutorial/first-script.md) is the
way in; `docs/reference/kage.lua` is a stub for editors that know Lua annotations.

Lua is 5.4 without `io`, `debug`, `package`, `require`, `load`, `loadfile`, `dofile`, `rawset`,
`string.dump`, and with the four harmless functions of `os`. `__gc` metamethods are refused.

<!-- drawn by `python -m kaged.lua.reference` -->
"""


def render_page() -> str:
    """Render the reference."""
    limits = ScriptLimits()
    parts = [
        _HEAD,
        "## Functions\n",
        "| Function | Gives | Does |",
        "|---|---|---|",
        *(_row(one) for one in SURFACE if one.power is None),
        "",
        "## Functions that need a power\n",
        "Granted in `[plugins.capabilities]` and asked for with `kage.request_capabilities`;",
        "otherwise they are nil.\n",
        "| Function | Power | Gives | Does |",
        "|---|---|---|---|",
        *(_row(one) for one in SURFACE if one.power is not None),
        "",
        "## Powers\n",
        "| Power | Here |",
        "|---|---|",
        *(f"| `{one}` | {_power(one)} |" for one in LuaPower),
        "",
        "## Events\n",
        "A **notification** ignores what a handler returns. A **transform** replaces the payload",
        "by what is returned, unless that is nil. A **veto** reads `{ cancel = reason }` and",
        "`{ patch = target }`; the first of either decides, and a handler that fails has said no.",
        "A **predicate** counts only when a handler returns exactly `true`.",
        "Events marked with * carry conversation text.\n",
        "| Event | Kind | Payload |",
        "|---|---|---|",
        *(
            f"| `{name}`{'*' if name in CONTEXT_EVENTS else ''} | {kind} | {text} |"
            for name, (kind, text) in EVENTS.items()
        ),
        "",
        "A transform or predicate that raises, takes too long or whose script ends is passed",
        "over: the run goes on with what was there before, and people are shown a notice. So",
        "a script that takes secrets out of requests lets them pass while it is broken, busy",
        "or being started again. Name such a script in `required` below `[lua]` in",
        "`config.toml`: while it is not running, raises, gives what cannot be used or takes",
        "longer than 9 seconds, the model is not asked (`transform_refused`) and no session",
        "moves. What is summarized goes to the model as `compact_prepare` shows it, not",
        "through `transform_context`: such a script handles both. A script that has listened",
        "to a veto and has ended since says no until it is back.\n",
        "Some events of other hosts never happen here. Subscribing to one is refused with a",
        "notice; the rest of the script works.\n",
        "| Refused | Because |",
        "|---|---|",
        *(f"| `{name}` | {why} |" for name, why in REFUSED_EVENTS.items()),
        "",
        "## Limits\n",
        _limits(limits),
        "is stopped; one that cannot be stopped from inside is ended and started again.",
        "",
    ]
    return "\n".join(parts)


def render_stub() -> str:
    """Render the stub file for editors."""
    tables = sorted({one.name.rpartition(".")[0] for one in SURFACE} - {""})
    lines = ["---@meta", "-- Drawn by `python -m kaged.lua.reference`.", "", TYPES, "kage = {}"]
    lines += [f"kage.{name} = {{}}" for name in tables]
    for one in SURFACE:
        needs = f" Needs the power `{one.power}`." if one.power is not None else ""
        lines += ["", f"---{one.doc}{needs}"]
        lines += [f"---@param {name} {kind}" for name, kind in one.params]
        if one.returns:
            lines.append(f"---@return {one.returns}")
        names = ", ".join(name.rstrip("?") for name, _ in one.params)
        lines.append(f"function kage.{one.name}({names}) end")
    return "\n".join(lines) + "\n"


def rewrite(folder: Path) -> None:
    """Write both files into a folder."""
    (folder / PAGE).write_text(render_page(), encoding="utf-8")
    (folder / STUB).write_text(render_stub(), encoding="utf-8")


def _limits(limits: ScriptLimits) -> str:
    return (
        f"Each load, event or command may take {limits.instructions:,} Lua instructions and "
        f"{limits.compute_s:g} seconds\nof computing (waiting for the daemon does not count); Lua "
        f"has {limits.lua_memory_bytes // 1024 // 1024} MiB. A script that takes more"
    )


def _row(one: Function) -> str:
    names = ", ".join(name for name, _ in one.params)
    cells = [f"`kage.{one.name}({names})`"]
    if one.power is not None:
        cells.append(f"`{one.power}`")
    gives = f"`{one.returns}`".replace("|", "\\|") if one.returns else ""
    return f"| {' | '.join(cells)} | {gives} | {one.doc} |"


def _power(power: LuaPower) -> str:
    if power not in SHIPPED:
        return "known, never granted: this host has no functions for it"
    own = ", ".join(f"`kage.{one.name}`" for one in SURFACE if one.power is power)
    if power is LuaPower.NET:
        own += "; the rest of `kage.http` every script has"
    others = {
        LuaPower.CONTEXT: "events that carry text, when `[lua] strict_context` is set;"
        " `system_prompt` in `kage.config()`",
        LuaPower.FS_WRITE: "`kage.fs.write`, which every script has",
    }
    return own or others[power]


if __name__ == "__main__":
    rewrite(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
