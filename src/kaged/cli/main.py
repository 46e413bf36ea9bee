"""The `kaged` command. Asking for the version costs nothing; everything else loads on demand."""

from __future__ import annotations

import gc
import sys

from kaged import __version__

GARBAGE_AFTER = 50_000
"""How many objects a command makes before the collector looks at them; Python's figure is 700."""


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        sys.stdout.write(f"kaged {__version__}\n")
        return
    if arguments[:2] == ["daemon", "run"] and (
        not arguments[2:] or (len(arguments) == 4 and arguments[2] == "--log-file")
    ):
        # The same command as below, without loading the command line first: a tenth of the start.
        from kaged.cli.foreground import run_foreground

        sys.exit(run_foreground(arguments[3] if arguments[2:] else None))
    # Loading makes objects that stay; looking for garbage among them is put off.
    gc.set_threshold(GARBAGE_AFTER)
    from kaged.cli.app import run

    sys.exit(run(arguments))
