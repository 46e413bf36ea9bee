"""`ModelServer`: a model server that other people wrote, with answers that a test plays.

aimock answers as OpenAI and Anthropic do, streams, and keeps a journal of what it was asked. Each
test plays a conversation of its own: it is found by a word in what the person says.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

AIMOCK = (
    Path(__file__).parents[3] / "build/tools/node_modules/@copilotkit/aimock/dist/aimock-cli.js"
)
PATIENCE_S = 30.0
PROTOCOLS = ("openai", "anthropic")
_VENDORS = {
    "openai": ("gpt-4o", "/v1"),
    "openai-responses": ("gpt-5", "/v1"),
    "anthropic": ("claude-sonnet-4-5", ""),
    "google": ("gemini-2.5-flash", ""),
    "bedrock": ("anthropic.claude-3-5-sonnet-20240620-v1:0", ""),
}
VENDORS = tuple(_VENDORS)
"""Every vendor whose protocol the server speaks, as `[models]` names them."""

TRANSMISSION = ("chunkSize", "latency", "truncateAfterChunks", "chaos")
"""What a turn may say about how it is sent."""


def say(text: str) -> dict[str, Any]:
    """Return a turn that answers with words."""
    return {"content": text}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return a turn that calls one tool, named as in kaged (`file.read`)."""
    return calls((tool, arguments))


def calls(*wanted: tuple[str, Mapping[str, Any]], text: str = "") -> dict[str, Any]:
    """Return a turn that calls several tools at once."""
    made = [
        {"name": tool.replace(".", "_"), "arguments": json.dumps(arguments)}
        for tool, arguments in wanted
    ]
    return {"toolCalls": made, **({"content": text} if text else {})}


def refuse(status: int, message: str, **error: str) -> dict[str, Any]:
    """Return a turn in which the vendor answers with an error."""
    return {"error": {"message": message, **error}, "status": status}


def cut_off(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn whose connection is closed after its first pieces have arrived."""
    return {**turn, "truncateAfterChunks": 4, "chunkSize": 4, "latency": 20}


def slowly(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn that comes in small pieces, one after another."""
    return {**turn, "chunkSize": 4, "latency": 5}


class ModelServer:
    """One aimock process on loopback."""

    def __init__(self, folder: Path) -> None:
        config = folder / "aimock.json"
        config.write_text('{"llm": {}}', encoding="utf-8")
        self._log = folder / "aimock.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["node", str(AIMOCK), "--config", str(config), "--port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.url = self._listening()
        self._client = httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    def _listening(self) -> str:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and self._process.poll() is None:
            if found := re.search(r"http://[\d.]+:\d+", self._log.read_text(encoding="utf-8")):
                return found[0]
            time.sleep(0.02)
        self._process.kill()
        raise AssertionError(f"aimock did not start: {self._log.read_text(encoding='utf-8')}")

    def local_toml(self, alias: str = "default", protocol: str = "openai", **more: Any) -> str:
        """Return the section of `local.toml` that names this server, spoken to as a vendor's."""
        name, path = _VENDORS[protocol]
        model, url = f"{protocol}:{more.pop('name', name)}", f"{self.url}{path}"
        lines = {"model": model, "base_url": url, "api_key": "sk-test"}
        pairs = "".join(
            f"{key} = {json.dumps(value)}\n" for key, value in {**lines, **more}.items()
        )
        return f"[models.{alias}]\n{pairs}"

    def play(self, word: str, *turns: Mapping[str, Any]) -> None:
        """Answer whoever last said `word` with these turns, in turn. Each word is used once."""
        matches = ({"userMessage": word, "sequenceIndex": index} for index in range(len(turns)))
        self._add([_fixture(match, turn) for match, turn in zip(matches, turns, strict=True)])

    def always(self, name: str, turn: Mapping[str, Any]) -> None:
        """Let the model of this name answer everything with one turn."""
        self._add([_fixture({"model": name}, turn)])

    def _add(self, fixtures: Sequence[Mapping[str, Any]]) -> None:
        got = self._client.post("/__aimock/fixtures", json={"fixtures": fixtures})
        assert got.is_success, got.text

    def asked(self, word: str = "") -> Sequence[dict[str, Any]]:
        """Return the bodies of the requests that say `word`, oldest first."""
        entries = self._client.get("/__aimock/journal").json()
        bodies = [one["body"] for one in entries if one.get("body")]
        return [one for one in bodies if word in json.dumps(one)]

    def forget(self) -> None:
        """Forget what was played and what was asked.

        Whoever looks at what was asked reads all of it: after a few modules that are thirty
        megabytes, each time.
        """
        got = self._client.post("/__aimock/reset")
        assert got.is_success, got.text

    def close(self) -> None:
        """End it."""
        self._client.close()
        self._process.terminate()
        self._process.wait(PATIENCE_S)


def _fixture(match: Mapping[str, Any], turn: Mapping[str, Any]) -> dict[str, Any]:
    how = {name: turn[name] for name in TRANSMISSION if name in turn}
    said = {name: value for name, value in turn.items() if name not in TRANSMISSION}
    return {"match": dict(match), "response": said, **how}
