"""What a grant allows, in words, with a warning where a person should stop and think."""

from __future__ import annotations

from enum import StrEnum

from kaged.kernel.capabilities import (
    CapabilityPath,
    EventsAccess,
    EventsCapability,
    ExecCapability,
    FsCapability,
    ManifestCapability,
    NetCapability,
    NoNetCapability,
    PathBase,
    StorageAccess,
)
from kaged.kernel.describe.sentence import Sentence
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


class GrantWarning(StrEnum):
    """Why a grant deserves a second look."""

    WHOLE_MACHINE = "that is the whole machine"
    SYSTEM = "it can change the system itself"
    SECRETS = "keys, passwords and other people's files are kept there"
    PROJECT_CODE = "it can change code that you later run outside the cage"
    ANY_COMMAND = "it runs any commands that the plugin gives it"
    LOCAL_NETWORK = "services on this machine or network often trust their callers"
    ANY_HOST = "it can send anything it can read to anyone"


def describe_grant(item: ManifestCapability) -> Sentence:
    """Return what a capability allows."""
    if isinstance(item, FsCapability):
        return _describe_fs(item)
    if isinstance(item, ExecCapability):
        words = f"run the program {item.binary} in {_place(item.place)}"
        risky = item.binary in _COMMAND_RUNNERS
        return Sentence.dangerous_if(words, GrantWarning.ANY_COMMAND if risky else "")
    if isinstance(item, NetCapability):
        return _describe_net(item.target)
    if isinstance(item, NoNetCapability):
        return Sentence("use no network")
    if isinstance(item, EventsCapability):
        if item.access is EventsAccess.PUBLISH:
            return Sentence("send events to other plugins, which may have rights that it has not")
        return Sentence("receive the events of other plugins, of all projects")
    what = "read and write" if item.access is StorageAccess.WRITE else "read"
    return Sentence(f"{what} its own tables in the host's storage")


def describe_operation(capability: str, operation: str, account: str = "") -> Sentence:
    """Return what somebody wants to do with an account, `account` being whose."""
    return Sentence(f"{operation} on {capability}" + (f" as {account}" if account else ""))


def _describe_fs(item: FsCapability) -> Sentence:
    where = _place(item.place)
    writable = item.mode is FsMode.RW
    words = f"read and change everything in {where}" if writable else f"read everything in {where}"
    parts = item.place.path[1:].split("/")
    warning = ""
    if item.place.base is PathBase.PROJECT:
        if writable and item.place.path == "/":
            warning = GrantWarning.PROJECT_CODE
    elif item.place.base is PathBase.HOST:
        if item.place.path == "/":
            warning = GrantWarning.WHOLE_MACHINE
        elif writable and parts[0] in _SYSTEM_TREES:
            warning = GrantWarning.SYSTEM
        elif _SECRET_NAMES & set(parts) or (len(parts) <= 2 and parts[0] in _SECRET_TREES):
            warning = GrantWarning.SECRETS
    return Sentence.dangerous_if(words, warning)


def _describe_net(target: NetTarget) -> Sentence:
    if target.host is None:
        return Sentence.dangerous_if("connect to any host on the internet", GrantWarning.ANY_HOST)
    ports = "any port" if target.port is None else f"port {target.port}"
    words = f"connect to {target.host}, {ports}"
    return Sentence.dangerous_if(words, GrantWarning.LOCAL_NETWORK if is_local(target.host) else "")


def _place(place: CapabilityPath) -> str:
    return f"{place.path}{_OF_BASE[place.base]}"
