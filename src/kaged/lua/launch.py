"""`worker_request`: the cage of a script's worker. It holds the interpreter and nothing else."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from kaged.cage import CageKind, CageRequest, HostMount
from kaged.kernel.policy import CageLimits, CagePolicy
from kaged.lua import worker_main
from kaged.lua.errors import ScriptDown
from kaged.lua.limits import ScriptLimits

_INSIDE: Final = "/opt/kaged/lua"
_PIDS: Final = 16


def worker_request(stem: str, limits: ScriptLimits, *, python: str | None = None) -> CageRequest:
    """Describe the process of one script: no network, no workdir, no program but its own."""
    here = Path(worker_main.__file__).resolve().parent
    mounts = [
        HostMount(str(here / "worker_main.py"), f"{_INSIDE}/worker_main.py"),
        HostMount(str(here / "prelude.lua"), f"{_INSIDE}/prelude.lua"),
        *(HostMount(str(path), f"{_INSIDE}/{path.name}") for path in _lupa_dirs()),
    ]
    command = (
        python or os.path.realpath(sys.executable),
        *("-I", "-S", f"{_INSIDE}/worker_main.py", str(limits.lua_memory_bytes)),
    )
    return CageRequest(
        name=f"lua:{stem}",
        policy=CagePolicy(
            limits=CageLimits(memory_mb=limits.cage_memory_mb, pids=_PIDS, open_files=64)
        ),
        command=command,
        kind=CageKind.PLUGIN,
        fixed_env=(("PYTHONDONTWRITEBYTECODE", "1"), ("LANG", "C.UTF-8")),
        mounts=tuple(mounts),
    )


def _lupa_dirs() -> list[Path]:
    """Find the installed library without loading it into the daemon."""
    spec = importlib.util.find_spec("lupa")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise ScriptDown("The Lua library is not installed.", fix="install kaged with lupa")
    package = Path(places[0]).resolve()
    bundled = package.with_name("lupa.libs")
    return [package, bundled] if bundled.is_dir() else [package]
