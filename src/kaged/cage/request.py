"""What a caller asks the spawner for: a `CageRequest`, or an `UncagedRequest` that says why."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.errors import UnsafeArgument
from kaged.cage.gate_port import AskHost, BoundHosts, Service
from kaged.kernel.policy import CagePolicy, FsMode


class CageKind(StrEnum):
    """Who lives in a cage; it decides what of the system is shown, never what is granted.

    `plugin` is the strictest: no /etc/passwd, and no program beyond the base set, the command's own
    interpreters and the exec entries. The others see the host's /usr read-only and a made-up
    passwd, unless the request narrows `programs`.
    """

    PLUGIN = "plugin"
    AGENT = "agent"
    WORKER = "worker"
    SERVER = "server"


class Programs(StrEnum):
    """Which programs exist inside: only the named ones, or the host's /usr."""

    STRICT = "strict"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class HostMount:
    """A directory or file that the host itself adds to a cage, such as the SDK. Never from a guest.

    It is not checked against the protected paths: it is host code that names it.
    """

    source: str
    dest: str
    mode: FsMode = FsMode.RO


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file that the host makes for one cage, read-only, at `path`. Never on the host's disk.

    It may lie over a file of the system, and otherwise only in what is the cage's own: never in a
    granted folder, where it would leave an empty file behind.
    """

    path: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pipes:
    """Standard input, output and error as three pipes; `merge_stderr` joins the last two.

    Without `stdin` nobody can write to it: its standard input is empty.
    """

    merge_stderr: bool = False
    stdin: bool = True


@dataclass(frozen=True, slots=True)
class Pty:
    """One pseudo-terminal as standard input, output and error, of this size.

    Without `keys` nobody can type: standard input is empty and the terminal controls no session,
    so that a program that asks a question gets an end of file instead of waiting.
    """

    rows: int = 24
    cols: int = 80
    keys: bool = True


Stdio: TypeAlias = Pipes | Pty


@dataclass(frozen=True, slots=True)
class CageRequest:
    """One process to start inside a cage.

    Variables inside are, later ones winning: the cage's own, `env`, the policy's, `fixed_env`.
    `own_dirs` are directories below the daemon's own home that belong to this cage's owner (its
    install directory, its config directory) and may therefore be granted. `runtimes` name programs
    that live outside /usr, as config.toml may. `state_dir` is where a persistent cage keeps /tmp.
    `services` are the daemon's own, shown to this cage alone on its loopback. `files` are made for
    this cage alone, and `bound` serves the hosts for which the gate holds its credentials.
    `ask_host` is asked about destinations that the policy does not grant.
    """

    name: str
    policy: CagePolicy
    command: tuple[str, ...]
    kind: CageKind = CageKind.PLUGIN
    cwd: str | None = None
    home: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    fixed_env: tuple[tuple[str, str], ...] = ()
    own_dirs: tuple[str, ...] = ()
    mounts: tuple[HostMount, ...] = ()
    runtimes: tuple[tuple[str, str], ...] = ()
    state_dir: str | None = None
    programs: Programs | None = None
    services: tuple[Service, ...] = ()
    files: tuple[ShownFile, ...] = ()
    bound: BoundHosts | None = field(default=None, compare=False, repr=False)
    stdio: Stdio = field(default_factory=Pipes)
    ask_host: AskHost | None = None

    @property
    def needs_gate(self) -> bool:
        """Whether the network gate has something to serve it with."""
        return bool(self.policy.net or self.services) or self.ask_host is not None

    @property
    def effective_programs(self) -> Programs:
        """Which programs exist inside, after the kind's default."""
        if self.programs is not None and self.kind is not CageKind.PLUGIN:
            return self.programs
        return Programs.STRICT if self.kind is CageKind.PLUGIN else Programs.SYSTEM


@dataclass(frozen=True, slots=True)
class Uncaged:
    """The explicit value that stands for "no cage"; `reason` goes into the audit log."""

    reason: str

    def __post_init__(self) -> None:
        """Refuse an unreasoned opt-out."""
        if not self.reason.strip():
            raise UnsafeArgument("a process without a cage needs a reason that a person can read")


@dataclass(frozen=True, slots=True)
class UncagedRequest:
    """One process to start without a cage: the daemon's own power, visible in code and audit.

    `env` is the whole environment of the process; nothing is inherited.
    """

    name: str
    uncaged: Uncaged
    command: tuple[str, ...]
    cwd: str = "/"
    env: tuple[tuple[str, str], ...] = ()
    stdio: Stdio = field(default_factory=Pipes)


SpawnRequest: TypeAlias = CageRequest | UncagedRequest
