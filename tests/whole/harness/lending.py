"""`Lender`: one daemon for several modules. Starting one costs more than most tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx

from whole.harness.daemon import Daemon, Refused

PROJECTS_EACH = 80
"""With so many projects loaded a new one: unloading them would take as long as starting it.

A daemon holds 200 of them, and the next module brings its own.
"""


class Lender:
    """Lends a daemon to one module after the other, and takes plugins away between them.

    Its first one is started from the beginning, as users start it. That and what such a daemon
    loads later cost three seconds, so those that follow are forked.
    """

    def __init__(self, place: Callable[[], Path], local: str) -> None:
        self._place = place
        self._local = local
        self._daemon: Daemon | None = None
        self._started = False

    def lend(self) -> Daemon:
        """Return a running daemon without plugins."""
        if self._daemon is None:
            self._daemon = Daemon(self._place(), local=self._local, forked=self._started)
            self._started = True
            self._daemon.start()
        return self._daemon

    def take_back(self) -> None:
        """Uninstall what a module has left; a daemon that is not as it was ends."""
        daemon = self._daemon
        assert daemon is not None
        if not (daemon.running and daemon.has_its_first_files and self._is_small(daemon)):
            self.close()

    @staticmethod
    def _is_small(daemon: Daemon) -> bool:
        try:
            for plugin in daemon.get("/plugins")["items"]:
                daemon.ask("DELETE", f"/plugins/{plugin['name']}?force=true")
            return len(daemon.get("/projects?limit=200")["items"]) < PROJECTS_EACH
        except (Refused, httpx.HTTPError):
            return False

    def close(self) -> None:
        """End the daemon, if there is one."""
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None
