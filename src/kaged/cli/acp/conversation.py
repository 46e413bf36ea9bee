"""`Conversation`: one session that an editor has open."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from acp import RequestError, update_agent_message_text
from acp.interfaces import Client
from acp.schema import PromptResponse, StopReason, Usage

from kaged.base import Tasks
from kaged.cli.acp.asking import Asker, answer_in_words, question_text
from kaged.cli.acp.feed import GAP, EventFeed, FeedEvent, Listener
from kaged.cli.acp.link import DaemonLink, refusal
from kaged.cli.acp.updates import RunUpdates

LOOK_S: Final = 10.0
"""How long no event may come before the run itself is looked up."""

START_S: Final = 60.0
_STOPS: Final[dict[str, StopReason]] = {
    "step_limit_reached": "max_turn_requests",
    "model_answer_cut": "max_tokens",
    "model_answer_filtered": "refusal",
}
"""Ends of runs for which the protocol has a word; all others are errors."""


class Conversation:
    """Says things in one session, and tells the editor what becomes of it."""

    def __init__(
        self,
        link: DaemonLink,
        feed: EventFeed,
        editor: Client,
        asker: Asker,
        *,
        project: dict[str, Any],
        session_id: str,
        agent: str,
    ) -> None:
        self.project = project
        self.session_id = session_id
        self.agent = agent
        self.model: str | None = None
        self.root = Path(project["root"])
        self.base = f"/projects/{project['id']}"
        self._link = link
        self._feed = feed
        self._editor = editor
        self._asker = asker
        self._busy = False
        self._canceled = False

    async def tell(self, update: Any) -> None:
        """Send the editor one update of this session."""
        await self._editor.session_update(session_id=self.session_id, update=update)

    async def say(self, text: str) -> PromptResponse:
        """Send a message, or answer what the agent waits for, and follow the run to its end.

        Raises:
            RequestError: the daemon refused, the run failed, or one is being followed already.
        """
        with self._only_one(), self._feed.listening(self.session_id) as events:
            waiting = await self._waiting()
            if waiting is not None:
                body = answer_in_words(waiting, text)
                if body is None:
                    await self.tell(update_agent_message_text(question_text(waiting)))
                    return PromptResponse(stop_reason="end_turn")
                run_id = await self._answer(waiting, body, events)
            else:
                run_id = await self._send(text)
            return await self._follow(run_id, events)

    async def cancel(self) -> None:
        """End the run that is followed."""
        if not self._busy:
            return
        self._canceled = True
        await self._link.post(f"{self.base}/sessions/{self.session_id}/cancel")

    # -- own -------------------------------------------------------------------------------------

    @contextmanager
    def _only_one(self) -> Generator[None]:
        if self._busy:
            raise refusal(
                "session_busy",
                "The agent is still at work in this session.",
                "Wait for it, or cancel it first.",
            )
        self._busy, self._canceled = True, False
        try:
            yield
        finally:
            self._busy = False

    async def _send(self, text: str) -> str:
        body: dict[str, Any] = {"text": text, "agent": self.agent}
        if self.model is not None:
            body["model"] = self.model
        started = await self._link.post(f"{self.base}/sessions/{self.session_id}/message", body)
        return str(started["run_id"])

    async def _follow(self, run_id: str, events: Listener) -> PromptResponse:
        updates = RunUpdates(self.root, self.agent)
        asking = Tasks("acp questions")
        try:
            while True:
                ended = await self._until_ended(run_id, events, updates, asking)
                if ended["status"] != "paused":
                    return self._response(ended)
                waiting, body = await self._asked()
                if waiting is None or body is None:
                    stop = "cancelled" if self._canceled else "end_turn"
                    return PromptResponse(stop_reason=stop)
                run_id = await self._answer(waiting, body, events)
        finally:
            await asking.close()

    async def _asked(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Ask the person what the agent waits for; return that and the answer, if there is one."""
        waiting, body = await self._waiting(), None
        if waiting is not None and not self._canceled:
            body = await self._asker.interaction(self.session_id, waiting)
            if body is None and not self._canceled:
                await self.tell(update_agent_message_text(question_text(waiting)))
        return waiting, body

    async def _until_ended(
        self, run_id: str, events: Listener, updates: RunUpdates, asking: Tasks
    ) -> dict[str, Any]:
        while True:
            try:
                event = await asyncio.wait_for(events.get(), LOOK_S)
            except TimeoutError:
                event = FeedEvent(GAP, {})
            if event.name == GAP:
                found = await self._run(run_id)
                if found is not None and found["ended_at"] is not None:
                    return found
                continue
            if event.name == "attention.required":
                asking.start(self._ask_for(str(event.data["id"])), "question")
                continue
            if event.data.get("run_id") not in {run_id, None}:
                continue
            for update in updates.of(event):
                await self.tell(update)
            if event.name == "run.ended":
                return event.data

    async def _ask_for(self, request_id: str) -> None:
        """Ask for one of the choices of what waits in the inbox, while the run goes on."""
        try:
            asked = await self._link.get(f"/inbox/{request_id}")
            if asked["state"] != "pending" or not asked["choices"]:
                return  # questions of agents are asked when the run has paused for them
            choice = await self._asker.request(self.session_id, asked)
            if choice is not None:
                body = {"digest": asked["digest"], "answer": {"choice": choice}}
                await self._link.post(f"/inbox/{request_id}/answer", body)
        except RequestError:
            return  # answered elsewhere or expired meanwhile; the run says what became of it

    async def _answer(self, waiting: dict[str, Any], body: dict[str, Any], events: Listener) -> str:
        """Answer a question of the agent; return the run that goes on with the answer."""
        before = waiting["run_id"]
        await self._link.post(f"{self.base}/interactions/{waiting['request_id']}/answer", body)
        try:
            async with asyncio.timeout(START_S):
                while True:
                    event = await asyncio.wait_for(events.get(), LOOK_S)
                    if event.name == "run.started" and event.data.get("run_id") != before:
                        return str(event.data["run_id"])
                    if event.name == GAP and (latest := await self._latest()) != before:
                        return latest
        except TimeoutError:
            if (latest := await self._latest()) != before:
                return latest
            raise refusal(
                "run_not_started",
                "The answer was recorded, but the agent did not continue.",
                f"Run `kaged session resume {self.session_id}`.",
            ) from None

    async def _latest(self) -> str:
        return str((await self._runs(1))[0]["id"])

    async def _run(self, run_id: str) -> dict[str, Any] | None:
        return next((one for one in await self._runs(20) if one["id"] == run_id), None)

    async def _runs(self, limit: int) -> list[dict[str, Any]]:
        path = f"{self.base}/sessions/{self.session_id}/runs"
        found: list[dict[str, Any]] = (await self._link.get(path, {"limit": limit}))["items"]
        return found

    async def _waiting(self) -> dict[str, Any] | None:
        found = await self._link.get(f"{self.base}/interactions", {"status": "pending"})
        return next((one for one in found["items"] if one["session_id"] == self.session_id), None)

    def _response(self, ended: dict[str, Any]) -> PromptResponse:
        error = ended.get("error") or {}
        code = str(error.get("code") or "")
        usage = _usage(ended.get("usage") or {})
        match str(ended["status"]):
            case "completed":
                return PromptResponse(stop_reason="end_turn", usage=usage)
            case "cancelled":
                return PromptResponse(stop_reason="cancelled", usage=usage)
            case _ if self._canceled:
                return PromptResponse(stop_reason="cancelled", usage=usage)
            case _ if code in _STOPS:
                return PromptResponse(stop_reason=_STOPS[code], usage=usage)
            case "interrupted":
                raise refusal(
                    "run_interrupted",
                    "The daemon ended during the run.",
                    f"Run `kaged session resume {self.session_id}`, or send another message.",
                )
            case _:
                fix = error.get("fix")
                message = str(error.get("message") or "The run failed.")
                raise refusal(code or "run_failed", message, str(fix) if fix else None)


def _usage(usage: dict[str, Any]) -> Usage | None:
    read, written = usage.get("input_tokens"), usage.get("output_tokens")
    if not isinstance(read, int) or not isinstance(written, int):
        return None
    return Usage(total_tokens=read + written, input_tokens=read, output_tokens=written)
