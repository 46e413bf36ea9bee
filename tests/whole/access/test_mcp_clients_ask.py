"""An MCP client that offers to ask its person shows what a refused call lacks; others do not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from httpx2 import AsyncClient
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from whole.access.conftest import Asking
from whole.harness.daemon import Daemon
from whole.harness.mcp import PATIENCE_S, address, command

NOTES = {"path": "notes/n.txt"}


class AskedClient:
    """The official SDK with a person who answers with one choice."""

    def __init__(self, asking: Asking, choice: str | None, action: Any = "accept") -> None:
        self.asking, self.choice, self.action = asking, choice, action
        self.shown: list[Any] = []

    async def _elicit(self, context: object, params: Any) -> ElicitResult:
        del context
        self.shown.append(params)
        if self.action != "accept":
            return ElicitResult(action=self.action)
        return ElicitResult(action="accept", content={"answer": self.choice})

    def reads(self, transport: str, mode: str, times: int = 1) -> list[tuple[bool, str]]:
        """Read a file that is not granted; returns whether that failed, and the text of it."""

        async def talk() -> list[tuple[bool, str]]:
            daemon, project = self.asking.daemon, self.asking.project
            headers = {"Authorization": f"Bearer {daemon.token}"}
            async with AsyncClient(headers=headers, trust_env=False, timeout=PATIENCE_S) as http:
                words = command(project, "primary")
                where: Any = StdioServerParameters(
                    command=words[0], args=words[1:], env=dict(daemon.env)
                )
                if transport == "http":
                    where = streamable_http_client(
                        address(daemon, project, "primary"), http_client=http
                    )
                callback = None if self.choice is None else self._elicit
                async with Client(where, mode=mode, elicitation_callback=callback) as client:
                    found: list[tuple[bool, str]] = []
                    for _ in range(times):
                        got: Any = await client.call_tool("file_read", NOTES)
                        found.append((bool(got.is_error), json.dumps(str(got.content))))
                    return found

        Daemon.spoken += 1
        return asyncio.run(talk())


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_client_asks_its_person(asking: Asking, transport: str, mode: str) -> None:
    client = AskedClient(asking, "once")
    (found,) = client.reads(transport, mode)
    assert found[0] is False, found
    assert "the notes" in found[1]
    (shown,) = client.shown
    assert shown.message.startswith("Let primary read ./notes/n.txt?")
    assert shown.requested_schema["properties"]["answer"]["enum"] == [
        "once", "run", "session", "always", "no",
    ]  # fmt: skip
    rows = asking.daemon.audit("access.granted", project_id=asking.project.id)
    assert [one["data"]["scope"] for one in rows] == ["once"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_what_is_granted_for_the_session_is_asked_once(asking: Asking, mode: str) -> None:
    client = AskedClient(asking, "session")
    found = client.reads("stdio", mode, times=2)
    assert [one[0] for one in found] == [False, False]
    assert len(client.shown) == 1


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize(
    ("choice", "action"), [("no", "accept"), ("once", "decline"), ("all of it", "accept")]
)
def test_everything_but_a_choice_is_a_no(
    asking: Asking, mode: str, choice: str, action: str
) -> None:
    client = AskedClient(asking, choice, action)
    found = client.reads("stdio", mode, times=2)
    assert [one[0] for one in found] == [True, True]
    assert "capability_denied" in found[0][1]
    assert len(client.shown) == 1, "what was refused is not asked again"
    assert asking.waiting() == []


def test_a_client_that_offers_nothing_is_refused_as_ever(asking: Asking) -> None:
    (found,) = AskedClient(asking, None).reads("stdio", "auto")
    assert found[0] is True
    assert "capability_denied" in found[1]
    assert asking.daemon.audit("inbox.asked", project_id=asking.project.id) == []
