"""`compile_cage`: a policy and the facts of a host become bwrap's option list. Pure.

Order matters to bwrap: later mounts cover earlier ones, so everything is placed parents first, and
what is made read-only at the end must come after everything created below it.
"""

from __future__ import annotations

import hashlib
from dataclasses import field, fields

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.arguments import DescriptorSlot, Token, check_command, check_environment, check_path
from kaged.cage.base_programs import BASE_PROGRAMS_INSIDE, SESSION_PROGRAM
from kaged.cage.binfolder import BinFolder
from kaged.cage.errors import PolicyConflict, UnsafeArgument
from kaged.cage.facts import HostFacts
from kaged.cage.layout import (
    INSIDE_GID,
    INSIDE_NAME,
    INSIDE_UID,
    SCRATCH,
    Blueprint,
    Layout,
    ShownPath,
    lay_out,
    own_file_label,
)
from kaged.cage.programs import ProgramPlan
from kaged.cage.request import CageKind, CageRequest, Programs, Pty
from kaged.kernel.policy import CageState

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

_NAMESPACES: tuple[str, ...] = (
    # `--unshare-all` only tries the user namespace; without one, root would keep all its powers.
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
    *("--unshare-cgroup-try", "--disable-userns"),
    *("--uid", str(INSIDE_UID), "--gid", str(INSIDE_GID), "--hostname", INSIDE_NAME),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What was found on the host for one request; with the facts, all that a compile depends on."""

    grants: tuple[ShownPath, ...] = ()
    programs: ProgramPlan = field(default_factory=ProgramPlan)
    net_environment: tuple[tuple[str, str], ...] = ()
    net_files: tuple[tuple[str, str], ...] = ()
    pipes: tuple[str, ...] = ()
    as_root: bool = False


@dataclass(frozen=True, slots=True)
class CageCommand:
    """A compiled cage: bwrap, its options with descriptors by label, the files it is given.

    `cage_id` is a hash of everything that decides what the cage may do; values of variables, which
    may be secrets, do not enter it. `text` is what was hashed. `folders` must be there on the host.
    """

    bwrap: str
    options: tuple[Token, ...]
    command: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]
    environment: tuple[tuple[str, str], ...]
    cwd: str
    text: str
    cage_id: str
    folders: tuple[BinFolder, ...] = ()

    def argv(self, args_fd: int) -> list[str]:
        """Return the command line; the options travel through the descriptor `args_fd`.

        A cage can read the command line of its own bwrap, so the policy is not on it.
        """
        return [self.bwrap, "--args", str(args_fd), "--", *self.command]


def compile_cage(request: CageRequest, facts: HostFacts, resolved: Resolved) -> CageCommand:
    """Turn a request's policy into the option list that bwrap will run.

    Pure: equal arguments give equal options, byte for byte. Every mount in the result is granted by
    the policy, belongs to the fixed base set, or is a file of the programs the policy names.

    Raises:
        PolicyConflict: two entries claim one place with different meanings.
        UnsafeArgument: a string may not reach a command line.
    """
    check_command(request.command)
    if facts.bwrap is None:
        raise PolicyConflict("there is no sandbox tool to compile for")
    environment = _environment(request, resolved)
    check_environment(environment)
    layout = lay_out(_blueprint(request, resolved), facts)
    cwd = _cwd(request, layout)
    options: tuple[Token, ...] = (
        *_NAMESPACES,
        *(word for name, value in environment for word in ("--setenv", name, value)),
        *layout.options,
        *("--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/"),
        *(
            "--seccomp",
            DescriptorSlot("seccomp"),
            "--info-fd",
            DescriptorSlot("info"),
            "--block-fd",
            DescriptorSlot("block"),
        ),
        *("--chdir", cwd),
    )
    text = _text(request, environment, layout)
    return CageCommand(
        bwrap=facts.bwrap,
        options=options,
        command=_command(request, facts),
        files=(
            *layout.files,
            *((own_file_label(one.path), one.content) for one in request.files),
        ),
        environment=environment,
        cwd=cwd,
        text=text,
        cage_id=hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32],
        folders=layout.folders,
    )


def _blueprint(request: CageRequest, resolved: Resolved) -> Blueprint:
    persistent = request.policy.state is CageState.PERSISTENT
    if persistent and request.state_dir is None:
        raise PolicyConflict("a persistent cage needs a directory to keep its scratch in")
    return Blueprint(
        kind=request.kind,
        programs=request.effective_programs,
        persistent=persistent,
        tmpfs_mb=request.policy.limits.tmpfs_mb,
        mounts=request.mounts,
        grants=resolved.grants,
        plan=resolved.programs,
        net_files=resolved.net_files,
        own_files=tuple(one.path for one in request.files),
        pipes=resolved.pipes,
        as_root=resolved.as_root,
    )


def _command(request: CageRequest, facts: HostFacts) -> tuple[str, ...]:
    # bwrap's new session has no controlling terminal; this gives the command one of its own, so
    # that job control and Ctrl-C work. It execs without a fork: the command keeps its pid.
    keys = isinstance(request.stdio, Pty) and request.stdio.keys
    if keys and facts.base_programs.session_program:
        return (f"{BASE_PROGRAMS_INSIDE}/bin/{SESSION_PROGRAM}", "--ctty", *request.command)
    return request.command


def _environment(request: CageRequest, resolved: Resolved) -> tuple[tuple[str, str], ...]:
    path = resolved.programs.path
    if request.effective_programs is Programs.SYSTEM:
        path = ":".join((SYSTEM_PATH, *resolved.programs.path_dirs))
    variables: dict[str, str] = {
        "PATH": path,
        "HOME": request.home or SCRATCH,
        "LANG": "C.UTF-8",
        "TMPDIR": SCRATCH,
        "XDG_CACHE_HOME": f"{SCRATCH}/.cache",
    }
    if request.kind is not CageKind.PLUGIN:
        variables |= {"USER": INSIDE_NAME, "LOGNAME": INSIDE_NAME}
    if isinstance(request.stdio, Pty):
        variables["TERM"] = "xterm-256color"
    for entries in (
        resolved.net_environment,
        request.env,
        request.policy.env,
        request.fixed_env,
    ):
        variables.update(entries)
    return tuple(variables.items())


def _cwd(request: CageRequest, layout: Layout) -> str:
    cwd = check_path(request.cwd or request.home or "/", "working directory")
    if not layout.visible(cwd):
        raise UnsafeArgument(
            f"the working directory {cwd} does not exist in this cage",
            fix="grant it, or choose one that is granted",
            path=cwd,
        )
    return cwd


def _text(request: CageRequest, environment: tuple[tuple[str, str], ...], layout: Layout) -> str:
    policy = request.policy
    limits = policy.limits
    numbers = " ".join(f"{one.name}={getattr(limits, one.name)}" for one in fields(limits))
    lines = [
        f"kind {request.kind} programs {request.effective_programs}",
        f"seccomp {policy.seccomp} state {policy.state}",
        f"limits {numbers}",
        *(f"net {_net_word(target.host)}:{_net_word(target.port)}" for target in policy.net),
        f"env {' '.join(name for name, _ in environment)}",
        *(f"credential {name}" for name in policy.credentials),
        *layout.lines,
    ]
    return "\n".join(lines) + "\n"


def _net_word(value: str | int | None) -> str:
    return "*" if value is None else str(value)
