"""`kaged bridge check --sidecar`: what a daemon would find, said to the sidecar's author."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.intranet import Intranet
from whole.harness.services import GUESTS, PYTHON

EXAMPLES = Path(__file__).parents[3] / "plugins" / "examples"
BROWSER = EXAMPLES / "browser-sidecar" / "sidecar.py"
HARBOUR = EXAMPLES / "harbour-bridge" / "bridge.py"
FAULTS = {
    "wide": ("listens beyond loopback", "127.0.0.1"),
    "health": ("answers those without its token", "401 on every path"),
    "open": ("answers those without its token", "401 on every path"),
    "telling": ("refusals differ", "the same body"),
    "borrowed": ("does not listen at the port it named", "before the line is printed"),
}
PROGRAMS = {
    "ends": ("raise SystemExit(3)", "ended before it said where it is", "first line"),
    "talks": ("print('hello', flush=True); input()", "first line is not", "standard error"),
    "waits": ("input()", "said nothing within", "as soon as it listens"),
}


@pytest.fixture(scope="module")
def daemon(module_path: Path) -> Iterator[Daemon]:
    """Yield a home: the command needs no daemon that runs."""
    made = Daemon(module_path / "h")
    yield made
    made.close()


def check(daemon: Daemon, namespace: str, *program: str, code: int = 0, **env: str) -> Any:
    variables = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    words = ("bridge", "check", "--sidecar", "-n", namespace, "--timeout", "10", *variables)
    return daemon.cli(*words, "--json", "--", *PYTHON, *program, code=code).json


def rows(said: Any) -> dict[str, dict[str, str]]:
    return {one["id"]: one for one in said["checks"]}


@whole("SC-BRG-20")
def test_two_sidecars_that_a_daemon_can_use(daemon: Daemon, tmp_path: Path) -> None:
    with contextlib.closing(Intranet()) as intranet:
        said = check(daemon, "browser", str(BROWSER), BROWSER_SITE=intranet.url)
    assert (said["ok"], said["capabilities"]) == (True, ["browser.pages"])
    found = {id_: one["verdict"] for id_, one in rows(said).items()}
    assert found == {
        "guarded": "ok",
        "definitions": "ok",
        "unknown_operation.browser.pages": "ok",
        "auth_begin.browser.pages": "ok",
        "isolation.browser.pages": "ok",
    }
    said = check(daemon, "facts", str(GUESTS / "sidecar_facts.py"), FACTS=str(tmp_path))
    assert (said["ok"], said["capabilities"]) == (True, ["facts.one", "facts.two"])
    # What it offers has to be of its own namespace, as for a daemon.
    wrong = check(daemon, "other", str(GUESTS / "sidecar_facts.py"), FACTS=str(tmp_path), code=6)
    assert rows(wrong)["definitions"]["verdict"] == "fail"


@whole("SC-BRG-17", "SC-BRG-20")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_sidecar_without_its_guard_is_told_what_to_do(
    daemon: Daemon, tmp_path: Path, fault: str
) -> None:
    with contextlib.closing(Intranet()) as intranet:
        env = {"ASKED": str(tmp_path / "asked"), "ELSEWHERE": str(intranet.port)}
        program = str(GUESTS / "sidecar_unguarded.py")
        said = check(daemon, fault, program, fault, code=6, **env)
    assert said["ok"] is False
    [row] = said["checks"]  # nothing else is asked of it
    found, fix = FAULTS[fault]
    assert (row["id"], row["verdict"]) == ("guarded", "fail")
    assert found in row["detail"], row
    assert fix in row["fix"], row


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_that_is_no_sidecar_is_told_how_one_begins(daemon: Daemon, kind: str) -> None:
    program, found, fix = PROGRAMS[kind]
    said = check(daemon, "x", "-c", program, code=6)
    [row] = said["checks"]
    assert found in row["detail"], row
    assert fix in row["fix"], row
    shown = daemon.cli(
        *("bridge", "check", "--sidecar", "-n", "x", "--timeout", "10", "--", *PYTHON, "-c"),
        program,
        code=6,
    )
    assert "guarded" in shown.out + shown.err


def test_a_bridge_whose_accounts_are_typed_into_a_page_is_checked_too(
    daemon: Daemon, tmp_path: Path
) -> None:
    env = ("--env", "HARBOUR_URL=http://127.0.0.1:9", "--env", f"HARBOUR_STATE={tmp_path}")
    words = ("bridge", "check", "-n", "harbour", *env, "--json", "--", *PYTHON, str(HARBOUR))
    found = rows(daemon.cli(*words, code=None).json)
    assert found["auth_begin.harbour.locker"]["verdict"] == "ok", found
