"""`ash-sb`: the entry point. Exit 0 for success, 1 for any failure, 2 for a wrong command line."""

from __future__ import annotations

import os
import sys
import time

from kaged import __version__
from kaged.sandbox.arguments import PROGRAM, HelpAsked, UsageError, parse
from kaged.sandbox.channel import CommandFailure, HostChannel
from kaged.sandbox.commands import PollTimedOut, Surroundings, run
from kaged.sandbox.lines import as_json, one_line

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words == ["--version"]:
        return _print(f"{PROGRAM} {__version__}")
    try:
        command, given = parse(words)
    except HelpAsked as asked:
        return _print(asked.shown.rstrip("\n"))
    except UsageError as error:
        message = f"Error: {one_line(error.message)}\n" if error.message else ""
        sys.stderr.write(error.shown + message)
        return EXIT_USAGE
    around = Surroundings(
        HostChannel(os.environ).call, sys.stdin.buffer.read, time.monotonic, time.sleep
    )
    as_data = "json" in given
    try:
        result, shown = run(command, given, around)
    except CommandFailure as failure:
        return _fail(failure, as_data=as_data)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return _print(as_json(result) if as_data else "\n".join(shown))


def _print(text: str) -> int:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read this has seen enough; keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return 0


def _fail(failure: CommandFailure, *, as_data: bool) -> int:
    if as_data:
        shown = as_json({"error": {"code": failure.code, "message": failure.message}})
    elif isinstance(failure, PollTimedOut):
        shown = failure.message
    else:
        shown = f"Error: {one_line(failure.message)}"
    sys.stderr.write(shown + "\n")
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
