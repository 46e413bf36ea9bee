"""What pip was told about indexes is told to uv whole, or pip installs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from fast_install import lines_of, read_settings, told  # noqa: E402 - path set just above

LISTED = """\
global.index-url='https://first.example/simple'
global.timeout='10'
install.index-url='https://second.example/simple'
download.no-binary=':all:'
:env:.extra-index-url='https://a.example/simple\\nfile:///srv/b'
:env:.find-links='/one /two'
:env:.cert='/etc/ca.pem'
:env:.timeout='180'
"""


def test_the_setting_that_counts_is_told_in_the_other_words() -> None:
    assert told(read_settings(LISTED)) == {
        "UV_DEFAULT_INDEX": "https://second.example/simple",
        "UV_INDEX": "https://a.example/simple file:///srv/b",
        "UV_FIND_LINKS": "/one,/two",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_HTTP_TIMEOUT": "180",
    }


def test_without_settings_there_is_nothing_to_tell() -> None:
    assert told(read_settings("")) == {}
    assert told({"no-cache-dir": "1", "retries": "9"}) == {}


@pytest.mark.parametrize("key", ["no-index", "client-cert", "no-binary", "constraint", "pre"])
def test_a_setting_without_a_word_for_it_leaves_all_to_pip(key: str) -> None:
    assert told({"index-url": "https://first.example/simple", key: "1"}) is None


def test_of_a_lock_the_lines_of_one_package_are_taken_with_its_hashes() -> None:
    uv = "uv==2 \\\n    --hash=sha256:11 \\\n    --hash=sha256:22"
    lock = f"uv-build==1 \\\n    --hash=sha256:00\n{uv}\nx==3\n"
    assert lines_of("uv", lock) == uv
    assert lines_of("nothing", lock) == ""
    own = lines_of("uv", (ROOT / "requirements-dev.lock").read_text(encoding="utf-8"))
    assert own.count("--hash=sha256:") > 5
