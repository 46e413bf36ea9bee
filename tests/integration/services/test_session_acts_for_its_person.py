"""A real session: the model's shell command acts for whoever sent the message, and nobody else."""

from __future__ import annotations

from pathlib import Path

from fakes.service_home import service_home
from kaged.inbox import NO, YES, RequestDraft, RequestKind
from kaged.serve.http.connection import PeerConnection


async def test_people_of_a_front_end_see_and_answer_their_own_requests_only(tmp_path: Path) -> None:
    async with service_home(tmp_path) as home:
        inbox = home.inside.daemon.services.subsystems.inbox
        assert inbox is not None
        facts = {
            "capability_id": "post.box",
            "operation": "send",
            "account_ref": "",
            "input_hash": "",
        }
        asked = await inbox.ask(
            RequestDraft(
                "plan_0",
                RequestKind.ACCOUNT_APPROVAL,
                "Allow send on post.box?",
                choices=(YES, NO),
                subject={**facts},
                owner="ann",
                expires_at_ms=home.inside.daemon.services.clock.now_ms() + 600_000,
            )
        )
        assert asked is not None
        body = {"digest": asked.digest, "answer": {"choice": "yes"}}
        async with home.inside.over(PeerConnection("tcp", address="127.0.0.1")) as front_end:

            async def as_person(name: str) -> tuple[list[str], int]:
                headers = {"Authorization": f"Bearer {home.token}", "X-Kaged-User-Id": name}
                listed = await front_end.get("/api/v1/inbox", headers=headers)
                url = f"/api/v1/inbox/{asked.id}/answer"
                answer = await front_end.post(url, json=body, headers=headers)
                return [one["id"] for one in listed.json()["items"]], answer.status_code

            assert await as_person("bob") == ([], 404)
            assert await as_person("ann") == ([asked.id], 200)
            assert await as_person("ann") == ([asked.id], 409)
        [plan] = (await home.inside.client.get("/api/v1/services/approvals")).json()["approvals"]
        assert (plan["status"], plan["decided_by"]) == ("confirmed", "ann")
