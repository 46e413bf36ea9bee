"""`kaged cage run`: any program in a cage, with what was named and nothing else."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from whole.harness.daemon import KAGED, PATIENCE_S, Daemon, Finished, wait_for

CURL = ("curl", "-sS", "--max-time", "20", "--noproxy", "*")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder to work in, beside one with a secret."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("hello\n", encoding="utf-8")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "key").write_text("s3cret\n", encoding="utf-8")
    return tmp_path / "work"


@pytest.fixture
def server() -> Iterator[int]:
    """Yield the port of an HTTP server of this machine."""

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"from outside\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Write no log."""

    made = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.server_port
    made.shutdown()
    made.server_close()


def caged(
    daemon: Daemon, folder: Path, *words: str, stdin: str = "", options: Sequence[str] = ()
) -> Finished:
    """Run a program as a person does, in a folder."""
    Daemon.spoken += 1
    argv = [KAGED, "cage", "run", *options, "--", *words]
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**daemon.env, "SECRET_TOKEN": "t0ken"},
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    return Finished(argv, done.returncode, done.stdout, done.stderr)


def test_streams_and_exit_code_are_the_programs_own(daemon: Daemon, folder: Path) -> None:
    done = caged(daemon, folder, "sh", "-c", "tr a-z A-Z; echo aside >&2; exit 7", stdin="piped\n")
    assert (done.out, done.err, done.code) == ("PIPED\n", "aside\n", 7)
    large = "x" * 3_000_000
    assert caged(daemon, folder, "cat", stdin=large).out == large
    unread = caged(daemon, folder, "true", stdin=large)
    assert (unread.code, unread.err) == (0, "")


def test_it_sees_this_folder_and_no_other_and_no_variable_that_was_not_named(
    daemon: Daemon, folder: Path
) -> None:
    key = str(folder.parent / "beside" / "key")
    done = caged(daemon, folder, "sh", "-c", f"echo new > b.txt; cat a.txt; cat {key}; env")
    assert (folder / "b.txt").read_text(encoding="utf-8") == "new\n"
    assert "hello" in done.out
    assert "s3cret" not in done.out
    assert "t0ken" not in done.out
    told = caged(
        daemon, folder, "sh", "-c", f"cat {key}; echo $SECRET_TOKEN $OTHER; echo x > {key}",
        options=("--read", key, "--env", "SECRET_TOKEN", "--env", "OTHER=o"),
    )  # fmt: skip
    assert told.out == "s3cret\nt0ken o\n"
    assert Path(key).read_text(encoding="utf-8") == "s3cret\n"
    # Named alone, another folder takes the place of this one.
    other = caged(
        daemon, folder, "sh", "-c", "ls a.txt; echo y > key",
        options=("--write", str(folder.parent / "beside")),
    )  # fmt: skip
    assert other.code != 0
    assert "s3cret" not in other.out


def test_a_home_is_kept_where_one_is_named_and_empty_otherwise(
    daemon: Daemon, folder: Path
) -> None:
    home = folder.parent / "home"
    write = ("sh", "-c", "ls -A ~; echo kept > ~/note")
    assert caged(daemon, folder, *write, options=("--home", str(home))).out == ""
    assert caged(daemon, folder, *write, options=("--home", str(home))).out == "note\n"
    assert home.stat().st_mode & 0o777 == 0o700
    assert "note" not in caged(daemon, folder, *write).out


def test_a_refused_connection_is_reported_with_what_would_allow_it(
    daemon: Daemon, folder: Path, server: int
) -> None:
    url = f"http://localhost:{server}/"
    refused = caged(daemon, folder, *CURL, url)
    assert refused.code != 0
    direct = caged(daemon, folder, *CURL, "http://192.0.2.7:8080/")
    assert "not allowed: net:192.0.2.7:8080" in direct.err
    assert "--net 192.0.2.7:8080" in direct.err
    named = caged(daemon, folder, *CURL, "https://evil.example/")
    assert "--net evil.example:443" in named.err
    granted = caged(daemon, folder, *CURL, url, options=("--net", f"localhost:{server}"))
    assert (granted.out, granted.err, granted.code) == ("from outside\n", "", 0)
    silent = caged(daemon, folder, *CURL, "http://192.0.2.7/", options=("--quiet",))
    assert "kaged" not in silent.err


def test_what_programs_of_the_host_would_run_is_refused_or_taken_back(
    daemon: Daemon, folder: Path
) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    script = "echo evil > .git/hooks/pre-commit; git config core.pager evil; echo x > Makefile"
    done = caged(daemon, folder, "sh", "-c", script)
    assert not (folder / ".git/hooks/pre-commit").exists()
    assert "evil" not in (folder / ".git/config").read_text(encoding="utf-8")
    assert "taken back: .git/config" in done.err
    assert "Makefile" in done.err


def test_what_it_needed_is_learned_and_is_enough_the_next_time(
    daemon: Daemon, folder: Path, server: int
) -> None:
    policy = folder / "policy.yaml"
    local = ("--net", f"localhost:{server}")
    words = (*CURL, f"http://localhost:{server}/")
    learned = caged(daemon, folder, *words, options=("--learn", str(policy), *local))
    assert learned.code == 0, learned.err
    text = policy.read_text(encoding="utf-8")
    assert f'- "localhost:{server}"' in text
    assert "*" not in text
    again = caged(daemon, folder, *words, options=("--policy", str(policy)))
    assert (again.out, again.code) == ("from outside\n", 0)
    other = caged(daemon, folder, *CURL, "http://192.0.2.7/", options=("--policy", str(policy)))
    assert "not allowed" in other.err
    twice = caged(daemon, folder, "true", options=("--learn", str(policy)))
    assert "exists" in twice.err
    assert policy.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--read", "/no/such/place"), "/no/such/place does not exist."),
        (("--limit", "speed=9"), "cage_option_invalid"),
        (("--limit", "memory_mb=0"), "NAME=NUMBER"),
        (("--env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE=VALUE"),
        (("--net", "host"), "host:port"),
        (("--agent", "primary"), "kaged project init"),
    ],
)
def test_an_option_that_says_nothing_is_refused_before_anything_runs(
    daemon: Daemon, folder: Path, options: tuple[str, ...], said: str
) -> None:
    done = caged(daemon, folder, "touch", "ran", options=options)
    assert done.code not in {0, 1}
    assert said in done.err
    assert not (folder / "ran").exists()


def test_an_agents_cage_is_used_by_name(daemon: Daemon, folder: Path) -> None:
    (folder / ".kaged").mkdir()
    cage = {"fs": [{"mode": "ro", "path": "."}]}
    reader = {"model": "default", "system_prompt": "You read.", "cage": cage}
    primary = {"model": "default", "system_prompt": "x", "subagents": {"reader": reader}}
    text = json.dumps({"version": 1, "project": "p", "primary": primary})
    (folder / ".kaged/project.yaml").write_text(text, encoding="utf-8")
    daemon.cli("project", "load", "--trust", str(folder))
    options = ("--agent", "primary.subagents.reader")
    done = caged(daemon, folder, "sh", "-c", "cat a.txt; echo x > c.txt", options=options)
    assert done.out == "hello\n"
    assert not (folder / "c.txt").exists()


def test_a_signal_and_a_limit_end_the_program(daemon: Daemon, folder: Path) -> None:
    Daemon.spoken += 1
    script = "trap 'echo caught; exit 9' TERM; touch ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [KAGED, "cage", "run", "--", "sh", "-c", script],
        cwd=folder,
        env=daemon.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    wait_for((folder / "ready").exists, "the program")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == ("caught\n", 9)
    slow = caged(daemon, folder, "sleep", "60", options=("--limit", "walltime_sec=1"))
    assert "walltime limit 1 s" in slow.err
    assert slow.code != 0


def test_at_a_terminal_it_has_a_terminal_of_its_own(daemon: Daemon, folder: Path) -> None:
    Daemon.spoken += 1
    ours, theirs = pty.openpty()
    words = ["sh", "-c", "test -t 0 && test -t 1 && stty size && read answer && echo got $answer"]
    process = subprocess.Popen(
        [KAGED, "cage", "run", "--", *words],
        cwd=folder,
        env={**daemon.env, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    while b"\n" not in seen:
        seen += os.read(ours, 1024)
    os.write(ours, b"typed\n")
    while b"got typed" not in seen:
        seen += os.read(ours, 1024)
    assert process.wait(PATIENCE_S) == 0
    os.close(ours)
