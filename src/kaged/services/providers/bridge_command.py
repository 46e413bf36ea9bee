"""What a bridge is started with: its program, found once, and an environment of a few variables."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.config.providers import Provider
from kaged.kernel.policy import CageLimits, CagePolicy
from kaged.services.errors import CapabilityBackendUnavailable
from kaged.wire.token_keys import SECRET_VARIABLE
from kaged.wire.tokens import TOKEN_VARIABLE

# SC-BRG-23; PYTHONPATH is not among them: it would load the host's code into the bridge.
INHERITED: Final = ("HOME", "LANG", "LC_ALL", "PATH", "TMP", "TEMP", "TMPDIR", "USER")
GOG_PREFIXES: Final = ("GOGCLI_",)
DEFAULT_CONCURRENCY: Final = 4
DEFAULT_OUTPUT_BYTES: Final = 4 * 1024 * 1024

BridgeMode: TypeAlias = Literal["standby", "cold", "persistent"]


@dataclass(frozen=True, slots=True)
class BridgeSpec:
    """One bridge as the operator configured it. Without `cage` it runs with the host's powers."""

    name: str
    namespace: str
    command: tuple[str, ...]
    timeout_s: float = 30.0
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    env_prefixes: tuple[str, ...] = ()
    cage: CagePolicy | None = None
    mode: BridgeMode = "standby"
    max_concurrency: int = DEFAULT_CONCURRENCY
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES


def bridge_spec(one: Provider) -> BridgeSpec:
    """Return how a bridge is run."""
    section = one.section
    prefixes = section.env_prefixes
    if prefixes is None:
        prefixes = GOG_PREFIXES if one.namespace == "gog" else ()
    return BridgeSpec(
        one.name,
        one.namespace,
        one.command,
        timeout_s=one.timeout_s,
        env=tuple((name, value.reveal()) for name, value in one.env.items()),
        env_prefixes=prefixes,
        cage=None if one.cage is None else one.cage.policy(CageLimits()),
        mode=section.mode.value,
        max_concurrency=section.max_concurrency,
        max_output_bytes=section.max_output_bytes,
    )


def find_program(command: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Find a bridge's program: beside the interpreter, in the virtual environment, on the PATH.

    A name with a slash is used as it is.

    Raises:
        CapabilityBackendUnavailable: there is no such program, or it cannot be executed.
    """
    parts = tuple(part for part in command if part.strip())
    if not parts:
        raise CapabilityBackendUnavailable("the bridge has no command")
    program = parts[0]
    if "/" in program:
        found = program if os.access(program, os.X_OK) and Path(program).is_file() else None
    else:
        virtual = environ.get("VIRTUAL_ENV", "")
        places = [str(Path(sys.executable).parent)]
        if virtual:
            places.append(str(Path(virtual) / "bin"))
        places.append(environ.get("PATH", os.defpath))
        found = shutil.which(program, path=os.pathsep.join(places))
    if found is None:
        raise CapabilityBackendUnavailable(f"the bridge program {program} is not there")
    return (found, *parts[1:])


def open_to_others(program: str) -> str | None:
    """Return what lets other users change a program; None when nothing does."""
    for path in (Path(program).resolve(), Path(program).resolve().parent):
        try:
            facts = path.stat()
        except OSError:
            continue
        sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
        if facts.st_mode & stat.S_IWOTH and not sticky:
            return str(path)
    return None


def bridge_env(
    spec: BridgeSpec, environ: Mapping[str, str], secret: str
) -> tuple[tuple[str, str], ...]:
    """Return a bridge's whole environment. The secret is set last, so nothing can replace it."""
    found = {name: environ[name] for name in INHERITED if name in environ}
    prefixes = spec.env_prefixes
    found |= {name: environ[name] for name in environ if prefixes and name.startswith(prefixes)}
    found.update(spec.env)
    for name in (SECRET_VARIABLE, TOKEN_VARIABLE):
        found.pop(name, None)
    found[SECRET_VARIABLE] = secret
    return tuple(found.items())
