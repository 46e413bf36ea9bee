"""Real bridge programs behind a real spawner, beside the rest of a `ServiceLab`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.service_lab import KEY, ServiceLab
from fakes.stocked_cache import stocked
from kaged.base import ManualClock, SystemClock
from kaged.cage import CageSettings, Spawner
from kaged.services.providers.bridge import BridgeProvider
from kaged.services.providers.bridge_command import BridgeSpec
from kaged.services.registry import ProviderRules

GUESTS = Path(__file__).parents[1] / "guests"
PYTHON = "/usr/bin/python3"


class BridgeLab(ServiceLab):
    """A lab whose providers are processes. Its clock is the real one: bridges read it, too."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, RealTime())
        self.processes: list[tuple[str, dict[str, Any]]] = []

    def start(self, environ: dict[str, str] | None = None) -> None:
        """Open the spawner; call it on the event loop."""
        self.environ = environ or {"PATH": "/usr/bin:/bin", "HOME": str(self.root)}
        self.everybody = asyncio.Semaphore(16)
        self.spawner = Spawner(
            CageSettings(cache_dir=stocked(self.root / "cache"), ask_systemd=False),
            on_event=lambda name, data: self.processes.append((name, data)),
        )

    def bridge(self, program: str | Path, namespace: str = "gog", **fields: Any) -> BridgeProvider:
        """Make a provider of a program in tests/guests, or of any script."""
        path = program if isinstance(program, Path) else GUESTS / program
        spec = BridgeSpec(namespace, namespace, (PYTHON, str(path)), timeout_s=20)
        return BridgeProvider(
            replace(spec, **fields),
            KEY,
            spawner=self.spawner,
            everybody=self.everybody,
            clock=self.clock,
            environ=self.environ,
            directory=self.root / "bridges" / namespace,
        )

    async def add(
        self, program: str | Path, namespace: str = "gog", *, timeout_s: float = 20, **fields: Any
    ) -> BridgeProvider:
        """Register a bridge."""
        provider = self.bridge(program, namespace, timeout_s=timeout_s, **fields)
        await self.registry.register(
            provider, rules=ProviderRules(timeout_s=timeout_s), kind="bridge", keep_if_down=True
        )
        return provider

    async def close(self) -> None:
        await super().close()
        await self.spawner.close()


class RealTime(ManualClock):
    """The machine's clock in the shape that the lab wants; a test may move it on."""

    def __init__(self) -> None:
        super().__init__(0, 0)

    def now_ms(self) -> int:
        return SystemClock().now_ms() + super().now_ms()

    def monotonic_s(self) -> float:
        return SystemClock().monotonic_s() + super().monotonic_s()


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in {"Z", "X"}


async def until(what: Any, tries: int = 2000) -> None:
    """Wait until something is so, for at most twenty seconds."""
    for _ in range(tries):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")
