"""Clients of `kaged acp` that other people wrote: that of the official SDK, and acpx."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from acp import PROTOCOL_VERSION, spawn_agent_process, text_block
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    RequestPermissionResponse,
)

from whole.harness.daemon import KAGED, PATIENCE_S, Daemon
from whole.harness.mcp import BINARIES

Pick = Callable[[list[str]], str | None]


class Editor:
    """An editor: keeps what it is told, and answers questions as the test says."""

    def __init__(self, pick: Pick, fills_in: dict[str, Any] | None) -> None:
        self.pick = pick
        self.fills_in = fills_in
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        self.heard = asyncio.Event()
        self.wait_before_answering: asyncio.Event | None = None
        self.agent: Any = None
        self.process: Any = None

    def on_connect(self, conn: Any) -> None:
        """Take the agent's side."""
        self.agent = conn

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Keep an update."""
        self.told.append((session_id, _plain(update)))
        self.heard.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> RequestPermissionResponse:
        """Answer with what the test picks."""
        shown = {"session": session_id, "call": _plain(tool_call)}
        self.asked.append({**shown, "options": [_plain(one) for one in options]})
        self.heard.set()
        if self.wait_before_answering is not None:
            await self.wait_before_answering.wait()
        picked = self.pick([one.option_id for one in options])
        if picked is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        outcome = AllowedOutcome(outcome="selected", option_id=picked)
        return RequestPermissionResponse(outcome=outcome)

    async def create_elicitation(
        self, message: str, mode: Any, **_: Any
    ) -> AcceptElicitationResponse:
        """Fill in a form as the test says."""
        self.asked.append({"message": message, "form": _plain(mode)})
        return AcceptElicitationResponse(action="accept", content=self.fills_in)

    # -- what a person does --------------------------------------------------------------------

    async def say(self, session_id: str, *texts: str) -> Any:
        """Send a prompt; returns why the turn ended."""
        blocks = [text_block(text) for text in texts]
        answer = await self.agent.prompt(session_id=session_id, prompt=blocks)
        return answer.stop_reason

    def of(self, kind: str, session_id: str | None = None) -> list[dict[str, Any]]:
        """Return what was told of one kind, in one session or all."""
        return [
            one
            for session, one in self.told
            if one["sessionUpdate"] == kind and session_id in (None, session)
        ]

    def words(self, session_id: str) -> str:
        """Return what the agent said in a session."""
        chunks = self.of("agent_message_chunk", session_id)
        return "".join(one["content"]["text"] for one in chunks)

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until there is something to be found in what was told."""
        async with asyncio.timeout(PATIENCE_S):
            while not (seen := found()):
                self.heard.clear()
                await self.heard.wait()
            return seen


@asynccontextmanager
async def editor(
    daemon: Daemon,
    folder: Path,
    *options: str,
    pick: Pick = lambda options: options[0],
    fills_in: dict[str, Any] | None = None,
) -> AsyncGenerator[Editor]:
    """Start `kaged acp` as an editor does, and agree on a version."""
    Daemon.spoken += 1
    one = Editor(pick, fills_in)
    forms = ElicitationCapabilities(form=ElicitationFormCapabilities())
    offered = ClientCapabilities(elicitation=None if fills_in is None else forms)
    async with spawn_agent_process(
        cast("Any", one),  # without the files and terminals that it does not offer
        KAGED,
        "acp",
        *options,
        env=dict(daemon.env),
        cwd=folder,
        use_unstable_protocol=True,
    ) as (_, process):
        one.process = process
        await one.agent.initialize(PROTOCOL_VERSION, offered)
        yield one


def acpx(daemon: Daemon, folder: Path, *words: str, codes: Sequence[int] = (0,)) -> str:
    """Ask with a command-line client that other people wrote; returns what it printed."""
    Daemon.spoken += 1
    done = subprocess.run(
        [str(BINARIES / "acpx"), "--agent", f"{KAGED} acp", "--cwd", str(folder), *words],
        env={**daemon.env, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in codes, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found
