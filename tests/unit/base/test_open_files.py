"""The limit of open files is raised for the daemon and set back for its children."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

_RAISE = """
import json, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
from kaged.base.open_files import raise_open_files, restore_open_files
now = raise_open_files()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
inherited = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
restore_open_files(child.pid)
restored = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
child.communicate(b"\\n")
print(json.dumps([now, inherited, restored]))
"""


def test_the_soft_limit_becomes_the_hard_one_and_children_get_the_old_one_back() -> None:
    done = subprocess.run([sys.executable, "-c", _RAISE], capture_output=True, check=True)
    assert json.loads(done.stdout) == [512, [512, 512], [256, 512]]


def test_without_a_raise_children_keep_what_they_have() -> None:
    from kaged.base import open_files

    before = open_files._before[:]
    open_files._before.clear()
    try:
        was = resource.getrlimit(resource.RLIMIT_NOFILE)
        open_files.restore_open_files(0)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == was
    finally:
        open_files._before[:] = before
