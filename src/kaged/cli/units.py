"""`unit_file`: the systemd unit that keeps a daemon running, for one person or for the machine.

Everything that hides or remounts parts of /proc is left out on purpose (ProtectKernelTunables,
ProtectProc, ProtectControlGroups and what implies them): the kernel then lets nobody mount a fresh
/proc in a user namespace, and no cage would start. What a guest may do is the cage's business; the
unit narrows the daemon itself.
"""

from __future__ import annotations

SYSTEM_USER = "kaged"

_COMMON = """\
[Unit]
Description=kaged: tools, plugins and accounts for AI agents, without the keys
Documentation=man:bwrap(1)
{after}
[Service]
Type=notify
ExecStart={command} daemon run
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
# The daemon ends its children itself, asking first; what is left after that is killed.
KillMode=mixed
TimeoutStopSec=60
# Cages get limits of their own below this unit.
Delegate=memory pids cpu
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
{own}
[Install]
WantedBy={target}
"""

_SYSTEM = f"""\
User={SYSTEM_USER}
Group={SYSTEM_USER}
StateDirectory=kaged
StateDirectoryMode=0700
Environment=KAGED_HOME=/var/lib/kaged
CapabilityBoundingSet=
AmbientCapabilities=
PrivateTmp=yes
ProtectSystem=full
ProtectClock=yes
ProtectHostname=yes
"""


def unit_file(command: str, *, system: bool) -> str:
    """Write the unit. `command` is the absolute path of `kaged`."""
    escaped = command.replace("%", "%%")
    if any(one.isspace() for one in escaped):
        escaped = f'"{escaped}"'
    return _COMMON.format(
        command=escaped,
        after="After=network-online.target\nWants=network-online.target\n" if system else "",
        own=_SYSTEM if system else "",
        target="multi-user.target" if system else "default.target",
    )
