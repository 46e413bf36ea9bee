"""What an operator gives a plugin by command, and what is said when it is missing."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from whole.harness.daemon import KAGED, Daemon
from whole.harness.guests import Guest

SCHEMA = {
    "type": "object",
    "required": ["api_key"],
    "properties": {"api_key": {"type": "string"}, "port": {"type": "integer"}},
}
PROGRAM = """
from kit import *
greet()
def on(message):
    answer(message, None)
serve(on)
"""


@pytest.fixture
def guest(own: Callable[..., Daemon], tmp_path: Path) -> Guest:
    """Return an installed plugin that cannot start without a key."""
    daemon = own()
    daemon.start()
    return Guest(daemon, tmp_path, PROGRAM, name="needy", system_config_schema=SCHEMA)


def last_config(guest: Guest) -> object:
    """Return the config that it was last given."""
    return guest.heard("config.update")[-1]["params"]["config"]


def test_a_missing_secret_is_named_with_its_place_and_command_and_can_be_set_twice(
    guest: Guest,
) -> None:
    daemon = guest.daemon
    assert guest.run()["state"] == "failed"
    shown = daemon.cli("plugin", "info", "needy").out
    for part in ("api_key is missing", "[plugins.needy] of local.toml", "plugin secret set needy"):
        assert part in " ".join(shown.split()), shown
    secret = 's3cret "${HOME}" $${x}'
    done = daemon.cli("plugin", "secret", "set", "needy", "api_key", stdin=f"{secret}\n")
    assert secret not in done.out + done.err
    assert "[plugins.needy]" in done.out
    daemon.cli("plugin", "secret", "set", "needy", "port", stdin="8080\n")
    daemon.cli("plugin", "enable", "needy")
    assert last_config(guest) == {"api_key": secret, "port": 8080}
    daemon.cli("plugin", "secret", "set", "needy", "api_key", stdin="second")
    daemon.cli("plugin", "restart", "needy")
    assert last_config(guest) == {"api_key": "second", "port": 8080}
    assert (daemon.home / "local.toml").stat().st_mode & 0o777 == 0o600
    assert "second" not in daemon.log()


@pytest.mark.parametrize(
    ("words", "typed", "said"),
    [
        (("nobody", "api_key"), "x", "No plugin nobody is installed."),
        (("../needy", "api_key"), "x", "is installed"),
        (("needy", "grants"), "x", "no setting grants"),
        (("needy", "api_key"), "", "empty"),
        (("needy", "port"), "many", "type integer"),
    ],
)
def test_what_is_no_setting_of_a_plugin_is_refused_and_nothing_written(
    guest: Guest, words: tuple[str, str], typed: str, said: str
) -> None:
    guest.install()
    before = (guest.daemon.home / "local.toml").read_bytes()
    done = guest.daemon.cli("plugin", "secret", "set", *words, stdin=typed, code=None)
    assert done.code != 0
    assert said in done.err
    assert (guest.daemon.home / "local.toml").read_bytes() == before


def test_at_a_terminal_a_secret_is_not_echoed(guest: Guest) -> None:
    guest.install()
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [KAGED, "plugin", "secret", "set", "needy", "api_key"],
        env=guest.daemon.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        shown = b""
        while b"api_key of needy: " not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, b"typed-in-secret\n")
        while b"Set api_key" not in shown:
            shown += os.read(ours, 1000)
        process.wait(60)
    os.close(ours)
    assert b"typed-in-secret" not in shown
    assert "typed-in-secret" in (guest.daemon.home / "local.toml").read_text(encoding="utf-8")


def test_logs_keep_what_a_failed_start_said(own: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = own()
    daemon.start()
    guest = Guest(daemon, tmp_path, "import sys\nsys.exit('no module named frob')\n", name="dies")
    assert guest.run()["state"] == "failed"
    assert "no module named frob" in daemon.cli("plugin", "logs", "dies").out
