"""`DaemonState`: what changes while the daemon runs, and what is worked out from it on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.config.coresections import AuthMode, AuthSection
from kaged.config.hostvalues import Bind
from kaged.config.people_section import people_of
from kaged.config.settings import Settings
from kaged.kernel.identity import EVERYTHING, People, PersonGrant


@dataclass(slots=True)
class DaemonState:
    """The settings in force, the addresses in use, and whether the end has begun.

    `bound_settings` are those that the sockets were bound with: how safe it is to let everybody in
    depends on where the daemon really listens, not on what a newer file says.
    """

    settings: Settings
    clock: Clock
    url: str | None
    stopping: bool = False
    started_ms: int = field(init=False)
    _started_s: float = field(init=False)
    bound_settings: Settings = field(init=False)
    _people: tuple[Settings, People] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.started_ms = self.clock.now_ms()
        self._started_s = self.clock.monotonic_s()
        self.bound_settings = self.settings

    @property
    def uptime_s(self) -> float:
        """Seconds since the start, whatever the wall clock did meanwhile."""
        return self.clock.monotonic_s() - self._started_s

    @property
    def auth(self) -> AuthSection:
        """The access settings in force."""
        return self.settings.daemon.value.auth

    @property
    def people(self) -> People:
        """The people whom the settings in force name."""
        if self._people is None or self._people[0] is not self.settings:
            config = self.settings.daemon.value
            self._people = self.settings, people_of(config.people, config.teams)
        return self._people[1]

    def grant_of(self, person_id: str) -> PersonGrant:
        """Return what somebody is allowed by now; the operator is allowed everything.

        A person of the operator's id whom the settings name is held to what they say.
        """
        if person_id == self.auth.operator and person_id not in self.people.grants:
            return EVERYTHING
        return self.people.grant_of(person_id)

    @property
    def mode(self) -> AuthMode:
        """The mode in force: insecure only while the bound address stays on this machine."""
        bind = self.bound_settings.daemon.value.daemon.bind
        if bind is not None and not bind.loopback:
            return AuthMode.SECURE
        return self.auth.mode


def needs_restart(state: DaemonState) -> Sequence[str]:
    """Return the changed settings that the running daemon cannot apply."""
    now, bound = state.settings.daemon.value, state.bound_settings.daemon.value
    changed = {
        "daemon.bind": now.daemon.bind != bound.daemon.bind,
        "daemon.home": now.daemon.home != bound.daemon.home,
        "storage.url": now.storage.url != bound.storage.url,
        "auth.mode": now.auth.mode is not state.mode,
    }
    return [key for key, differs in changed.items() if differs]


def port_moved(bind: Bind | None, url: str | None) -> str | None:
    """Return what to say when the usual port was taken; None when it was not."""
    if bind is None or bind.chosen or (url is not None and url.endswith(f":{bind.port}")):
        return None
    if url is None:
        return f"port {bind.port} and those after it are taken, so there is no TCP listener"
    return f"port {bind.port} is taken by another program, so the TCP listener is at {url}"
