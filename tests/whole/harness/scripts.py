"""`Scripts`: the Lua scripts of a daemon, as a project's people load, run and answer them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from websockets.sync.client import unix_connect

from whole.harness.daemon import Daemon
from whole.harness.project import Project

PATIENCE_S = 60.0


class Scripts:
    """The scripts in a daemon's folder, loaded for one project."""

    def __init__(self, daemon: Daemon, project: Project) -> None:
        self.daemon = daemon
        self.project = project
        self.folder = daemon.home / "lua"
        self.folder.mkdir(exist_ok=True)
        self._config = (daemon.home / "config.toml").read_text(encoding="utf-8")
        self.describe()  # waits for the end of the project's first load

    def close(self) -> None:
        """Take the scripts away and unload the project, so that no worker is left."""
        self.clear()
        self.daemon.write("config.toml", self._config)
        self.daemon.ask("DELETE", f"/projects/{self.project.id}")

    def clear(self) -> None:
        """Empty the folder."""
        for file in self.folder.iterdir():
            file.unlink()

    def grant(self, **powers: object) -> None:
        """Write the grants into `config.toml`; a reload reads them."""
        rows = "".join(f"{name} = {json.dumps(value)}\n" for name, value in powers.items())
        self.daemon.write("config.toml", f"{self._config}\n[plugins.capabilities]\n{rows}")

    def write(self, **sources: str) -> None:
        """Write scripts into the folder, by their names."""
        for name, text in sources.items():
            (self.folder / f"{name}.lua").write_text(text, encoding="utf-8")

    def load(self, **sources: str) -> dict[str, dict[str, Any]]:
        """Make the folder hold exactly these scripts and reload; returns what is told of each."""
        self.clear()
        self.write(**sources)
        return self.reload()

    def reload(self) -> dict[str, dict[str, Any]]:
        """Reload all scripts; returns what is told of each."""
        found = self.project.post("/lua/reload")
        return {one["name"]: one for one in found["scripts"]}

    def describe(self) -> dict[str, Any]:
        """Return what the daemon tells about the scripts."""
        found: dict[str, Any] = self.project.get("/lua")
        return found

    def state(self, name: str) -> dict[str, Any]:
        """Return what is told about one script."""
        (found,) = [one for one in self.describe()["scripts"] if one["name"] == name]
        return dict(found)

    def run(self, name: str, raw: str = "", *, interactive: bool = False) -> dict[str, Any]:
        """Run a command of a script."""
        body = {"name": name, "raw": raw, "interactive": interactive}
        found: dict[str, Any] = self.project.post("/lua/commands", body)
        return found

    def value(self, name: str, raw: str = "") -> Any:
        """Run a command that has to work; returns its structured answer."""
        found = self.run(name, raw)
        assert not found["is_error"], found
        return found["structured"]

    def eval(self, code: str, stem: str = "probe", **others: str) -> Any:
        """Load a script that runs this code as a command, and run it; returns its value."""
        shown = self.load(**{stem: command("eval", code)}, **others)
        assert shown[stem]["state"] == "running", shown[stem]
        return self.again()

    def again(self) -> Any:
        """Run the code of `eval` once more."""
        found = self.value("eval")
        return found.get("value") if isinstance(found, dict) else None

    def answered(self, act: Callable[[], Any], *answers: object) -> Any:
        """Do something while a person answers the dialogs in turn; returns its result."""
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(act)
            for answer in answers:
                shown: list[dict[str, Any]] = []
                while not shown and not going.done():
                    shown = self.project.get("/lua/dialogs?wait_s=5")["dialogs"]
                assert shown, "no dialog came"
                self.project.post(f"/lua/dialogs/{shown[0]['id']}", {"answer": answer})
            return going.result(PATIENCE_S)

    def notices(self) -> list[str]:
        """Return what people of this project were shown by scripts so far, oldest first."""
        socket = str(self.daemon.get("/status")["socket"])
        shown: list[str] = []
        with unix_connect(socket, "ws://kaged/api/v1/events?after=0") as stream:
            latest, seq = json.loads(stream.recv(PATIENCE_S))["latest"], 0
            while seq < latest:
                event = json.loads(stream.recv(PATIENCE_S))
                seq = event.get("seq", seq)
                if event.get("topic") != f"lua:{self.project.id}":
                    continue
                if event["name"] == "lua.notice":
                    shown.append(event["data"]["message"])
        return shown

    def audit(self, *events: str) -> list[dict[str, Any]]:
        """Return the data of the audit rows of these events in this project, oldest first."""
        rows = self.daemon.audit(*events, project_id=self.project.id)
        return [one["data"] for one in rows]


def command(name: str, code: str) -> str:
    """Return a script with a command that answers with the value of this code."""
    return (
        f"kage.register_command{{name='{name}', description='', handler=function(raw)\n"
        f"local value = (function() {code}\nend)()\n"
        "return { structured = { value = value } }\nend}\n"
    )


def git(*words: str, cwd: Path, home: Path | None = None) -> str:
    """Run the operator's own git, outside every cage."""
    done = subprocess.run(
        [shutil.which("git") or "git", *words],
        cwd=cwd,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home or "/nonexistent"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@t",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@t",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        },
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout.strip()


def repository(root: Path, files: Mapping[str, str] | None = None) -> None:
    """Make a folder a repository with a first commit; kaged's own files stay out of it."""
    git("init", "-q", "-b", "main", cwd=root)
    for name, text in (files or {"a.txt": "one\n"}).items():
        (root / name).write_text(text, encoding="utf-8")
    git("add", "--", *(files or {"a.txt": ""}), cwd=root)
    git("commit", "-q", "-m", "first", cwd=root)


def lua_list(words: Sequence[str]) -> str:
    """Write texts as a Lua list."""
    return "{" + ", ".join(f"[==[{one}]==]" for one in words) + "}"
