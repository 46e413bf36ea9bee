"""Facts of a made-up host, so that compiled cages are the same on every machine."""

from __future__ import annotations

import pytest

from kaged.cage.base_programs import BaseProgramDir
from kaged.cage.facts import HostFacts, RootEntry


@pytest.fixture
def facts() -> HostFacts:
    """A Debian-like host with a merged /usr and a short shelf."""
    return HostFacts(
        bwrap="/usr/bin/bwrap",
        bwrap_version=(0, 8, 0),
        bwrap_missing_options=(),
        bwrap_setuid=False,
        machine="x86_64",
        kernel=(6, 1, 0),
        uid=1001,
        gid=1001,
        root_entries=(
            RootEntry("bin", "usr/bin"),
            RootEntry("lib", "usr/lib"),
            RootEntry("lib64", "usr/lib64"),
        ),
        library_dirs=("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
        library_links=(),
        data_dirs=("/usr/share",),
        etc_shown=("/etc/ssl/certs",),
        etc_system=("/etc/alternatives",),
        etc_present=("hosts", "nsswitch.conf", "passwd"),
        base_programs=BaseProgramDir(
            path="/var/cache/kaged/shelf-1",
            programs=("sh", "env", "cat"),
            etc=("ld.so.cache",),
            session_program=True,
        ),
        search_path=(),
        setpriv="/usr/bin/setpriv",
    )
