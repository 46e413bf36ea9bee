"""Logging loads structlog when something is logged, and never rich."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from kaged.base.log import get_logger


def test_a_logger_uses_what_is_configured_when_it_is_used() -> None:
    log = get_logger("kaged.test")
    with capture_logs() as lines:
        log.info("first.seen", count=1)
        log.bind(plugin="p").warning("second.seen")
    assert lines == [
        {"event": "first.seen", "count": 1, "log_level": "info"},
        {"event": "second.seen", "plugin": "p", "log_level": "warning"},
    ]
    with pytest.raises(AttributeError):
        log.no_such_method()


PROGRAM = """
import sys
import kaged.app.daemon, kaged.pipeline.pipeline
loaded = {"structlog", "rich"} & sys.modules.keys()
assert not loaded, loaded
from kaged.base.log import get_logger
from kaged.config.coresections import LogFormat, LogLevel
from kaged.config.log_setup import configure_logging
configure_logging(LogLevel.INFO, LogFormat.JSON)
try:
    1 / 0
except ZeroDivisionError:
    get_logger("kaged.test").exception("sum.failed", sum=7)
assert "structlog" in sys.modules
assert "rich" not in sys.modules
import rich.table
"""


def test_a_daemon_logs_a_failure_without_loading_rich() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    line = json.loads(done.stderr)
    assert (line["event"], line["sum"], line["logger"]) == ("sum.failed", 7, "kaged.test")
    assert "ZeroDivisionError: division by zero" in line["exception"]
