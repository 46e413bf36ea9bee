"""A daemon that cannot start says which of its places is wrong, and leaves that place alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.daemon import Daemon, Finished, wait_for
from whole.harness.project import Project


def refusal(daemon: Daemon, code: str) -> dict[str, Any]:
    """Start a daemon that must not start; returns why, with what to do about it."""
    error: dict[str, Any] = daemon.start(expect=False)["error"]
    assert error["code"] == code, error
    assert error["message"], error
    assert error["data"].get("fix") or error["data"].get("problems"), error
    return error


def said(done: Finished) -> dict[str, Any]:
    """Return the error that a command printed with `--json`."""
    error: dict[str, Any] = json.loads(done.err)["error"]
    assert error["data"]["fix"], error
    return error


@pytest.fixture(scope="module")
def ran_once(module_path: Path) -> Path:
    """Return the home of a daemon that ran once and was stopped."""
    daemon = Daemon(module_path / "first")
    daemon.start()
    daemon.get("/projects")  # all subsystems have their files by then
    assert daemon.stop() == 0
    return daemon.home


@pytest.fixture
def used(own: Callable[..., Daemon], ran_once: Path) -> Daemon:
    """Return a daemon on a copy of that home, not started yet."""
    daemon = own()
    shutil.copytree(ran_once, daemon.home, dirs_exist_ok=True)
    return daemon


# -- places -----------------------------------------------------------------------------------


def test_a_home_that_others_may_change_is_not_used(own: Callable[..., Daemon]) -> None:
    daemon = own()
    daemon.home.chmod(0o777)
    assert "chmod" in str(refusal(daemon, "location_unsafe")["data"])
    daemon.home.chmod(0o700)
    daemon.start()


def test_a_home_that_is_no_full_path_is_said_by_every_command(own: Callable[..., Daemon]) -> None:
    daemon = own()
    for words in (["status"], ["daemon", "start"], ["doctor"]):
        done = daemon.cli(*words, "--json", code=None, env={"KAGED_HOME": "relative/home"})
        assert done.code != 0
        assert said(done)["code"] == "locations_unknown"


def test_a_lock_that_cannot_be_written_keeps_a_daemon_from_starting(used: Daemon) -> None:
    lock = used.home / "run" / "daemon.lock"
    lock.unlink()
    lock.mkdir()
    assert str(lock) in refusal(used, "home_unusable")["message"]
    lock.rmdir()
    used.start()


def test_a_file_in_place_of_the_socket_is_left_alone(own: Callable[..., Daemon]) -> None:
    daemon = own()
    daemon.write("run/kaged.sock", "precious")
    (daemon.home / "run").chmod(0o700)
    refusal(daemon, "bind_failed")
    assert (daemon.home / "run" / "kaged.sock").read_text(encoding="utf-8") == "precious"


def test_a_taken_port_is_named_and_the_same_daemon_starts_when_it_is_free(
    own: Callable[..., Daemon],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = own(config=f'[daemon]\nbind = "127.0.0.1:{port}"\n')
        assert str(port) in refusal(daemon, "port_in_use")["message"]
        error = said(daemon.cli("status", "--json", code=None))
        assert (error["code"], error["data"]["cause"]) == ("daemon_start_failed", "port_in_use")
    daemon.start()


def test_an_unusable_token_is_left_alone(used: Daemon) -> None:
    token = used.home / "http-token"
    for content in (b"", b"short", b"\xff" * 64):
        token.write_bytes(content)
        refusal(used, "token_file_unusable")
        assert token.read_bytes() == content


def test_a_token_that_others_can_read_is_not_used(used: Daemon) -> None:
    (used.home / "http-token").chmod(0o644)
    assert "chmod 600" in str(refusal(used, "token_file_unusable")["data"])
    assert used.cli("daemon", "token", code=None).code != 0


# -- one daemon on one home -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("audit.key", "audit_key_invalid"),
        ("vault.key", "vault_key_invalid"),
        ("http-token", "token_file_unusable"),
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620])
def test_a_secret_that_others_can_reach_keeps_the_daemon_from_starting(
    used: Daemon, name: str, code: str, mode: int
) -> None:
    """Before anybody is told that it is ready; made private again, it starts."""
    secret = used.home / name
    secret.chmod(mode)
    assert "chmod 600" in str(refusal(used, code)["data"])
    secret.chmod(0o600)
    used.start()
    assert used.get("/projects")["items"] == []


def test_a_program_that_is_no_bubblewrap_is_called_so(own: Callable[..., Daemon]) -> None:
    daemon = own(config='[sandbox]\nbwrap = "/bin/true"\n')
    daemon.start()
    rows = daemon.cli("doctor", "--json", code=None).json
    [row] = [one for one in rows["rows"] if one["id"] == "cage.bwrap"]
    assert row["status"] == "fail"
    assert "/bin/true is not bubblewrap" in row["cause"]
    assert "too old" not in row["cause"]


def test_a_second_daemon_on_the_same_home_is_refused_and_the_first_goes_on(
    own: Callable[..., Daemon],
) -> None:
    daemon = own()
    daemon.start()
    second = Daemon(daemon.home)
    error = refusal(second, "daemon_running")
    assert error["data"]["pid"] == daemon.pid
    assert daemon.get("/status")["pid"] == daemon.pid


def test_a_command_that_may_not_start_a_daemon_says_that_none_answers(used: Daemon) -> None:
    done = used.cli("project", "list", "--no-start", "--json", code=None)
    assert (done.code, said(done)["code"]) == (5, "daemon_unreachable")
    assert not (used.home / "run" / "kaged.sock").exists()


def test_a_daemon_that_does_not_end_is_named_and_ends_by_force(own: Callable[..., Daemon]) -> None:
    daemon = own()
    daemon.start()
    os.kill(daemon.pid, signal.SIGSTOP)
    error = said(daemon.cli("daemon", "stop", "--json", code=None))
    assert (error["code"], error["data"]["pid"]) == ("daemon_stuck", daemon.pid)
    daemon.cli("daemon", "stop", "--force")
    assert daemon.stop() == -signal.SIGKILL


def test_start_and_stop_are_on_record(used: Daemon) -> None:
    used.start()
    rows = wait_for(lambda: found if len(found := used.audit("daemon.*")) == 3 else [])
    assert [one["event"] for one in rows] == ["daemon.started", "daemon.stopped", "daemon.started"]
    assert rows[1]["data"]["pid"] == rows[0]["data"]["pid"] != used.pid
    assert rows[2]["data"]["pid"] == used.pid


# -- the database -----------------------------------------------------------------------------


def without_journal(home: Path) -> Path:
    """Return the database after its side files are gone."""
    for suffix in ("-wal", "-shm"):
        (home / f"kaged.db{suffix}").unlink(missing_ok=True)
    return home / "kaged.db"


def test_a_damaged_database_is_left_exactly_as_it_is(used: Daemon) -> None:
    path = without_journal(used.home)
    path.write_bytes(b"not a database!!" + path.read_bytes()[16:])
    before = path.read_bytes()
    refusal(used, "store_corrupt")
    assert path.read_bytes() == before
    done = used.cli("doctor", "--offline", "--json", code=8)
    (row,) = [one for one in done.json["rows"] if one["id"] == "store"]
    assert row["status"] == "fail"


def test_a_database_of_another_program_is_left_alone(used: Daemon) -> None:
    path = without_journal(used.home)
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("create table somebody_elses (x)")
    database.close()
    refusal(used, "store_foreign")


def test_a_database_of_a_newer_version_is_not_touched(used: Daemon) -> None:
    path = without_journal(used.home)
    with sqlite3.connect(path) as database:
        database.execute("insert into kaged_schema values (9999, 'later', 0)")
    database.close()
    before = path.read_bytes()
    assert "9999" in refusal(used, "store_newer_schema")["message"]
    assert path.read_bytes() == before


def test_a_database_that_cannot_be_opened_is_said(used: Daemon) -> None:
    path = without_journal(used.home)
    path.unlink()
    path.mkdir()
    refusal(used, "store_unavailable")
    path.rmdir()
    used.start()


def test_an_address_of_a_database_that_is_none_is_refused(own: Callable[..., Daemon]) -> None:
    daemon = own(config='[storage]\nurl = "mysql://127.0.0.1/x"\n')
    (problem,) = refusal(daemon, "config_invalid")["data"]["problems"]
    assert problem["key_path"] == "storage.url"
    memory = own(config='[storage]\nurl = "sqlite:////tmp/x.db?mode=memory"\n')
    refusal(memory, "store_url_invalid")


# -- the record -------------------------------------------------------------------------------


def test_a_lost_audit_key_is_said_instead_of_hiding_the_loss(used: Daemon) -> None:
    key = used.home / "audit.key"
    kept = key.read_bytes()
    key.unlink()
    refusal(used, "audit_key_invalid")
    assert not key.exists()
    error = said(used.cli("audit", "verify", "--json", code=None))
    assert error["code"] == "audit_key_missing"
    key.write_bytes(kept)
    key.chmod(0o600)
    used.start()
    assert used.post("/audit/verify")["ok"] is True


def test_rows_that_vanished_between_two_starts_are_noticed(used: Daemon, tmp_path: Path) -> None:
    path = without_journal(used.home)
    before = path.read_bytes()
    used.start()
    used.load(Project(tmp_path / "p"))
    used.stop()
    without_journal(used.home).write_bytes(before)
    used.start()
    (row,) = wait_for(lambda: used.audit("audit.chain_mismatch"))
    assert row["data"]["problems"]
    assert row["data"]["file_seq"] > row["data"]["found_seq"]


# -- keys, and who could come in --------------------------------------------------------------


def not_opened(daemon: Daemon, code: str) -> None:
    """Start a daemon that ends again when it comes to its accounts; its log says why."""
    before = len(daemon.log())
    daemon.start()
    wait_for(lambda: not daemon.running, "its end")
    said = [json.loads(one) for one in daemon.log()[before:].splitlines() if one[:1] == "{"]
    assert code in [one.get("code") for one in said if one["event"] == "daemon.not_opened"]
    daemon.stop()


def test_a_daemon_without_callers_names_listens_on_this_machine_only(
    own: Callable[..., Daemon],
) -> None:
    daemon = own(config='[daemon]\nbind = "0.0.0.0:0"\n[auth]\nmode = "insecure"\n')
    (problem,) = refusal(daemon, "config_invalid")["data"]["problems"]
    assert (problem["key_path"], problem["code"]) == ("daemon.bind", "insecure_bind_refused")


def test_a_signing_secret_that_can_be_guessed_is_not_used_and_who_waits_is_told(
    used: Daemon,
) -> None:
    used.env["ASH_CONTEXT_TOKEN_SECRET"] = "short"
    not_opened(used, "token_key_invalid")
    used.forked = False  # all that is to be loaded is loaded meanwhile: so there is a meanwhile

    def told() -> dict[str, Any] | None:
        # A request that comes while the parts are being opened. A moment later the daemon is
        # stopping and says so, then nobody answers: too late, once more.
        used.start()
        try:
            error = used.error("GET", "/projects")
        except httpx.HTTPError:
            return None
        finally:
            used.stop()
        return None if error["code"] == "daemon_stopping" else error

    error = wait_for(told, "an answer before the end")
    assert error is not None
    assert (error["status"], error["code"]) == (503, "daemon_opening")
    used.env["ASH_CONTEXT_TOKEN_SECRET"] = "ab" * 32
    used.start()
    used.get("/projects")


def test_a_vault_key_that_others_can_read_keeps_the_daemon_from_starting(used: Daemon) -> None:
    used.start()
    used.get("/projects")
    used.stop()
    key = used.home / "vault.key"
    kept = key.read_bytes()
    key.chmod(0o644)
    refusal(used, "vault_key_invalid")
    key.chmod(0o600)
    key.write_bytes(b"nonsense")
    used.start()
    assert "key of the vault" in str(used.get("/status")["warnings"])
    used.stop()
    assert key.read_bytes() == b"nonsense"
    key.write_bytes(kept)
    used.start()
    assert "key of the vault" not in str(used.get("/status")["warnings"])


def test_a_database_that_cannot_be_brought_up_to_date_is_as_before(used: Daemon) -> None:
    path = without_journal(used.home)
    with sqlite3.connect(path) as database:
        database.execute("delete from kaged_schema")
    database.close()
    before = path.read_bytes()
    refusal(used, "store_migration_failed")
    assert path.read_bytes() == before
