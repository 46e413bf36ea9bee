"""Which test modules stay on one worker: their fixtures are set up once for a whole module.

xdist reads its own group marks off node ids, which pytest 9.2 no longer lets it change; so the
division of work is told here by path.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    "tests/chaos/sessions/test_killed_at_each_step.py",
    "tests/integration/daemon/test_declared_events.py",
    "tests/integration/daemon/test_demo.py",
    "tests/integration/daemon/test_guarded_from_the_start.py",
    "tests/integration/docs/test_walks_recorded.py",
    "tests/integration/packaging/test_wheel.py",
    "tests/integration/pipeline/test_cpex_plugins.py",
    "tests/integration/services/test_caldav_calendar.py",
    "tests/integration/services/test_http_rest.py",
    "tests/integration/services/test_imap_email.py",
    "tests/integration/toolbox/test_dap_delve.py",
)

WHOLE = "tests/whole/"
"""Each module of whole tests has one daemon."""


class ByModuleOrTest(LoadScopeScheduling):
    """Hands out whole modules where set-up is dear, and single tests everywhere else."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return path if path in TOGETHER or path.startswith(WHOLE) else nodeid


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModuleOrTest:
    """Return our scheduler to xdist."""
    return ByModuleOrTest(config, log)
