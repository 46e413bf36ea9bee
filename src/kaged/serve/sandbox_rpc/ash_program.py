"""`AshProgram`: `ash-sb` as files that a cage can show, whoever the cage runs as.

The program is copied, as a handful of small files, next to the cages' base programs: cages of
other users can read that place, which is not said of the place where this package is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import py_compile
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import kaged
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import HostMount
from kaged.cage.runtimes import runtime_layout

INSIDE: Final = "/opt/kaged/ash"
SYSTEM_PYTHON: Final = "/usr/bin/python3"
_OLDEST: Final = (3, 11)
_PARTS: Final = ("__init__.py", "sandbox")


@dataclass(frozen=True, slots=True)
class AshProgram:
    """What a cage is given so that `ash-sb` is found on its PATH."""

    mounts: tuple[HostMount, ...]
    path_dirs: tuple[str, ...]


def stock_ash(cache_dir: Path, pythons: Sequence[str] | None = None) -> AshProgram:
    """Return the program, copying it when this version of it is not there yet.

    `pythons` are interpreters to choose from, the best first. Safe when several daemons do it at
    once: a copy appears whole, by rename, or not at all.

    Raises:
        OSError: the cache directory cannot be written.
    """
    chosen = _choose(pythons or (SYSTEM_PYTHON, sys.executable))
    files = _files(chosen)
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:24]
    place = cache_dir / f"ash-{digest}"
    if not (place / "bin" / "ash-sb").is_file():
        _build(cache_dir, place, files)
    return AshProgram(
        mounts=(HostMount(str(place), INSIDE), *_runtime_mounts(chosen)),
        path_dirs=(f"{INSIDE}/bin",),
    )


def _choose(pythons: Sequence[str]) -> str:
    """Take the system's interpreter where it is new enough: every agent's cage shows it anyway."""
    for python in pythons[:-1]:
        real = os.path.realpath(python)
        version = real.rpartition("python")[2].split(".")
        if all(part.isdecimal() for part in version) and Path(real).is_file():
            numbers = tuple(map(int, version))
            library = Path(real).parents[1] / "lib" / f"python{'.'.join(version)}"
            if numbers >= _OLDEST and (library / "json" / "__init__.py").is_file():
                return real
    return os.path.realpath(pythons[-1])


def _runtime_mounts(python: str) -> tuple[HostMount, ...]:
    if python.startswith("/usr/"):
        return ()
    return tuple(HostMount(path, path) for path in (*runtime_layout(python).dirs, python))


def _files(python: str) -> dict[str, tuple[bytes, int]]:
    """Return the copy's files by name, with their modes."""
    start = f"{INSIDE}/lib/ash_sb.py"
    launcher = f'#!/bin/sh\nexec {shlex.quote(python)} -IS {start} "$@"\n'
    program = (
        "import sys\n"
        f'sys.path.insert(0, "{INSIDE}/lib")\n'
        "from kaged.sandbox.main import main\n"
        "sys.exit(main())\n"
    )
    files = {
        "bin/ash-sb": (launcher.encode(), 0o555),
        "lib/ash_sb.py": (program.encode(), 0o444),
    }
    package = Path(kaged.__file__).parent
    for part in _PARTS:
        found = package / part
        for source in [found] if found.is_file() else sorted(found.glob("*.py")):
            name = source.relative_to(package.parent)
            files[f"lib/{name}"] = (source.read_bytes(), 0o444)
    return files


def _build(cache_dir: Path, place: Path, files: dict[str, tuple[bytes, int]]) -> None:
    work = Path(tempfile.mkdtemp(prefix="ash-new-", dir=cache_dir))
    try:
        work.chmod(0o755)
        for name, (content, mode) in files.items():
            target = work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(mode)
            if name.startswith("lib/kaged/"):
                _precompile(target, f"{INSIDE}/{name}")
        for folder, _, names in os.walk(work):  # whatever the umask is
            Path(folder).chmod(0o755)
            for name in names:
                if name.endswith(".pyc"):
                    Path(folder, name).chmod(0o444)
        if place.exists():  # damaged: put it aside first, rename replaces only empty directories
            place.rename(work.with_name(f"{work.name}-old"))
            shutil.rmtree(work.with_name(f"{work.name}-old"), ignore_errors=True)
        with contextlib.suppress(OSError):  # another daemon was faster; its copy is the same
            work.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _precompile(source: Path, shown_as: str) -> None:
    """Compile ahead: inside, nobody can. Of use when the interpreter there has our version."""
    with contextlib.suppress(py_compile.PyCompileError):
        py_compile.compile(
            str(source),
            dfile=shown_as,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
