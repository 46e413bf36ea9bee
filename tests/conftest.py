"""What every test may ask for. The requirement marker lives in tests/requirements."""

from __future__ import annotations

import gc
import os
import ssl
from functools import cache
from typing import Any

import httpx
import pytest
from httpx._transports import default as transports

from fakes.file_clock import FileClock
from kaged.base import Ids, ManualClock
from kaged.base.open_files import raise_open_files
from kaged.base.signals import unmute_for_children

pytest_plugins = [
    "rootpart",
    "requirements.levels",
    "requirements.plugin",
    "sharing",
    "leftovers",
    "thorough",
]

# Who started this run may have made it deaf (`nohup`, `&`), and so everything that tests start.
unmute_for_children()
# As the daemon does: the tests have its spawner, and hundreds of cages, in their own process.
raise_open_files()


@cache
def _public_authorities(trust_env: bool, *_named: str | None) -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=trust_env)


def _create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
    if verify is not True or cert is not None:
        return httpx.create_ssl_context(verify, cert, trust_env)
    named = map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    return _public_authorities(trust_env, *named)


# Every client of a test would read all certificates: thirty times the cost of a request.
transports.__dict__["create_ssl_context"] = _create_ssl_context


def pytest_configure() -> None:
    """Let nobody look for garbage while tests are collected: none of it is any."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage of tests only, from now on: what was collected stays until the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that moves only when the test says so."""
    return ManualClock()


@pytest.fixture
def file_clock(monkeypatch: pytest.MonkeyPatch) -> FileClock:
    """Return a file system's clock that stands still until the test says so."""
    return FileClock(monkeypatch)


@pytest.fixture
def ids(clock: ManualClock) -> Ids:
    """Return sortable ids driven by the test's clock."""
    return Ids(clock)
