"""Where values come from, what the operator's commands show of them, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import httpx

from whole.harness.daemon import PATIENCE_S
from whole.harness.keys import CONFIG, VALUE, Keys, out

BOUND = 'hosts = ["a.example"]\nas = { env = ["TOKEN"] }\nfor = { projects = ["shop"] }\n'


def state(keys: Keys, name: str) -> str:
    """Return what `kaged credential show` says about a value."""
    return str(keys.daemon.cli("credential", "show", name, "--json").json["state"])


def test_the_list_shows_where_each_may_go_and_never_a_value(keys: Keys) -> None:
    keys.configure(CONFIG + f"[credentials.empty]\n{BOUND}[credentials.wide]\nhosts = ['*.com']\n")
    listed = keys.daemon.cli("credential", "list")
    rows = [line.split("\t") for line in listed.out.splitlines()]
    assert [row[:3] for row in rows] == [
        ["empty", "missing", "vault"],
        ["github", "set", "local.toml"],
        ["wide", "invalid", ""],
    ]
    shown = keys.daemon.cli("credential", "show", "github").out
    assert "may use the credential github at github.example:443, api.github.example:8443" in shown
    assert "may use github for these requests only: GET /repos/**" in shown
    wide = keys.daemon.cli("credential", "show", "wide").out
    assert "stands for more than one host" in wide
    everything = listed.out + listed.err + shown + str(keys.daemon.get("/credentials"))
    assert VALUE not in everything


def test_a_credential_is_added_set_and_removed_by_command(keys: Keys) -> None:
    shop = keys.project("shop", "npm")
    said = keys.daemon.cli(
        *("credential", "add", "npm", "--host", "registry.example", "--env", "NPM_TOKEN"),
        *("--rule", "read /**", "--project", "shop"),
        stdin="npm_first-value\n",
    )
    assert "npm: set" in said.out
    assert out(shop, "echo $NPM_TOKEN").startswith("kgd_")
    keys.daemon.cli("credential", "set", "npm", stdin="npm_second-value\n")
    keys.daemon.restart()
    assert state(keys, "npm") == "set"
    keys.daemon.cli("credential", "remove", "npm")
    assert keys.daemon.cli("credential", "show", "npm", code=3).err.startswith("error: ")
    assert "npm" not in (keys.daemon.home / "config.toml").read_text("utf-8").split("credentials")
    names = [one["event"] for one in keys.daemon.audit("credential.set", "credential.removed")]
    assert names == ["credential.set", "credential.set", "credential.removed"]
    told = said.out + said.err + str(keys.daemon.audit()) + keys.daemon.log()
    assert "npm_first-value" not in told
    assert "npm_second-value" not in told
    # A name that is used again begins without the value of the one before.
    keys.configure(CONFIG + f"[credentials.npm]\n{BOUND}")
    assert state(keys, "npm") == "missing"


def test_what_is_sealed_is_not_in_the_database_as_text(keys: Keys) -> None:
    keys.configure(CONFIG + f"[credentials.kept]\n{BOUND}")
    keys.daemon.cli("credential", "set", "kept", stdin="sealed-value-of-kept\n")
    keys.daemon.stop()
    files = [one for one in keys.daemon.home.rglob("*") if one.is_file() and not one.is_symlink()]
    assert any(one.name.endswith(".db") for one in files)
    for file in files:
        assert b"sealed-value-of-kept" not in file.read_bytes(), file


def test_a_program_of_the_operator_gives_the_value_outside_every_cage(
    keys: Keys, tmp_path: Path
) -> None:
    count = tmp_path / "asked"
    program = tmp_path / "pass.sh"
    program.write_text(f'#!/bin/sh\necho once >> {count}\necho "printed-value"\n', "utf-8")
    program.chmod(0o700)
    section = f'[credentials.printed]\n{BOUND}command = ["{program}"]\n'
    keys.configure(CONFIG + section)
    assert keys.daemon.cli("credential", "list").out.count("not asked") == 1
    assert not count.exists()  # a list starts no program
    assert [state(keys, "printed"), state(keys, "printed")] == ["set", "set"]
    assert count.read_text("utf-8") == "once\n"  # what it printed is used again
    keys.configure(CONFIG + section + "cache_seconds = 0\n")
    keys.daemon.restart()
    assert [state(keys, "printed"), state(keys, "printed")] == ["set", "set"]
    assert count.read_text("utf-8") == "once\n" * 3
    refused = keys.daemon.cli("credential", "set", "printed", stdin="x\n", code=None)
    assert refused.code != 0
    assert "credential_source_fixed" in refused.err


def test_a_program_that_fails_is_told_without_what_it_said(keys: Keys, tmp_path: Path) -> None:
    program = tmp_path / "fail.sh"
    program.write_text("#!/bin/sh\necho half-a-secret; echo half-a-secret >&2; exit 3\n", "utf-8")
    program.chmod(0o700)
    section = f'[credentials.printed]\n{BOUND}command = ["{program}"]\n'
    keys.configure(CONFIG + section)
    shown = keys.daemon.cli("credential", "show", "printed").out
    assert "printed: failed" in shown
    assert "ended with 3" in shown
    assert "credential_program_failed" in keys.daemon.log()
    hangs = "command_seconds = 0.2\n"
    program.write_text("#!/bin/sh\nexec sleep 60\n", "utf-8")
    keys.configure(CONFIG + section + hangs)
    assert "did not end within 0.2 seconds" in keys.daemon.cli("credential", "show", "printed").out
    assert "half-a-secret" not in shown + keys.daemon.log() + str(keys.daemon.audit())


def test_a_lost_key_of_the_vault_locks_the_value_and_says_so(keys: Keys) -> None:
    config = CONFIG + f"[credentials.kept]\n{BOUND}"
    keys.configure(config)
    keys.daemon.cli("credential", "set", "kept", stdin="sealed-value\n")
    keys.daemon.stop()
    next(keys.daemon.home.rglob("vault.key")).unlink()
    keys.daemon.start()
    assert state(keys, "kept") == "locked"
    assert "credential_vault_locked" in keys.daemon.log()
    doctor = keys.daemon.cli("doctor", "--json", code=None).json
    (row,) = [one for one in doctor["rows"] if one["id"] == "credentials"]
    assert row["status"] == "fail"
    keys.daemon.cli("credential", "set", "kept", stdin="another\n")
    assert state(keys, "kept") == "set"


def test_too_wide_a_binding_is_refused_before_it_is_written(keys: Keys) -> None:
    before = (keys.daemon.home / "config.toml").read_bytes()
    for host in ("*", "*.github.com", "com"):
        said = keys.daemon.cli(
            "credential", "add", "wide", "--host", host, stdin="x-value\n", code=None
        )
        assert said.code == 6, said
        assert "bound to whole host names" in said.err or "top-level domains" in said.err
    assert (keys.daemon.home / "config.toml").read_bytes() == before


def test_people_and_service_accounts_learn_nothing_of_credentials(keys: Keys) -> None:
    made = keys.daemon.post("/service-accounts", {"name": "robot", "expires_in_s": 600})
    headers = {"Authorization": f"Bearer {made['token']}"}
    for method, path in (
        ("GET", "/credentials"),
        ("GET", "/credentials/github"),
        ("PUT", "/credentials/github/value"),
        ("DELETE", "/credentials/github/value"),
        ("POST", "/credentials/github/test"),
    ):
        url = f"{keys.daemon.url}/api/v1{path}"
        got = httpx.request(
            method, url, json={"value": "x"}, headers=headers, timeout=PATIENCE_S, trust_env=False
        )
        assert got.json()["error"]["code"] == "operator_only", (method, path, got.text)


def test_explain_says_what_a_cage_has_and_why_another_has_not(keys: Keys) -> None:
    shop = keys.project("shop", "github", "gitlab")
    said = keys.daemon.cli("cage", "explain", "primary", "--project", str(shop.root)).out
    assert "may use the credential github at github.example:443" in said
    assert "sees a placeholder for github in GITHUB_TOKEN, GH_TOKEN, the file of netrc" in said
    assert "asks for the credential gitlab and does not have it" in said
    reader = ("cage", "explain", "primary.subagents.reader", "--project", str(shop.root))
    assert "is not granted to the agent primary.subagents.reader" in keys.daemon.cli(*reader).out
