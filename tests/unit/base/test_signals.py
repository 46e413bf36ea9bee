"""What started us may have made us deaf; what we start hears."""

from __future__ import annotations

import subprocess
import sys

from fakes.signal_masks import settable

PROGRAM = """
import os, signal, subprocess, sys
for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR2", "SIGTSTP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD})
if sys.argv[1] == "unmute":
    from kaged.base.signals import unmute_for_children
    unmute_for_children()
    os.kill(os.getpid(), signal.SIGHUP)  # as `nohup` wanted it: nothing happens here
    os.kill(os.getpid(), signal.SIGTERM)
print(subprocess.run(["grep", "Sig[IB]", "/proc/self/status"], stdout=-1).stdout.decode())
"""


def _childs_masks(word: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=True
    )
    rows = (line.split(":") for line in done.stdout.split("\n") if line)
    return {name: settable(mask) for name, mask in rows}


def test_children_hear_what_their_parent_was_made_deaf_to() -> None:
    deaf = _childs_masks("stay")
    assert deaf["SigIgn"]
    assert deaf["SigBlk"]
    assert _childs_masks("unmute") == {"SigBlk": 0, "SigIgn": 0}
