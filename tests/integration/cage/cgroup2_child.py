"""Run as root in a mount and cgroup namespace of its own: a real version 2 tree, tried out.

The argument is where the tree is mounted. Prints what happened as JSON. Where the host's version 1
tree holds the controllers, groups can be made, joined and removed here, and nothing be limited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kaged.cage.limits import choose_backend, tree
from kaged.cage.limits.cgroup2 import Cgroup2Backend, Cgroup2Group
from kaged.kernel.policy import CageLimits

HOG = "x = bytearray()\nwhile True: x += b'x' * 1048576"
JOINED = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); exec(sys.argv[2])"


def main(mounted: str) -> dict[str, Any]:
    """Try the back end on the tree at `mounted`."""
    (mount,) = [one for one in tree.cgroup_mounts() if one.mountpoint == mounted]
    controllers = tree.read(mount.folder, "cgroup.controllers").split()
    # The kernel has one tree, wherever it is mounted. In a folder of our own neither what a killed
    # run left behind nor the sweep of another one is met.
    own = Path(tempfile.mkdtemp(prefix="test-", dir=mount.folder))
    found: dict[str, Any] = {"controllers": controllers, **mechanics(own)}
    own.rmdir()
    backend = Cgroup2Backend(mount, tree.instance_name())
    try:
        backend.prepare()
    except OSError as error:
        chosen = choose_backend()
        found |= {"refused": str(error), "chosen": chosen.name}
        chosen.close()
        return found
    group = backend.create("hog", CageLimits(memory_mb=64))
    command = [sys.executable, "-c", JOINED, group.join_files[0], HOG]
    found["hog"] = subprocess.run(command, check=False, capture_output=True).returncode
    stat = group.stat()
    found |= {"oom_kills": stat.oom_kills, "destroyed": group.destroy()}
    backend.close()
    return found


def mechanics(folder: Path) -> dict[str, Any]:
    """Make, join, find busy, sweep and remove groups: what needs no controller."""
    home = folder / "kaged-1-0"  # nobody's: the first process did not begin at 0
    home.mkdir()
    group = Cgroup2Group(home / "b1-cage-1", None)
    (home / "b1-cage-1").mkdir()
    with subprocess.Popen(["/bin/sleep", "60"]) as member:
        Path(group.join_files[0]).write_text(str(member.pid), encoding="ascii")
        text = Path(f"/proc/{member.pid}/cgroup").read_text(encoding="ascii")
        inside = [line for line in text.splitlines() if line.startswith("0::")]
        busy = group.destroy()
        known = tree.is_stale_group(home.name)
        tree.sweep(folder)  # kills who is left in it; the kernel lets go a moment later
        ended = member.wait()
    while not tree.remove(home):
        os.sched_yield()
    return {
        "inside": inside,
        "destroyed_while_busy": busy,
        "stale": known,
        "member_ended": ended,
        "left": home.exists(),
    }


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
