"""What every attempt of `attacks.py` must meet, by the beginning of its name.

Several answers are given where the kernel may say no for two reasons at once: a file may be both
read-only by its mount and unwritable by its mode.
"""

from __future__ import annotations

READ_ONLY = {"EROFS", "EACCES"}
GONE = {"ENOENT"}
NOT_PERMITTED = {"EPERM"}
UNKNOWN_CALL = {"ENOSYS"}
NO_FAMILY = {"EAFNOSUPPORT"}

# By the longest matching beginning of an attempt's name.
EXPECTED: dict[str, set[str]] = {
    "E01-": GONE,
    "E02-": GONE,
    "E03-": READ_ONLY,
    "E03-rename-away-a-read-grant-inside-a-write-grant": {"EBUSY"},
    "E04-": GONE,
    "E05-": GONE,
    "E05-the-parent-shows-only-grants": {"only grants"},
    "E06-": {"EXDEV"},
    "E08-": READ_ONLY,
    "E08-create-proc-new": GONE | READ_ONLY,
    "E09-": GONE,
    "E10-": NOT_PERMITTED,
    "E11-": GONE,
    "E12-find-": {"not found"},
    "E12-no-new-privileges": {"set"},
    "E12-no-capabilities": {"none"},
    "E12-run-a-setuid-program-from-a-grant": {"uid 1000"},
    "E13-": {"ENOSPC"},
    "E14-": NO_FAMILY,
    "E14-reconnect-": {"EISCONN"},
    "E14-datagram-socket-got-something": {"nothing"},
    "E15-environment-of-pid-1": {"empty"},
    "E15-daemon-secret-in-any-environment": {"nowhere"},
    "E16-": {"only --args"},
    "E17-open-core-pattern": READ_ONLY,
    "E17-count-writable-settings": {"0"},
    "E18-": READ_ONLY | GONE | {"EISDIR"},
    "E19-list-processes": {"own"},
    "E19-signal-a-host-process": {"ESRCH"},
    "E19-read-a-host-process": GONE,
    "E20-": READ_ONLY,
    "E21-open-descriptors-at-the-start": {"0, 1, 2"},
    "E21-descriptors-of-pid-1": {"pipes only"},
    "E22-": GONE,
    "E23-": NOT_PERMITTED | GONE | {"EACCES"},
    "E23-look-at-proc-": GONE | {"EACCES", "empty"},
    "E23-fill-a-covered-folder-of-proc": GONE | READ_ONLY,
    "E24-": NOT_PERMITTED,
    "E25-": UNKNOWN_CALL,
    "E26-": NOT_PERMITTED,
    "E27-": UNKNOWN_CALL,
    "E28-": NOT_PERMITTED,
    "E29-": {"EINVAL", "EPERM"},
    "E30-": NOT_PERMITTED,
    "E30-ptrace-": {"exit 1"},
    "E31-": NOT_PERMITTED,
    "E32-": UNKNOWN_CALL,
    "E33-": NOT_PERMITTED,
    "E34-": NOT_PERMITTED,
    "E35-": NOT_PERMITTED,
    "E36-": {"SIGSYS", "absent"},
    "E37-": UNKNOWN_CALL,
    "E38-": NOT_PERMITTED,
    "E38-personality-query": {"allowed"},
    "E39-": NOT_PERMITTED | {"absent"},
    "E39-memfd-secret": UNKNOWN_CALL,
    "E40-": NO_FAMILY,
    "E41-raw-icmp": NOT_PERMITTED,
    "E41-ping": {"EACCES"},
    "E41-": {"EPROTONOSUPPORT"},
    "E42-": NO_FAMILY,
    "E42-netlink-route-changes-the-network": NOT_PERMITTED,
    "E43-": NO_FAMILY,
    "E44-": NOT_PERMITTED | {"absent"},
    "E44-chown-to-another-user": {"EINVAL", "EPERM"},
    "E54-lower-the-nice-value": READ_ONLY | NOT_PERMITTED,
    "E54-real-time-scheduling": NOT_PERMITTED,
    "E54-raise-rlimit-": {"refused"},
    "E54-lock-64-MiB": {"ENOMEM", "EPERM"},
    "E55-": {"EACCES"},
    "E55-write-to-the-pipe-'rw/pipe'": {"allowed"},  # what is writable is writable
    "E55-read-from-the-pipe-'rw/pipe'": {"allowed"},
    "E55-take-the-cover-off-a-pipe": READ_ONLY | {"EBUSY"},
    "E55-what-came-out-of-": {"b''"},
    "E55-what-came-out-of-rw/pipe": {"b'out'"},
    "X-hoard-inotify-instances": {"few"},
    "X-hoard-descriptors": {"EMFILE"},
    "X-write-a-file-past-its-limit": {"EFBIG"},
    "X-host-name": {"cage"},
    "X-network-interfaces": {"lo"},
    "X-shared-memory-of-the-host": {"own"},
    "X-open-the-controlling-terminal": {"ENXIO", "ENOENT"},
    "X-host-paths-in-the-mount-table": {"nothing"},
    "X-raise-a-namespace-ceiling": READ_ONLY,
    "X-leave-by-the-root-of-another-process": GONE,
    "X-steal-a-lock-on-a-granted-file": {"EBADF"},
}

# The relaxed profile admits debuggers and profilers, and nothing else.
ANYTHING = {"allowed", "EPERM", "EFAULT", "EINVAL", "EACCES", "ENOENT", "exit 0", "exit 1"}
RELAXED: dict[str, set[str]] = {
    "E30-process-vm-": {"allowed"},
    "E30-kcmp": {"allowed", "EOPNOTSUPP"},
    "E30-ptrace-traceme": {"exit 0"},
    "E30-": ANYTHING,  # the host's yama setting has a word in these
    "E31-perf-event-open": ANYTHING - {"EPERM"},
    "E38-personality-no-randomisation": {"allowed"},
}


def expected(name: str, profile: str) -> set[str]:
    """Return the answers that an attempt may meet under a profile."""
    found = _longest(name, RELAXED) if profile == "relaxed" else None
    if found is None:
        found = _longest(name, EXPECTED)
    assert found is not None, f"{name} has no expected answer"
    return found


def _longest(name: str, table: dict[str, set[str]]) -> set[str] | None:
    matching = [start for start in table if name.startswith(start)]
    return table[max(matching, key=len)] if matching else None


__all__ = ["expected"]
