"""Hints for people: the one command that would bring back a promise on this kind of host."""

from __future__ import annotations

import errno
from pathlib import Path

_INSTALL = {
    "debian": "apt-get install -y",
    "fedora": "dnf install -y",
    "rhel": "dnf install -y",
    "arch": "pacman -S --noconfirm",
    "alpine": "apk add",
    "suse": "zypper install -y",
}
_PACKAGES = {("libseccomp", "debian"): "libseccomp2", ("libseccomp", "suse"): "libseccomp2"}
# A profile for bwrap alone, rather than switching the restriction off for everything.
_APPARMOR = (
    "printf 'abi <abi/4.0>,\\nprofile bwrap /usr/bin/bwrap flags=(unconfined) {\\n userns,\\n}\\n'"
    " | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap"
)


def install_command(package: str, os_release: Path = Path("/etc/os-release")) -> str:
    """Return the command that installs a package on this distribution."""
    family = _family(os_release)
    name = _PACKAGES.get((package, family), package)
    return f"sudo {_INSTALL.get(family, 'apt-get install -y')} {name}"


def namespace_fix(row: str, proc: Path = Path("/proc")) -> str:
    """Return the command for a trial cage that did not come up, by what this host restricts."""
    kernel = proc / "sys/kernel"
    if _number(kernel / "apparmor_restrict_unprivileged_userns") == 1:
        return _APPARMOR
    if row != "cage.namespaces":
        return "run the daemon outside a container, or in one with its own /proc and mount rights"
    if _number(kernel / "unprivileged_userns_clone") == 0:
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _number(proc / "sys/user/max_user_namespaces") == 0:
        return "sudo sysctl -w user.max_user_namespaces=15000"
    return "allow user namespaces: in a container, use a seccomp profile that permits them"


def limits_fix(
    controllers: Path = Path("/sys/fs/cgroup/cgroup.controllers"),
    systemd: Path = Path("/run/systemd/system"),
) -> str:
    """Return what brings limits for a whole cage to a host where an ordinary user has none."""
    try:
        offered = set(controllers.read_text(encoding="ascii").split())
    except OSError:
        return "boot with cgroup version 2: systemd.unified_cgroup_hierarchy=1 as a kernel option"
    if not {"memory", "pids"} <= offered:
        return "enable the memory and pids controllers of cgroup version 2 (cgroup_enable=memory)"
    if not systemd.is_dir():
        return "delegate a cgroup with the memory and pids controllers to the daemon's user"
    return "systemd-run --user --scope -p Delegate=yes kaged daemon run"


def resource_fix(error: OSError) -> str:
    """Return what a person can do about a system call that had nothing left to give."""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "raise the limit of open files (LimitNOFILE= of the service, or `ulimit -n`)"
    if error.errno == errno.EAGAIN:
        return "raise the limit of processes (TasksMax= of the service, or `ulimit -u`)"
    if error.errno == errno.ENOMEM:
        return "end something that uses memory, or give the daemon more (MemoryMax=)"
    if error.errno == errno.ENOSPC:
        return "free some space on the disk, or raise fs.inotify.max_user_watches"
    return "run `kaged doctor`"


def _family(os_release: Path) -> str:
    try:
        text = os_release.read_text(encoding="utf-8")
    except OSError:
        return "debian"
    words: list[str] = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in {"ID", "ID_LIKE"}:
            words += value.strip('"').split()
    return next((word for word in words if word in _INSTALL), "debian")


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
