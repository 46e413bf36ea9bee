"""`Stage`: a temporary home and project, and how the demo runs commands and prints."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

TIMEOUT_S: Final = 120
WIDTH: Final = 112
COLOUR: Final = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
LOOKOUT: Final = "primary.subagents.lookout"


class DemoFailed(Exception):
    """A step did not end as it should."""


class Stage:
    """The folder of one run. It counts scenes, commands and denials."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.project = folder / "paper-boats"
        self.project_file = self.project / ".kaged" / "project.yaml"
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        # No variable that could lead to the user's own daemon or files.
        self.env = {
            **kept,
            "HOME": str(folder),
            "KAGED_HOME": str(self.home),
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",  # keep the output in order
        }
        self.scenes = self.commands = self.denials = 0
        self._began = time.monotonic()
        self._url = ""

    @property
    def seconds(self) -> float:
        """How long the demo has run."""
        return time.monotonic() - self._began

    # -- printing -------------------------------------------------------------------------------

    def scene(self, title: str, why: str) -> None:
        """Print the heading of a scene and a line that explains it."""
        self.scenes += 1
        say("")
        say(paint(f"── {self.scenes}. {title} ".ljust(WIDTH - 20, "─"), "1"))
        say(paint(f"   {why}", "2"))

    def allowed(self, what: str) -> None:
        """Report that something was allowed."""
        say(f"     {paint('ALLOWED', '32')}  {self.short(what)}")

    def denied(self, what: str, *, rule: str, change: str) -> None:
        """Report that something was refused, by which rule, and what would change that."""
        self.denials += 1
        say(f"     {paint('DENIED', '31')}   {self.short(what)}")
        say(f"              rule: {self.short(rule)}")
        say(f"              to change it: {self.short(change)}")

    def done(self, word: str, what: str) -> None:
        """Report that something was reached."""
        say(f"     {paint(word, '32')}  {self.short(what)}")

    def short(self, text: str) -> str:
        """Return a text with the folders of this run by their names."""
        for place, name in ((self.home, "~home"), (self.project, "paper-boats")):
            text = text.replace(str(place), name)
        return text.replace(f"{self.folder}/", "")

    # -- running ---------------------------------------------------------------------------------

    def run(self, *arguments: str, expect: int = 0, lines: int | None = None) -> str:
        """Run `kaged` and print its output, all of it or the first `lines`."""
        self.commands += 1
        command = [sys.executable, "-P", "-m", "kaged.cli", *arguments]
        return self._play(f"kaged {shlex.join(arguments)}", command, expect, lines)

    def program(self, *words: str, expect: int = 0, lines: int | None = None) -> str:
        """Run another program in the project, as a person would."""
        return self._play(shlex.join(words), words, expect, lines)

    def ask(self, *arguments: str) -> Any:
        """Run `kaged` with `--json` and return the result; print nothing."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "kaged.cli", *arguments, "--json"],
            env=self.env, cwd=self.project, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, encoding="utf-8", timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        try:
            return json.loads(done.stdout)
        except ValueError as error:
            raise DemoFailed(f"kaged {arguments[0]}: {done.stdout}{done.stderr}") from error

    def through_the_front_end(self, command: str, user: str, chat: str) -> str:
        """Let the agent run a command for a user of the chat front end."""
        if not self._url:
            (project,) = self.ask("project", "list")
            url = self.ask("status")["url"]
            self._url = f"{url}/api/v1/projects/{project['id']}/tools/call"
        token = (self.home / "http-token").read_text(encoding="utf-8").strip()
        body = {"agent": "primary", "tool": "shell.bash", "params": {"command": command}}
        request = urllib.request.Request(
            self._url,
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
                "X-Kaged-User-Id": user,
                "X-Kaged-Chat-Type": chat,
                "X-Kaged-Chat-Id": f"{chat}-1",
            },
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return str(json.load(answer)["result"]["stdout"])

    def _play(self, shown: str, command: Sequence[str], expect: int, lines: int | None) -> str:
        say(f"   {paint('$', '32')} {self.short(shown)}")
        said: list[str] = []
        with subprocess.Popen(
            command, env=self.env, cwd=self.project, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
        ) as child:  # fmt: skip
            assert child.stdout is not None
            whole = "audit" not in command  # audit rows are long; the beginning is enough
            for line in child.stdout:
                said.append(line)
                if lines is None or len(said) <= lines:
                    for piece in fit(self.short(line.rstrip()), whole=whole):
                        say(f"     {piece}")
                elif len(said) == lines + 1:
                    say("     …")
            ended = child.wait(TIMEOUT_S)
        if ended != expect:
            raise DemoFailed(f"{shown} ended with {ended}, not {expect}:\n{''.join(said)}")
        return "".join(said)

    def stop_quietly(self) -> None:
        """Stop the daemon of this run, if there is one."""
        subprocess.run(
            [sys.executable, "-P", "-m", "kaged.cli", "daemon", "stop", "--force"],
            env=self.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)


def fit(line: str, *, whole: bool) -> list[str]:
    """Cut a line for a terminal, ids by their first characters; the rest below it, or left out."""
    line = re.sub(r"\b([a-z]{2,4}_[0-9A-Z]{4})[0-9A-Z]{22}\b", r"\1…", line.replace("\t", "  "))
    if len(line) <= WIDTH:
        return [line]
    if not whole:
        return [line[: WIDTH - 1] + "…"]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, drop_whitespace=True)


def paint(text: str, colour: str) -> str:
    """Color a text for a terminal."""
    return f"\x1b[{colour}m{text}\x1b[0m" if COLOUR else text
