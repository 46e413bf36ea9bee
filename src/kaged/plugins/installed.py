"""`InstalledPlugin`: one plugin as it lies on this machine."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.manifest import Manifest
from kaged.kernel.capabilities import CapabilitySet, NetCapability
from kaged.kernel.policy import CageLimits
from kaged.plugins.treecopy import read_tree
from kaged.tools.session_labels import UNTRUSTED

_FROM_OUTSIDE: Final = frozenset({UNTRUSTED})
_FROM_HERE: Final = frozenset[str]()


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin's directory with its manifest, and what the operator decided about it.

    `grants` are capabilities that the operator added on this machine (PH-AMB-68); `local` says
    whether every project may use it. `data_dir` is what `config:` stands for in its capabilities.
    `digest` is that of the files that the operator agreed to; None for what was put there by hand.
    """

    directory: Path
    data_dir: Path
    manifest: Manifest
    package: str
    local: bool = True
    grants: CapabilitySet = field(default_factory=CapabilitySet)
    limits: CageLimits = field(default_factory=CageLimits)
    digest: str | None = None

    def require_unchanged(self) -> None:
        """Refuse files that are others than the operator agreed to. Blocks: reads all of them.

        Raises:
            KagedError: `plugin_files_changed`; they are, or they cannot be compared.
        """
        if self.digest is None:
            return
        try:
            changed = read_tree(self.directory).digest != self.digest
        except (KagedError, OSError) as error:
            raise self._changed(f"cannot be compared with what was agreed to: {error}") from error
        if changed:
            raise self._changed("were changed after the operator agreed to them")

    def _changed(self, how: str) -> KagedError:
        return KagedError(
            f"The files of {self.name} {how}.",
            code="plugin_files_changed",
            fix=f"look at them and approve them: kaged plugin renew {self.name}",
            plugin=self.name,
        )

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

    @property
    def reaches_net(self) -> bool:
        """Whether its cage lets it connect anywhere."""
        return any(isinstance(one, NetCapability) for one in self.capabilities)

    @property
    def labels(self) -> frozenset[str]:
        """What the host knows of everything that it returns."""
        return _FROM_OUTSIDE if self.reaches_net else _FROM_HERE
