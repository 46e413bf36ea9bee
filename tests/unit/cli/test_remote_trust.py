"""Which certificates commands check with a daemon behind a URL."""

from __future__ import annotations

import ssl

import pytest

from kaged.cli.remote import parse_daemon_url, trusted


@pytest.mark.parametrize("url", ["https://team.test", "HTTPS://team.test", "https://127.0.0.1:1"])
def test_every_daemon_behind_tls_is_checked(url: str) -> None:
    found = trusted(parse_daemon_url(url))
    assert isinstance(found, ssl.SSLContext)
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "HTTP://localhost:1"])
def test_on_this_machine_without_tls_no_certificates_are_read(url: str) -> None:
    assert trusted(parse_daemon_url(url)) is False
