"""`explain`: one capability in plain words, with a warning where a person should stop and think."""

from __future__ import annotations

from dataclasses import dataclass

from kaged.kernel.capabilities.terms import (
    CapabilityPath,
    ExecCapability,
    FsCapability,
    ManifestCapability,
    NetCapability,
    NoNetCapability,
    PathBase,
    StorageAccess,
)
from kaged.kernel.hosts import is_local
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import FsMode

_SECRET_NAMES = frozenset(
    {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".netrc"}
)
_SECRET_TREES = frozenset({"etc", "home", "root", "run", "var"})
_SYSTEM_TREES = frozenset({"bin", "boot", "etc", "lib", "lib64", "root", "sbin", "usr"})
_COMMAND_RUNNERS = frozenset(
    {"bash", "dash", "env", "node", "perl", "python3", "ruby", "sh", "zsh"}
)


_OF_BASE = {
    PathBase.HOST: "",
    PathBase.CONFIG: " of its own configuration directory",
    PathBase.PROJECT: " of each project that uses it",
}


@dataclass(frozen=True, slots=True)
class CapabilityExplanation:
    """A capability for people: what it allows, and why it deserves a second look, if it does."""

    words: str
    warning: str = ""

    @property
    def dangerous(self) -> bool:
        """Whether a prompt should flag this capability."""
        return bool(self.warning)

    @property
    def flag(self) -> str:
        """The warning as every prompt and page shows it; empty where there is none."""
        return f"!! DANGEROUS: {self.warning}" if self.warning else ""


def explain(item: ManifestCapability) -> CapabilityExplanation:
    """Return in plain words what a capability allows."""
    if isinstance(item, FsCapability):
        return _explain_fs(item)
    if isinstance(item, ExecCapability):
        words = f"run the program {item.binary} in {_place(item.place)}"
        risky = item.binary in _COMMAND_RUNNERS
        return CapabilityExplanation(
            words, "it runs any commands that the plugin gives it" if risky else ""
        )
    if isinstance(item, NetCapability):
        return _explain_net(item.target)
    if isinstance(item, NoNetCapability):
        return CapabilityExplanation("use no network")
    what = "read and write" if item.access is StorageAccess.WRITE else "read"
    return CapabilityExplanation(f"{what} its own tables in the host's storage")


def _explain_fs(item: FsCapability) -> CapabilityExplanation:
    where = _place(item.place)
    writable = item.mode is FsMode.RW
    words = f"read and change everything in {where}" if writable else f"read everything in {where}"
    parts = item.place.path[1:].split("/")
    warning = ""
    if item.place.base is PathBase.PROJECT:
        if writable and item.place.path == "/":
            warning = "it can change code that you later run outside the cage"
    elif item.place.base is PathBase.HOST:
        if item.place.path == "/":
            warning = "that is the whole machine"
        elif writable and parts[0] in _SYSTEM_TREES:
            warning = "it can change the system itself"
        elif _SECRET_NAMES & set(parts) or (len(parts) <= 2 and parts[0] in _SECRET_TREES):
            warning = "keys, passwords and other people's files are kept there"
    return CapabilityExplanation(words, warning)


def _explain_net(target: NetTarget) -> CapabilityExplanation:
    if target.host is None:
        return CapabilityExplanation(
            "connect to any host on the internet",
            "it can send anything it can read to anyone",
        )
    ports = "any port" if target.port is None else f"port {target.port}"
    words = f"connect to {target.host}, {ports}"
    if is_local(target.host):
        return CapabilityExplanation(
            words, "services on this machine or network often trust their callers"
        )
    return CapabilityExplanation(words)


def _place(place: CapabilityPath) -> str:
    return f"{place.path}{_OF_BASE[place.base]}"
