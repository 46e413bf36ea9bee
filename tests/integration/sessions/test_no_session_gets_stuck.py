"""Windows that overflow: whatever is too large, room is made, and the session goes on.

The model counts as its vendor does, which the host only estimates, and refuses what is too large.
"""

from __future__ import annotations

import random
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fakes.loop_lab import LoopLab, loop_lab
from fakes.played_model import PlayedModel, call, say, shown
from fakes.tool_lab import make_tool
from kaged.base import JsonObject
from kaged.models.errors import ModelContextExceeded
from kaged.models.turn import AssistantMessage, ModelRequest, ModelTurn, ToolResultMessage
from kaged.toolbox.files import file_tools
from kaged.tools import ToolInvocation
from kaged.tools.kept_results import KeptResults
from kaged.tools.shown_results import ResultBudget, ShownResults
from thorough import LONGEST_S, SEED, counted

PROJECT = (
    "primary: {model: default, system_prompt: You help., tools: {'*': {enabled: true}, "
    "'kaged.*': {enabled: false}}, cage: disabled, compaction: {strategy: drop}}\n"
)
LINE = "some words of a line that a tool has written\n"
HANDLE = re.compile(r"result:/res_[0-9]{26}")


class Vendor:
    """A model that takes so much and says so; what it does is drawn at random."""

    def __init__(self, draw: random.Random, model: PlayedModel) -> None:
        self.draw = draw
        self.model = model
        self.takes = 10**9
        self.per_token = 4.0
        self.refused = 0
        self.left = 0

    def size(self, request: ModelRequest) -> int:
        """Return how many tokens a request has by the vendor's own count."""
        texts = [shown(one) for one in request.messages]
        texts += [str(one) for one in request.tools]
        for message in request.messages:
            if isinstance(message, AssistantMessage):
                texts += [str(one.arguments) for one in message.tool_calls] + [message.thinking]
        return round(sum(len(one.encode()) for one in texts) / self.per_token)

    async def answer(self, request: ModelRequest) -> ModelTurn:
        """Refuse, call tools, or say something."""
        self.model.turns.append(self.answer)
        size = self.size(request)
        if size > self.takes:
            self.refused += 1
            raise ModelContextExceeded("too large")
        self.left -= 1
        if self.left < 0:
            return say("Done.", tokens=size)
        calls = [
            call("file.peek", {"chars": self.some(200_000), "note": "n" * self.some(60_000)})
            for _ in range(self.draw.choice((1, 1, 2, 8)))
        ]
        return say("t" * self.some(50_000), *calls, tokens=size)

    def some(self, most: int) -> int:
        """Draw a length: mostly short, sometimes very long."""
        return self.draw.choice((10, 200, 2_000, most // 10, most))


async def peek(invocation: ToolInvocation) -> Any:
    """Answer with a text of the length that was asked for, of lines or of one."""
    chars = int(str(invocation.args["chars"]))
    text = (LINE * (chars // len(LINE) + 1))[:chars]
    return {"text": text if chars % 3 else text.replace("\n", " "), "exit_code": 1}


def results_in(folder: Path) -> ShownResults:
    numbers = count(1)
    kept = KeptResults(folder / "results", lambda: f"res_{next(numbers):026}")
    return ShownResults(kept, ResultBudget)


def tools() -> list[Any]:
    properties: JsonObject = {"chars": {"type": "integer"}, "note": {"type": "string"}}
    return [make_tool("file.peek", handler=peek, properties=properties)]


async def lived(lab: LoopLab, draw: random.Random) -> int:
    """Live through one history; returns how often the model refused its window."""
    lab.model.context_tokens = draw.choice((6_000, 16_000, 64_000, 200_000))
    vendor = Vendor(draw, lab.model)
    vendor.takes = round(lab.model.context_tokens * draw.uniform(0.5, 1.0))
    vendor.per_token = draw.uniform(2.0, 5.0)
    lab.model.turns[:] = [vendor.answer]
    session = await lab.session()
    for _ in range(draw.randint(1, 4)):
        vendor.left = draw.randint(0, 4)
        end = await lab.run(session, "u" * vendor.some(400_000))
        assert (end.status, end.error) == ("completed", None)
    # And it goes on, in a daemon that has only what was stored.
    vendor.left = 0
    end = await lab.run(session, "Are you there?")
    assert (end.status, end.text) == ("completed", "Done.")
    assert vendor.size(lab.model.requests[-1]) <= vendor.takes
    lab.model.requests.clear()
    return vendor.refused


@pytest.mark.thorough(random=True)
@pytest.mark.timeout(LONGEST_S * 3)
async def test_no_session_gets_stuck_whatever_was_too_large(tmp_path: Path) -> None:
    refused = 0
    async with loop_lab(
        tmp_path, project=PROJECT, tools=tools(), results=results_in(tmp_path)
    ) as lab:
        for number in range(counted(40, 1_000, 10_000)):
            draw = random.Random(f"{SEED} {number}")
            try:
                refused += await lived(lab, draw)
            except AssertionError as error:
                raise AssertionError(f"history {SEED} {number}") from error
    assert refused > 0


async def test_large_results_of_the_last_turn_are_replaced_by_their_handle(tmp_path: Path) -> None:
    """Nothing old is there to be left out; the turn is asked again with what fits."""
    sent: list[list[str]] = []
    results = results_in(tmp_path)
    async with loop_lab(
        tmp_path, project=PROJECT, tools=[*tools(), *file_tools(results.kept)], results=results
    ) as lab:
        lab.model.context_tokens = 60_000

        async def strict(request: ModelRequest) -> ModelTurn:
            texts = [one.content for one in request.messages if isinstance(one, ToolResultMessage)]
            sent.append(texts)
            if sum(map(len, texts)) > 20_000:
                lab.model.turns.append(strict)
                raise ModelContextExceeded("too large")
            return say("Fits.")

        large = [call("file.peek", {"chars": chars}) for chars in (30_000, 28_000, 400)]
        lab.model.turns[:] = [say("", *large), strict]
        session = await lab.session()
        assert (await lab.run(session, "Look")).text == "Fits."
        first, last = sent[0], sent[-1]
        assert len(sent) > 1
        assert [len(one) for one in last] < [len(one) for one in first]
        assert last[2] == first[2]  # what is short stays as it is
        assert all(HANDLE.search(one) for one in last[:2])
        assert all(one.startswith("exit_code: 1\n") for one in last)
        done = lab.audit.of("compaction.completed")
        assert [one["strategy"] for one in done] == ["shorten"] * len(done)
        assert done
        # The next run, which reads the session from the store, sees the same, and the whole is
        # where the handle says.
        handle = HANDLE.findall(last[0])[0]
        read = call("file.read", {"path": handle, "limit": 5})
        lab.model.turns[:] = [say("", read), say("Read.")]
        assert (await lab.run(session, "Go on")).text == "Read."
        shown_now = [
            one.content
            for one in lab.model.requests[-1].messages
            if isinstance(one, ToolResultMessage)
        ]
        assert shown_now[:3] == last
        assert f"path: {handle}\n" in shown_now[3]


async def test_a_prompt_that_is_too_large_by_itself_is_said_so(tmp_path: Path) -> None:
    """Making the window smaller would not help; it stays as it is."""

    async with loop_lab(tmp_path, project=PROJECT) as lab:

        async def never(_: ModelRequest) -> ModelTurn:
            lab.model.turns.append(never)
            raise ModelContextExceeded("too large")

        lab.model.turns[:] = [never]
        session = await lab.session()
        end = await lab.run(session, "Hello")
        assert end.status == "failed"
        assert end.error is not None
        assert end.error["code"] == "model_context_exceeded"
        assert len(lab.model.requests) == 1
