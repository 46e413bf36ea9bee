"""Runs one command with a channel, as whoever started this program; prints the tool's result.

Started by tests in a process of its own, as root and as a plain user.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from fakes.channel_lab import EchoMethods, channel_lab
from kaged.base import SystemClock


async def _main(command: str) -> None:
    with tempfile.TemporaryDirectory(prefix="kaged-channel-") as folder:
        Path(folder).chmod(0o755)
        methods = EchoMethods(SystemClock())
        async with channel_lab(Path(folder), methods) as lab:
            result = await lab.run(command)
    users = [token.effective_user_id for _, token, _ in methods.calls]
    sys.stdout.write(json.dumps({"result": result, "users": users}) + "\n")


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
