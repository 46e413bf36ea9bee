"""People's letters, from an agent's cage through ash-sb and the host to a bridge and back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.service_home import ServiceHome, service_home

LIST = "ash-sb capability invoke -c post.box -o list"
ANN = {"user": "ann", "chat_type": "private", "chat_id": "c-ann"}
BOB = {"user": "bob", "chat_type": "private", "chat_id": "c-bob"}


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ServiceHome]:
    async with service_home(tmp_path) as made:
        yield made


async def test_a_token_that_leaked_into_a_transcript_opens_nothing(home: ServiceHome) -> None:
    """Bob's agent has seen Ann's token; in Bob's cage, and in any later one, it is refused."""
    await home.link(**ANN)
    leaked = (await home.run('printf %s "$ASH_CONTEXT_TOKEN"', **ANN))["stdout"]
    for who in (BOB, ANN):
        said = await home.run(f"ASH_CONTEXT_TOKEN={leaked} {LIST}", **dict(who))
        assert said["stdout"].startswith("Error: Invalid context token (claims)")
    rejected = await home.audit("capability_token_rejected")
    assert {one["data"]["reason"] for one in rejected} == {"claims"}
    everything = json.dumps(await home.audit("tool.called")) + json.dumps(rejected)
    assert leaked.rpartition(".")[2] not in everything
