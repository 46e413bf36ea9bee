"""`/api/v1/models`: aliases without keys, and whether they answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.openai_server import OpenAIServer, Says, Status, in_turn
from fakes.running_daemon import daemon_in_process, make_home, require_error_shape

KEY = "sk-of-the-operator-0123456789"


def write_local(home: Path, text: str) -> None:
    make_home(home)
    (home / "local.toml").write_text(text, encoding="utf-8")
    (home / "local.toml").chmod(0o600)


async def check(client: httpx.AsyncClient, alias: str) -> dict[str, Any]:
    answer = await client.post("/api/v1/models/check", json={"alias": alias})
    assert answer.status_code == 200
    return dict(answer.json())


@pytest.mark.timeout(120)
async def test_models_are_listed_and_tried_without_showing_a_key(tmp_path: Path) -> None:
    with (
        OpenAIServer(in_turn(Says("ready"))) as good,
        OpenAIServer(in_turn(Status(401, {"error": {"message": f"bad key {KEY}"}}))) as bad,
    ):
        write_local(
            tmp_path / "h",
            f'[models.good]\nmodel = "acme:one"\nbase_url = "{good.url}"\napi_key = "{KEY}"\n'
            f'[models.bad]\nmodel = "acme:two"\nbase_url = "{bad.url}"\napi_key = "{KEY}"\n'
            '[models.unset]\nmodel = "acme:x"\napi_key = "${NOT_SET_ANYWHERE}"\n',
        )
        async with daemon_in_process(tmp_path / "h") as daemon:
            listed = await daemon.client.get("/api/v1/models")
            assert listed.status_code == 200
            assert KEY not in listed.text
            rows = {one["alias"]: one for one in listed.json()["models"]}
            assert set(rows) == {"good", "bad", "unset", "scripted"}
            assert rows["good"]["has_key"] is True
            assert rows["unset"]["usable"] is False
            assert "NOT_SET_ANYWHERE" in str(rows["unset"]["problems"])

            fine = await check(daemon.client, "good")
            assert (fine["ok"], fine["says"]) == (True, "ready")
            refused = await check(daemon.client, "bad")
            assert refused["ok"] is False
            assert refused["error"]["code"] == "model_refused"
            assert KEY not in str(refused)
            unknown = await check(daemon.client, "nobody")
            assert unknown["error"]["code"] == "model_unknown"

            wrong = await daemon.client.post("/api/v1/models/check", json={"alias": ""})
            assert wrong.status_code == 422
            require_error_shape(wrong.json(), "invalid_request")
