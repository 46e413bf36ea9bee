"""`CageReach`: what a caged program reaches, as people write it into a plugin's entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from kaged.kernel.net import parse_target
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode


class CageReach(BaseModel):
    """Paths, destinations and memory; nothing is reached that is not written down."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    read: list[str] = Field(default_factory=list)
    write: list[str] = Field(default_factory=list)
    net: list[str] = Field(default_factory=list)
    memory_mb: int = Field(default=512, ge=64, le=65536)

    def policy(self, env: Mapping[str, str], also_read: Iterable[str] = ()) -> CagePolicy:
        """Return the policy of the cage. Raises KagedError for a grant that makes no sense."""
        return CagePolicy(
            fs=(
                *(FsGrant(path, FsMode.RO) for path in (*self.read, *also_read)),
                *(FsGrant(path, FsMode.RW) for path in self.write),
            ),
            net=tuple(parse_target(target) for target in self.net),
            env=tuple(env.items()),
            limits=CageLimits(memory_mb=self.memory_mb),
        )
