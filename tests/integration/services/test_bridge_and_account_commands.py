"""`kaged bridge`, `kaged account` and `kaged capability`, as people type them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import kaged, make_home
from fakes.service_home import EXAMPLE, LETTERS, service_home
from fakes.stocked_cache import stocked
from kaged.base.checks import CheckStatus
from kaged.cage import CageSettings, Spawner
from kaged.services.bridge_check import check_bridge

GUESTS = Path(__file__).parents[2] / "guests"
PLAIN = """\
import json, sys
request = json.load(sys.stdin)
method, params = request["method"], request["params"]
operation = {"name": "list", "description": "y"}
definition = {"id": "bad.box", "description": "x", "operations": [operation]}
result = {"definitions": [definition]} if method == "definitions" else {"output": {"all": "yours"}}
if method == "auth_begin":
    result = {"auth_url": "http://example.org/plain"}
print(json.dumps({"version": 1, "id": request["id"], "result": result}))
"""
CASES = {
    "noisy": "print('starting up'); print('{}')",
    "exits": "raise SystemExit(3)",
    "foreign": "import json,sys; r = json.load(sys.stdin); print(json.dumps({'version': 1, 'id': "
    "r['id'], 'result': {'definitions': [{'id': 'other.box', 'description': 'x', 'operations': "
    "[{'name': 'a', 'description': 'b'}]}]}}))",
}


async def verdicts(
    tmp_path: Path, command: list[str], namespace: str, **env: str
) -> dict[str, str]:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755, exist_ok=True)
    spawner = Spawner(CageSettings(cache_dir=stocked(cache)))
    try:
        report = await check_bridge(
            command, namespace, spawner=spawner, environ={}, env=env, timeout_s=60
        )
    finally:
        await spawner.close()
    assert report.ok == all(row.verdict is not CheckStatus.FAIL for row in report.rows)
    return {row.id: row.verdict.value for row in report.rows}


async def test_a_good_bridge_passes(tmp_path: Path) -> None:
    letters = tmp_path / "letters.json"
    letters.write_text(json.dumps(LETTERS), encoding="utf-8")
    found = await verdicts(tmp_path, [sys.executable, str(EXAMPLE)], "post", LETTERS=str(letters))
    assert "fail" not in found.values()
    assert found["tokens"] == found["isolation.post.box"] == found["unknown_method"] == "ok"


@pytest.mark.parametrize("generation", ["bridge_g1.py", "bridge_g2.py"])
async def test_bridges_of_both_generations_pass(tmp_path: Path, generation: str) -> None:
    found = await verdicts(tmp_path, [sys.executable, str(GUESTS / generation)], "gog")
    assert "fail" not in found.values()
    assert found["tokens"] == "ok"


async def test_a_bridge_that_believes_anybody_fails(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text(PLAIN, encoding="utf-8")
    found = await verdicts(tmp_path, [sys.executable, str(file)], "bad")
    assert found["tokens"] == "fail"
    assert found["auth_begin.bad.box"] == "fail"
    assert found["isolation.bad.box"] == found["unknown_operation"] == "warn"


@pytest.mark.parametrize("case", CASES)
async def test_what_no_host_could_use_fails(tmp_path: Path, case: str) -> None:
    found = await verdicts(tmp_path, [sys.executable, "-c", CASES[case]], "post")
    assert "fail" in found.values()


def test_the_command_reports_and_exits(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    letters = tmp_path / "letters.json"
    letters.write_text("{}", encoding="utf-8")
    good = kaged(
        home,
        *("bridge", "check", "--json", "-n", "post", "--env", f"LETTERS={letters}"),
        *("--", sys.executable, str(EXAMPLE)),
    )
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["capabilities"] == ["post.box"]
    bad = kaged(home, "bridge", "check", "-n", "post", "--", "/nowhere/at/all")
    assert bad.returncode == 6
    wrong = kaged(home, "bridge", "check", "-n", "post", "--env", "nonsense", "--", "true")
    assert wrong.returncode == 2


async def test_the_operator_sees_and_takes_back_accounts(tmp_path: Path) -> None:
    async with service_home(tmp_path, serve=True) as home:
        await home.link(user="ann", chat_type="private", chat_id="c-ann")

        async def run(*words: str) -> Any:
            done = await asyncio.to_thread(kaged, tmp_path / "home", *words, "--json")
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        (account,) = await run("account", "list", "--user", "ann")
        assert (account["user_id"], account["account_ref"]) == ("ann", "acct_post")
        assert await run("account", "approvals") == []
        done = await run("account", "revoke", "ann", "post.box", "acct_post")
        assert done["ok"] is True
        gone = await home.run(
            "ash-sb capability invoke -c post.box -o list", user="ann", chat_type="private"
        )
        assert gone["stdout"].startswith("Error: capability_auth_required")
