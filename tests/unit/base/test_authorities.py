"""The certificates of authorities are read once, and again when their files change."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from fakes.file_clock import TICK_NS, FileClock
from kaged.base import authorities as module
from kaged.base.authorities import authorities

ALL = Path(certifi.where()).read_text(encoding="utf-8")
END = "-----END CERTIFICATE-----\n"
FIRST, SECOND = (one + END for one in ALL.split(END)[:2])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_clock: FileClock) -> Iterator[Path]:
    """Yield the file of the machine's authorities, with one of them."""
    made = tmp_path / "all.pem"
    made.write_text(FIRST, encoding="utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    file_clock.settle()
    yield made
    module._read.cache_clear()


def test_authorities_are_read_once_and_checked_with(file: Path) -> None:
    first = authorities()
    assert authorities() is first
    assert (first.verify_mode, first.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(first.get_ca_certs()) == 1


def test_authorities_that_are_replaced_count_from_the_next_connection_on(file: Path) -> None:
    authorities()
    file.write_text(FIRST + SECOND, encoding="utf-8")
    assert len(authorities().get_ca_certs()) == 2
    file.unlink()
    assert authorities().get_ca_certs() == []


def test_authorities_that_are_replaced_in_the_same_moment_count_too(
    file: Path, file_clock: FileClock
) -> None:
    size = max(len(FIRST), len(SECOND))
    file.write_text(FIRST.ljust(size, "\n"), encoding="utf-8")
    file_clock.now_ns = TICK_NS
    first = authorities().get_ca_certs()
    file.write_text(SECOND.ljust(size, "\n"), encoding="utf-8")
    assert authorities().get_ca_certs() != first
    file_clock.settle()
    assert authorities().get_ca_certs() != first
    assert authorities() is authorities()


def test_another_file_is_trusted_besides_and_by_nobody_else(file: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_text(SECOND, encoding="utf-8")
    assert len(authorities(str(own)).get_ca_certs()) == 2
    assert authorities(str(own)) is authorities(str(own))
    assert len(authorities().get_ca_certs()) == 1


def test_a_variable_that_names_another_file_counts(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorities()
    other = tmp_path / "other.pem"
    other.write_text(FIRST + SECOND, encoding="utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    assert len(authorities().get_ca_certs()) == 2
