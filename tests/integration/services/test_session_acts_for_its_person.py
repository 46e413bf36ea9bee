"""A real session: the model's shell command acts for whoever sent the message, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from fakes.service_home import service_home
from kaged.serve.http.connection import PeerConnection
from kaged.sessions.driver import SessionDriver

MODEL = '[models.m]\nmodel = "scripted:post.yaml"\n'
PAIR = """\
  - say: I look.
    call:
      - tool: shell.bash
        with: { command: "ash-sb capability invoke -c post.box -o list; echo end" }
  - say: Done.
"""
SCRIPT = f"turns:\n{PAIR * 4}"


async def test_each_message_acts_for_the_person_who_sent_it(tmp_path: Path) -> None:
    """One session, two people of a front end and the operator, one after the other."""
    home_folder = tmp_path / "home"
    home_folder.mkdir(mode=0o700)
    (home_folder / "post.yaml").write_text(SCRIPT, encoding="utf-8")
    local = home_folder / "local.toml"
    local.write_text(MODEL, encoding="utf-8")
    local.chmod(0o600)
    ann = {"user": "ann", "chat_type": "private", "chat_id": "c-ann"}
    async with service_home(tmp_path) as home:
        await home.link(**ann)
        driver = home.inside.daemon.services.sessions
        assert driver is not None
        runs = driver.driver
        assert isinstance(runs, SessionDriver)
        base = f"/api/v1/projects/{home.id}/sessions"
        made = await home.inside.client.post(base, json={})
        assert made.status_code == 201, made.text
        session = made.json()["id"]

        async def say(client: httpx.AsyncClient, **headers: str) -> str:
            url = f"{base}/{session}/message"
            answer = await client.post(url, json={"text": "My letters?"}, headers=headers)
            assert answer.status_code < 300, answer.text
            await runs.wait(answer.json()["run_id"])
            entries: Any = (
                await home.inside.client.get(f"{base}/{session}/entries", params={"limit": 200})
            ).json()
            results = [one for one in entries["items"] if one.get("role") == "tool_result"]
            return str(results[-1]["content"])

        token = {"Authorization": f"Bearer {home.token}"}
        async with home.inside.over(PeerConnection("tcp", address="127.0.0.1")) as front_end:
            anns = await say(
                front_end, **token, **{"X-Kaged-User-Id": "ann", "X-Kaged-Chat-Type": "private"}
            )
            bobs = await say(
                front_end, **token, **{"X-Kaged-User-Id": "bob", "X-Kaged-Chat-Type": "private"}
            )
            group = await say(
                front_end, **token, **{"X-Kaged-User-Id": "ann", "X-Kaged-Chat-Type": "group"}
            )
        own = await say(home.inside.client)
    assert "the boat leaves at nine" in anns
    assert "capability_auth_required" in bobs
    assert "capability_access_denied" in group
    assert "capability_auth_required" in own
    assert all("boat" not in one for one in (bobs, group, own))
