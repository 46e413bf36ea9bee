"""Where the programs and libraries lie that were installed together with the daemon.

In an environment of its own that is one folder. After `pip install --user` it is the one below the
home folder, which the search path of a service or of a remote command seldom has.
"""

from __future__ import annotations

import os
import shutil
import site
import sysconfig
from pathlib import Path


def find_installed(name: str) -> str | None:
    """Return a program that was installed with the daemon, else one on the search path."""
    for folder in _folders("scripts"):
        program = Path(folder) / name
        if os.access(program, os.X_OK):
            return str(program)
    return shutil.which(name)


def library_folders() -> tuple[str, ...]:
    """Return the real folders of the installed libraries, each once."""
    found = [*_folders("purelib"), *_folders("platlib")]
    real = dict.fromkeys(os.path.realpath(folder) for folder in found)
    return tuple(folder for folder in real if Path(folder).is_dir())


def _folders(kind: str) -> list[str]:
    own = [sysconfig.get_path(kind)]
    if site.ENABLE_USER_SITE:  # not in an environment of its own, nor where it was turned off
        own.append(sysconfig.get_path(kind, sysconfig.get_preferred_scheme("user")))
    return own
