"""`kaged login` by the device flow: a person at a terminal, and a browser anywhere."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.daemon import KAGED, PATIENCE_S, Daemon, Finished
from whole.harness.model import ModelServer, say
from whole.harness.openid import Browser, OpenIdServer
from whole.harness.project import Project
from whole.harness.talk import fresh


class Terminal:
    """Somebody at another machine, with a home of their own and no daemon."""

    def __init__(self, daemon: Daemon, home: Path) -> None:
        home.mkdir(mode=0o700)
        self.home = home
        self.url = daemon.url.rstrip("/")
        self.env = {**daemon.env, "HOME": str(home), "KAGED_HOME": str(home)}

    @property
    def file(self) -> Path:
        """Where the tokens are kept."""
        return self.home / "logins.json"

    def kept(self) -> dict[str, Any]:
        """Return what is kept for the daemon."""
        found: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return dict(found[self.url])

    def keep(self, **changes: Any) -> None:
        """Change what is kept, as time or somebody else would."""
        text = json.dumps({self.url: {**self.kept(), **changes}})
        self.file.write_text(text, encoding="utf-8")

    def run(self, *words: str, code: int = 0) -> Finished:
        """Run a command against the daemon's URL."""
        Daemon.spoken += 1
        argv = [KAGED, "--url", self.url, *words]
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == code, (argv, done.stdout, done.stderr)
        return Finished(argv, done.returncode, done.stdout, done.stderr)

    def login(self) -> tuple[subprocess.Popen[str], str]:
        """Begin to sign in; returns the command, and the page that it asks to open."""
        Daemon.spoken += 1
        process = subprocess.Popen(
            [KAGED, "login", self.url],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        told = process.stderr.readline()
        page = re.search(r"Open (\S+) and compare the code (\S+)\.", told)
        assert page is not None, told + process.stderr.read()
        return process, page[1]


@pytest.fixture
def terminal(daemon: Daemon, tmp_path: Path) -> Terminal:
    """Return somebody at a terminal."""
    return Terminal(daemon, tmp_path / "t")


@pytest.fixture
def signed_in(provider: OpenIdServer, terminal: Terminal) -> Callable[[str], Terminal]:
    """Return who signs a person in at the terminal."""

    def sign_in(user: str) -> Terminal:
        process, page = terminal.login()
        with Browser(provider) as browser:
            browser.answer_device(page, user)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert out == f"Signed in to {terminal.url} as {user}.\n"
        return terminal

    return sign_in


def _whoami(daemon: Daemon, token: str) -> int:
    bearer = {"Authorization": f"Bearer {token}"}
    url = f"{daemon.url}/api/v1/auth/whoami"
    return httpx.get(url, headers=bearer, timeout=PATIENCE_S, trust_env=False).status_code


def test_a_person_signs_in_works_and_signs_out(
    daemon: Daemon,
    provider: OpenIdServer,
    project: Project,
    model: ModelServer,
    signed_in: Callable[[str], Terminal],
) -> None:
    ann = signed_in("ann")
    assert stat.S_IMODE(ann.file.stat().st_mode) == 0o600
    assert [one["id"] for one in ann.run("project", "list", "--json").json] == [project.id]
    word = fresh("soup")
    model.play(word, say(f"{word} is ready."))
    told = ann.run("run", "--project", project.id, f"{word} please")
    assert f"{word} is ready." in told.out
    mine = ann.run("session", "list", "--project", project.id, "--json").json
    assert mine["total"] == 1
    # What is the operator's stays the operator's.
    assert "Only the operator" in ann.run("status", code=1).err
    # The second command after the token's end renews it; the refresh token is another then.
    before = ann.kept()
    ann.keep(expires_at_ms=0)
    ann.run("project", "list")
    after = ann.kept()
    assert after["access_token"] != before["access_token"]
    assert after["refresh_token"] != before["refresh_token"]
    ann.keep(access_token="a.b.c")  # one that the daemon refuses before its time
    ann.run("project", "list")
    assert ann.kept()["access_token"] != "a.b.c"
    last = ann.kept()["access_token"]
    assert _whoami(daemon, last) == 200
    assert ann.run("logout").out == f"Signed out of {ann.url}.\n"
    # The token is signed and would count for minutes; who has a copy of it is refused.
    assert _whoami(daemon, last) == 401
    assert json.loads(ann.file.read_text(encoding="utf-8")) == {}
    again = ann.run("project", "list", code=4)
    assert f"You are not signed in to {ann.url}." in again.err
    assert f"kaged login {ann.url}" in again.err
    assert "[not_signed_in]" in ann.run("logout", code=4).err


def test_a_sign_in_that_has_ended_says_what_to_do(
    signed_in: Callable[[str], Terminal],
) -> None:
    bob = signed_in("bob")
    bob.keep(expires_at_ms=0, refresh_token="withdrawn")
    told = bob.run("project", "list", code=4)
    assert f"Your sign-in has ended at {bob.url}." in told.err
    bob.keep(expires_at_ms=0, refresh_token=None)
    assert f"kaged login {bob.url}" in bob.run("project", "list", code=4).err
    bob.file.chmod(0o644)
    told = bob.run("project", "list", code=6)
    assert "logins.json can be read or changed by others" in told.err
    assert "[logins_invalid]" in told.err


def test_whoever_does_not_agree_is_not_signed_in(
    provider: OpenIdServer, terminal: Terminal
) -> None:
    process, page = terminal.login()
    with Browser(provider) as browser:
        browser.answer_device(page, "ann", agrees=False)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4, err
    assert "You did not agree; nobody is signed in." in err
    assert not terminal.file.exists()


def test_a_sign_in_that_is_canceled_keeps_nothing(terminal: Terminal) -> None:
    process, _ = terminal.login()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert not terminal.file.exists()


def test_whom_the_operator_does_not_name_is_told_so_and_nothing_is_kept(
    provider: OpenIdServer, terminal: Terminal
) -> None:
    process, page = terminal.login()
    with Browser(provider) as browser:
        browser.answer_device(page, "eve")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "eve may not use this daemon." in err
    assert json.loads(terminal.file.read_text(encoding="utf-8")) == {}
