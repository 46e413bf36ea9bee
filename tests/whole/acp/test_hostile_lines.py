"""Lines by the hundred to `kaged acp`: each request has one answer, and the daemon goes on."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from thorough import LONGEST_S, SEED, counted
from whole.harness.daemon import KAGED, Daemon
from whole.harness.project import Project

LINES = counted(400, 10_000, 100_000)
PER_EDITOR, NOISE = 400, 0.15
PATIENCE_S = 120.0
LIMIT_BYTES = 64 * 1024 * 1024
METHODS = (
    *("initialize", "authenticate", "session/new", "session/load", "session/list"),
    *("session/prompt", "session/set_mode", "session/set_config_option", "session/fork"),
    *("session/resume", "session/close", "session/none", "_own/method", "", "fs/read_text_file"),
)
NOTICES = ("session/cancel", "session/update", "_own/notice", "x/y")


def odd(dice: random.Random, root: str, number: int) -> Any:
    """Return parameters: some that fit one of the methods, most that fit none."""
    session = dice.choice(["ses_none", "", 5, "x" * 5000, "../..", None])
    text = {"type": "text", "text": dice.choice(["", "hello", "/undo", "\u0000", "é" * 50])}
    blocks = [text, {"type": "image", "data": "!", "mimeType": "image/png"}, 5]
    return dice.choice(
        [
            *(None, True, 7, "x", [], {}, [1], {"a": 1}),
            {"protocolVersion": dice.choice([1, 0, -1, 2**40, "1"])},
            {"cwd": dice.choice([root, "/", "", "rel", 5, "\u0000", "/no/such"]), "mcpServers": []},
            {"sessionId": session, "prompt": dice.sample(blocks, 2)},
            {"sessionId": session, "cwd": root, "mcpServers": [{"name": number}]},
            {"sessionId": session, "modeId": "primary", "configId": "model", "value": "x"},
            {"methodId": "none"},
            {"cursor": "x" * 100, "cwd": root},
        ]
    )


def drawn_line(dice: random.Random, root: str, number: int) -> tuple[bytes, bool]:
    """Return a line, and whether it is a request that must be answered."""
    if dice.random() < NOISE:
        junk = dice.randbytes(dice.randrange(1, 60)).replace(b"\n", b" ")
        return dice.choice([junk, b"[]", b"null", b"5", b"[" * 500, b'{"id": []}', b"{"]), False
    message: dict[str, Any] = {"jsonrpc": "2.0", "params": odd(dice, root, number)}
    match dice.randrange(8):
        case 0:
            message |= {"id": dice.choice([0, 1, "x", 10**9]), "result": message.pop("params")}
            return json.dumps(message).encode(), False
        case 1:
            message |= {"method": dice.choice(NOTICES)}
            return json.dumps(message).encode(), False
        case _:
            message |= {"id": f"n{number}", "method": dice.choice(METHODS)}
            return json.dumps(message).encode(), True


async def one_editor(daemon: Daemon, project: Project, dice: random.Random) -> Counter[str]:
    """Speak as one editor; returns how often each request was answered."""
    process = await asyncio.create_subprocess_exec(  # noqa: TID251 - the program under test
        KAGED,
        "acp",
        cwd=project.root,
        env=dict(daemon.env),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LIMIT_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines = [drawn_line(dice, str(project.root), number) for number in range(PER_EDITOR)]
    wanted = {f"n{number}" for number, (_, asks) in enumerate(lines) if asks}
    answers: Counter[str] = Counter()
    process.stdin.write(b"".join(line + b"\n" for line, _ in lines))
    async with asyncio.timeout(PATIENCE_S):
        while set(answers) != wanted:
            message = json.loads(await process.stdout.readline())
            if "method" not in message:
                answers[str(message["id"])] += 1
        process.stdin.close()
        rest = await process.stdout.read()
        assert await process.wait() == 0
    for line in rest.splitlines():
        message = json.loads(line)
        if "method" not in message:
            answers[str(message["id"])] += 1
    return answers


@pytest.mark.thorough(random=True)
@pytest.mark.timeout(LONGEST_S)
def test_every_request_has_one_answer_whatever_else_is_said(
    daemon: Daemon, project: Project
) -> None:
    before = daemon.get("/status")["pid"]
    for number in range(max(1, LINES // PER_EDITOR)):
        Daemon.spoken += 1
        dice = random.Random(SEED + number)
        answers = asyncio.run(one_editor(daemon, project, dice))
        assert set(answers.values()) == {1}, answers.most_common(3)
    assert daemon.get("/status")["pid"] == before
