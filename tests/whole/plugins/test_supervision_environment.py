"""What a plugin's process is started with: its variables, its path, its runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.guests import Guest

BUN = Path(__file__).parents[3] / "build/tools/node_modules/.bin/bun"
SHOWS_ENV: dict[str, Any] = {"on": {"a.b": [{"env": True}]}}
OF_THE_HOST = {
    "KAGED_PLUGIN_NAME",
    "KAGED_PLUGIN_DIR",
    "KAGED_API_VERSION",
    "KAGED_LOG_LEVEL",
    "HOME",
    "PATH",
    "LANG",
}
OF_THE_CAGE = {"PWD", "PYTHONPATH", "TMPDIR", "XDG_CACHE_HOME"}
BY_PYTHON = {"LC_CTYPE"}
OF_THE_TEST = {"DIARY", "METHODS"}


@pytest.fixture(scope="module")
def told(module_path: Path) -> Iterator[Daemon]:
    """Yield a daemon with a secret in its environment, a log level and a runtime of its own."""
    made = Daemon(
        module_path / "h",
        config=f'[logging]\nlevel = "debug"\n[sandbox.runtimes]\nbun = "{BUN}"\n',
        env={"SECRET_OF_THE_DAEMON": "hunter2", "http_proxy": "http://hunter2:1/", "LANG": "de_DE"},
    )
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(told: Daemon, module_path: Path) -> Guest:
    """Return a running plugin that shows its environment."""
    made = Guest(told, module_path, SHOWS_ENV, name="plain")
    assert made.run()["state"] == "running"
    return made


@whole("PH-SUP-05", "PH-SUP-06", "PH-SUP-07", "PH-SUP-08")
def test_a_plugin_is_told_its_name_its_folder_the_api_and_the_log_level(plain: Guest) -> None:
    env = plain.call()["env"]
    assert env["KAGED_PLUGIN_NAME"] == "plain"
    assert env["KAGED_PLUGIN_DIR"] == str(plain.stored)
    assert Path(env["KAGED_PLUGIN_DIR"]).is_absolute()
    assert (plain.stored / "main.py").is_file()
    assert env["KAGED_API_VERSION"] == "1"
    assert env["KAGED_LOG_LEVEL"] == "debug"


@whole("PH-SUP-09", "PH-SUP-10", "PH-SUP-11")
def test_home_path_and_language_are_the_hosts_choice(plain: Guest) -> None:
    seen = plain.call()
    assert seen["env"]["HOME"] == seen["env"]["KAGED_PLUGIN_DIR"]
    assert seen["env"]["PATH"] == "/usr/bin:/usr/local/bin"
    assert seen["env"]["LANG"] == "C.UTF-8"
    assert seen["cwd"] == str(plain.stored)


@whole("PH-SUP-13")
def test_nothing_of_the_daemons_own_environment_is_inherited(told: Daemon, tmp_path: Path) -> None:
    environ = Path(f"/proc/{told.pid}/environ").read_bytes()
    assert b"hunter2" in environ, "it is there to be inherited"
    for capabilities, more in (([], set[str]()), (["net:example.org:443"], {"proxy"})):
        guest = Guest(told, tmp_path, SHOWS_ENV, capabilities=capabilities)
        guest.run()
        env = guest.call()["env"]
        assert "hunter2" not in str(env)
        proxies = {name for name in env if "proxy" in name.lower()}
        assert bool(proxies) is bool(more)
        allowed = OF_THE_HOST | OF_THE_CAGE | BY_PYTHON | OF_THE_TEST | proxies
        assert set(env) <= allowed, set(env) - allowed
        assert set(env) >= OF_THE_HOST


@whole("PH-SUP-12", "PH-AMB-39")
def test_a_manifest_may_set_all_variables_but_three(told: Daemon, tmp_path: Path) -> None:
    guest = Guest(
        told,
        tmp_path,
        SHOWS_ENV,
        env={
            "LANG": "de_DE.UTF-8",
            "PATH": "/usr/bin:/opt/mine",
            "HOME": "/tmp/elsewhere",
            "TMPDIR": "/run",
            "KAGED_LOG_LEVEL": "error",
            "OWN": "mine",
            "KAGED_PLUGIN_NAME": "mallory",
            "KAGED_PLUGIN_DIR": "/",
            "KAGED_API_VERSION": "7",
        },
    )
    shown = told.post("/plugins/preview", {"path": str(guest.root)})
    warned = " ".join(map(str, shown["warnings"]))
    for name in ("KAGED_PLUGIN_NAME", "KAGED_PLUGIN_DIR", "KAGED_API_VERSION"):
        assert name in warned
    assert "LANG" not in warned
    guest.run()
    env = guest.call()["env"]
    assert env["KAGED_PLUGIN_NAME"] == guest.name
    assert env["KAGED_PLUGIN_DIR"] == str(guest.stored)
    assert env["KAGED_API_VERSION"] == "1"
    assert env["LANG"] == "de_DE.UTF-8"
    assert env["PATH"] == "/usr/bin:/opt/mine"
    assert env["HOME"] == "/tmp/elsewhere"
    assert (env["TMPDIR"], env["KAGED_LOG_LEVEL"], env["OWN"]) == ("/run", "error", "mine")


SCRIPT = """
const say = (id, result) => console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
for await (const line of console) {
  const { id, method } = JSON.parse(line);
  if (method === "initialize")
    say(id, { name: "on-bun", version: "1.0.0", api_version: 1, methods: ["a.b"] });
  else if (method === "ping") say(id, { status: "ok" });
  else if (method === "shutdown") process.exit(0);
  else if (method === "a.b") say(id, { bun: Bun.version, path: process.env.PATH });
}
"""


@whole("PH-AMB-64", "PH-WIRE-02")
def test_a_runtime_elsewhere_is_shown_when_the_operator_names_it(
    told: Daemon, tmp_path: Path
) -> None:
    command = ["/usr/bin/env", "bun", "main.js"]
    files = {"main.js": SCRIPT}
    guest = Guest(told, tmp_path, files=files, name="on-bun", command=command, methods=["a.b"])
    state = guest.run()
    assert state["state"] == "running", state["note"]
    got = guest.call()
    assert got["bun"]
    assert got["path"].startswith("/usr/bin:/usr/local/bin")


@whole("PH-AMB-64", "PH-SUP-03", "PH-SUP-08")
def test_a_runtime_that_is_not_found_is_named(own: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = own()
    daemon.start()
    guest = Guest(daemon, tmp_path, command=["/usr/bin/env", "bun", "main.js"])
    assert guest.run()["state"] == "failed"
    (row,) = guest.rows("plugin.failed")
    assert "bun" in row["reason"]
    assert guest.heard() == []
    # On a daemon of no particular log level a plugin is told the default one.
    usual = Guest(daemon, tmp_path, SHOWS_ENV)
    usual.run()
    assert usual.call()["env"]["KAGED_LOG_LEVEL"] == "info"


def test_a_check_finds_programs_where_the_daemon_does(told: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "far" / "bin"
    folder.mkdir(parents=True)
    program = folder / "greet-by-hand"
    program.write_text("#!/bin/sh\nexec python3 main.py\n", encoding="utf-8")
    program.chmod(0o755)
    guest = Guest(told, tmp_path, {}, name="far-away", command=["greet-by-hand"])
    missing = told.cli("plugin", "check", str(guest.root), "--dry", "--json", code=6).json
    assert [one["code"] for one in missing["problems"] if one["severity"] == "error"] == [
        "command_missing"
    ]
    path = f"{told.env['PATH']}:{folder}"
    found = told.cli("plugin", "check", str(guest.root), "--dry", "--json", env={"PATH": path})
    assert found.json["ok"] is True
