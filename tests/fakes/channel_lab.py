"""Commands of caged agents with a channel to people's accounts: real cages, real ash-sb."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.stocked_cache import stocked
from fakes.tool_lab import RecordedAudit, ToolLab, cage
from kaged.base import Clock, JsonObject, SystemClock
from kaged.cage import CageSettings, Spawner
from kaged.cage.net import NetGate
from kaged.kernel.identity import Actor, VouchedBy
from kaged.kernel.policy import CagePolicy
from kaged.serve.sandbox_rpc import RpcLimits, SandboxMethods
from kaged.serve.sandbox_rpc.ash_program import stock_ash
from kaged.serve.sandbox_rpc.channels import SandboxChannels
from kaged.services.caller import ContextTokens
from kaged.toolbox.shell import CommandRunner, PtyBroker, caged_launcher, shell_tools
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import VerifiedToken, verify_token

KEY = TokenKey(b"k" * 32)
ANN = Actor("ann", VouchedBy.BEARER, chat_type="private", chat_id="c-ann", provider="test")


class EchoMethods:
    """Verifies the token and says what it says; records every call."""

    methods = frozenset({"capability.list", "capability.invoke"})

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.calls: list[tuple[str, VerifiedToken, JsonObject]] = []

    async def call(self, method: str, params: JsonObject) -> JsonObject:
        token = verify_token(KEY, params["context_token"], clock=self._clock)
        self.calls.append((method, token, params))
        if method == "capability.list":
            return {"capabilities": []}
        output: JsonObject = {"user": token.effective_user_id, "chat": token.routing.chat_type}
        return {"ok": True, "output": output, "request_id": "cap_1"}


class ChannelLab:
    """One project folder and a shell whose commands may have a channel."""

    def __init__(
        self, root: Path, cache: Path, channels: SandboxChannels, spawner: Spawner
    ) -> None:
        self.root = root
        self.cache = cache
        self.channels = channels
        self.spawner = spawner
        self.broker = PtyBroker()
        launcher = caged_launcher(spawner, channels.attach)
        self._tools = shell_tools(CommandRunner(self.broker, spawner, launcher))

    def policy(self, *capabilities: str) -> CagePolicy:
        return cage("rw ./", root=self.root, capabilities=capabilities)

    async def run(
        self,
        command: str,
        *,
        identity: Actor | None = ANN,
        capabilities: tuple[str, ...] = ("shell", "services"),
        caged: bool = True,
        **params: Any,
    ) -> dict[str, Any]:
        """Run one command as an agent that acts for `identity`; returns the tool's result."""
        lab = ToolLab(self.root, self._tools, self.policy(*capabilities) if caged else None)
        lab.context = replace(lab.context, identity=identity)
        return await lab.call("shell.bash", command=command, **params)


@asynccontextmanager
async def channel_lab(
    folder: Path,
    methods: SandboxMethods | None = None,
    *,
    key: TokenKey = KEY,
    clock: Clock | None = None,
    limits: RpcLimits | None = None,
    audit: RecordedAudit | None = None,
    pythons: tuple[str, ...] | None = None,
) -> AsyncGenerator[ChannelLab]:
    """Open a lab in `folder`; everything it started is gone afterwards."""
    clock = clock or SystemClock()
    recorded = audit or RecordedAudit()
    cache = folder / "cache"
    cache.mkdir(mode=0o755)
    project = folder / "project"
    project.mkdir()
    gate = NetGate(lambda _: None)
    await gate.start()
    spawner = Spawner(CageSettings(cache_dir=stocked(cache)), gate=gate, clock=clock)
    channels = SandboxChannels(
        methods or EchoMethods(clock),
        ContextTokens(key, clock),
        lambda: stock_ash(cache, pythons),
        post=recorded.post,
        limits=limits,
    )
    lab = ChannelLab(project, cache, channels, spawner)
    try:
        yield lab
    finally:
        await lab.broker.dispose_all()
        await spawner.close()
        await gate.close()
