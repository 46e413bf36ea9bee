"""What `ash-sb` costs inside a cage: one whole round trip to the host and back, process included.

The same interpreter, started bare in the same cage in turns, is the floor. Run it alone with
`python benchmarks/bench_ash_sb.py`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from kaged.base import JsonObject, SystemClock
from kaged.cage import CageSettings, Spawner
from kaged.cage.net import NetGate
from kaged.kernel.identity import Actor, VouchedBy
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode
from kaged.serve.sandbox_rpc.ash_program import stock_ash
from kaged.serve.sandbox_rpc.channels import SandboxChannels
from kaged.services.caller import ContextTokens
from kaged.toolbox.shell.launch import ShellCommand, caged_launcher
from kaged.wire.token_keys import TokenKey
from scoreboard import Row, at_most, row, show

ROUNDS = 25
TARGET_MS = 150.0
INSIDE = f"""\
import json, subprocess, time
def timed(*words):
    began = time.perf_counter()
    done = subprocess.run(words, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
    return (time.perf_counter() - began) * 1000
ours, peer = [], []
for _ in range({ROUNDS}):
    ours.append(timed("ash-sb", "capability", "list"))
    peer.append(timed("python3", "-IS", "-c", "pass"))
print("@@" + json.dumps([ours, peer]) + "@@")
"""


class _Methods:
    """The shortest answer there is."""

    methods = frozenset({"capability.list"})

    async def call(self, method: str, params: JsonObject) -> JsonObject:
        return {"capabilities": []}


def run() -> list[Row]:
    """Measure; return one row per promise."""
    return asyncio.run(_run())


async def _run() -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-ash-"))
    folder.chmod(0o755)
    (folder / "work").mkdir(mode=0o755)
    (folder / "work" / "measure.py").write_text(INSIDE, encoding="utf-8")
    gate = NetGate(lambda _: None)
    spawner = Spawner(CageSettings(cache_dir=folder / "cache"), gate=gate)
    tokens = ContextTokens(TokenKey(b"k" * 32), SystemClock())
    channels = SandboxChannels(
        _Methods(), tokens, lambda: stock_ash(folder / "cache"), post=lambda _: None
    )
    try:
        await gate.start(spawner.facts.bwrap)
        ours, peer = await _measure(spawner, channels, folder / "work")
    finally:
        await spawner.close()
        await gate.close()
        shutil.rmtree(folder, ignore_errors=True)
    took, floor = statistics.median(ours), statistics.median(peer)
    return [
        row(
            "ash-sb capability list, in a cage: process, token, host and back",
            took,
            "ms",
            against="a bare python3 -IS in the same cage",
            peer=floor,
            target=at_most(TARGET_MS, took, "ms"),
            samples=ours,
        )
    ]


async def _measure(
    spawner: Spawner, channels: SandboxChannels, folder: Path
) -> tuple[list[float], list[float]]:
    policy = CagePolicy(
        fs=(FsGrant(str(folder), FsMode.RO),),
        capabilities=frozenset({"shell", "services"}),
        limits=CageLimits(cpu_shares=1024),
    )
    command = ShellCommand(
        request_id="req_bench",
        caller="primary",
        text=f"python3 {folder}/measure.py",
        cwd=str(folder),
        env={},
        identity=Actor("bench", VouchedBy.UNIX, chat_type="private"),
    )
    process = await caged_launcher(spawner, channels.attach)(policy, command)
    said = bytearray()
    ended = asyncio.Event()

    class Reader(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            said.extend(data)

        def connection_lost(self, exc: Exception | None) -> None:
            ended.set()

    await process.connect_stdout(Reader)
    await process.wait()
    await ended.wait()
    ours, peer = json.loads(said.decode().split("@@")[1])
    return ours, peer


if __name__ == "__main__":
    show(run())
