"""What people's accounts remember when the daemon is started anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fakes.service_home import service_home

BRIDGE = Path(__file__).parents[2] / "guests" / "bridge_ledger.py"
ANN = {"user": "ann", "chat_type": "private", "chat_id": "c-ann"}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.txt"


def _provider(ledger: Path, more: str = "", slow_s: float = 0) -> str:
    return (
        "[capabilities.providers.ledger]\n"
        f"command = {json.dumps([sys.executable, '-I', str(BRIDGE)])}\n"
        f'env = {{ LEDGER = {json.dumps(str(ledger))}, SLOW_S = "{slow_s}" }}\n{more}'
    )


def _note(word: str, key: str) -> str:
    given = json.dumps({"word": word})
    return (
        f"ash-sb capability invoke -c ledger.book -o note --idempotency-key {key}"
        f" --input-json '{given}' --json"
    )


async def test_keys_consents_and_quotas_of_before_a_restart_count_after_it(
    tmp_path: Path, ledger: Path
) -> None:
    """The signing key of this daemon dies with it; what it remembers of calls does not."""
    config = _provider(ledger, 'confirm = ["book.note"]\nquota_per_day = 5\n')
    read = "ash-sb capability invoke -c ledger.book -o read --json"
    async with service_home(tmp_path, more=config) as home:
        assert (await home.run(_note("boat", "once-1"), **ANN))["exit_code"] != 0
        listed = (await home.inside.client.get("/api/v1/services/approvals")).json()
        (plan,) = listed["approvals"]
        url = f"/api/v1/services/approvals/{plan['plan_id']}"
        given = await home.inside.client.post(url, json={"decision": "confirm"})
        assert given.status_code == 200, given.text
    async with service_home(tmp_path, more=config) as home:
        other = await home.run(_note("rope", "once-2"), **ANN)
        assert other["exit_code"] != 0  # consent was for the boat
        done = await home.run(_note("boat", "once-1"), **ANN)
        assert done["exit_code"] == 0, done
        for _ in range(2):
            assert (await home.run(read, **ANN))["exit_code"] == 0
    async with service_home(tmp_path, more=config) as home:
        assert "capability_rate_limited" in (await home.run(read, **ANN))["stdout"]
        bob = {"user": "bob", "chat_type": "private", "chat_id": "c-bob"}
        assert (await home.run(read, **bob))["exit_code"] == 0  # his quota is his own
    assert ledger.read_text(encoding="utf-8") == "boat\n"


async def test_a_call_that_comes_while_its_provider_is_still_asked_waits_for_it(
    tmp_path: Path, ledger: Path
) -> None:
    """The daemon has only just started; "there is no such capability" would be untrue."""
    async with service_home(tmp_path, more=_provider(ledger, slow_s=2)) as home:
        done = await home.run(_note("boat", "once-4"), **ANN)
        assert done["exit_code"] == 0, done
        unknown = await home.run("ash-sb capability invoke -c nobody.knows -o it", **ANN)
        assert "capability_not_found" in unknown["stdout"]
