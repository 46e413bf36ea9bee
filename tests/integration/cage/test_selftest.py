"""The self-test of `kaged doctor` notices a cage that shows too much; each leak is made by hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from kaged.cage import selftest_main

SOURCE = str(Path(selftest_main.__file__).resolve())
BASE = (
    *("bwrap", "--unshare-user", "--unshare-pid", "--die-with-parent", "--proc", "/proc"),
    *("--ro-bind", "/usr", "/usr"),
    *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
    *("--ro-bind", SOURCE, "/made/way/selftest.py"),
)  # fmt: skip
WAYS, HIDDEN = "folders above what is shown", "files that the host has"


def lines(*options: str, hidden: tuple[str, ...] = ()) -> dict[str, str]:
    """Run the self-test in a cage with these leaks and return what it says of each attempt."""
    command = [*BASE, *options, "--", "/usr/bin/python3", "/made/way/selftest.py"]
    done = subprocess.run(
        [*command, json.dumps(hidden)], capture_output=True, text=True, check=False, env={}
    )
    found = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return {rest.partition(":")[0]: f"{word} {rest}" for word, rest in found}


def test_a_folder_that_only_leads_to_a_mount_is_fine() -> None:
    said = lines(hidden=("/made/other", "/home/somebody/.ssh"))
    assert said[WAYS] == f"ok {WAYS}"
    assert said[HIDDEN] == f"ok {HIDDEN}"


def test_whatever_else_lies_on_the_way_is_noticed() -> None:
    assert lines("--dir", "/made/other")[WAYS] == f"bad {WAYS}: /made shows ['other']"
    assert "/made/way shows ['x']" in lines("--dir", "/made/way/x")[WAYS]


def test_a_path_of_the_host_that_can_be_seen_is_noticed() -> None:
    said = lines("--dir", "/made/other", hidden=("/nowhere", "/made/other"))
    assert said[HIDDEN] == f"bad {HIDDEN}: /made/other can be seen"


def test_the_keys_of_the_user_are_noticed_unless_they_are_covered() -> None:
    if not Path("/proc/keys").exists():  # a kernel without keys has none to show
        return
    name = "keys of the user"
    assert lines()[name] == f"bad {name}: /proc/keys can be opened"
    assert lines("--ro-bind", "/dev/null", "/proc/keys")[name] == f"ok {name}"
