"""`InstalledPlugin`: one plugin as it lies on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kaged.config.manifest import Manifest
from kaged.kernel.capabilities import CapabilitySet
from kaged.kernel.policy import CageLimits


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin's directory with its manifest, and what the operator decided about it.

    `grants` are capabilities that the operator added on this machine (PH-AMB-68); `local` says
    whether every project may use it. `data_dir` is what `config:` stands for in its capabilities.
    """

    directory: Path
    data_dir: Path
    manifest: Manifest
    package: str
    local: bool = True
    grants: CapabilitySet = field(default_factory=CapabilitySet)
    limits: CageLimits = field(default_factory=CageLimits)

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """The plugin's version as the manifest spells it."""
        return str(self.manifest.version)

    @property
    def capabilities(self) -> CapabilitySet:
        """What its cage grants: the manifest's list and the operator's additions."""
        return self.manifest.capabilities.joined(self.grants)
