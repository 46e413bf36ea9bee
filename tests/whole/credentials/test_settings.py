"""Every setting of a credential, through the front door: what it does, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from whole.harness.keys import CONFIG, Keys, out

FULL = """\
[credentials.full]
hosts = ["full.example"]
place = ["header:X-Api-Key", "query:key", "basic-user"]
paths = ["/simple/**"]
methods = ["GET", "HEAD"]
body_bytes = 1000
requests_per_minute = 60
user = "ann"
keyring = "service/user"
as = { env = ["FULL_KEY"], files = ["pip"] }

[credentials.full.for]
projects = ["shop"]
agents = ["primary"]
people = ["*"]
skills = []
mcp = []
"""


def show(keys: Keys, name: str) -> str:
    return keys.daemon.cli("credential", "show", name).out


def test_every_setting_is_taken_and_said_in_words(keys: Keys) -> None:
    keys.configure(CONFIG + FULL)
    said = show(keys, "full")
    assert (
        "at full.example:443, as the header x-api-key, the query parameter key, user name" in said
    )
    assert "for these requests only: GET,HEAD /simple/**" in said
    assert "its value comes from: keyring" in said
    if "full: missing" not in said:  # where the optional library is not installed
        assert "full: failed" in said
        assert "credential_keyring_failed" in keys.daemon.log()
    shop = keys.project("shop", "full")
    assert "https://ann:kgd_" in out(shop, "cat $PIP_CONFIG_FILE")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('hosts = ["*"]', "credential_too_wide"),
        ('hosts = ["a.example"]\nplace = "cookie"', "credential_place_invalid"),
        ('hosts = ["a.example"]\nplace = "header:Host"', "credential_binding_invalid"),
        ('hosts = ["a.example"]\nrules = ["everything"]', "credential_rule_invalid"),
        ('hosts = ["a.example"]\nrules = ["GET repos"]', "credential_pattern_invalid"),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence_and_stops_nothing_else(
    keys: Keys, line: str, code: str
) -> None:
    keys.configure(CONFIG + f"[credentials.wrong]\n{line}\n")
    assert keys.daemon.get("/credentials/wrong")["state"] == "invalid"
    assert keys.daemon.get("/credentials/github")["state"] == "set"
    (row,) = [one for one in keys.daemon.get("/doctor")["rows"] if one["id"] == "credentials"]
    assert row["status"] == "fail"
    problem = keys.daemon.get("/credentials/wrong")["problems"][0]
    assert problem["code"] == code


def test_errors_of_the_commands_have_stable_codes(keys: Keys) -> None:
    error = keys.daemon.error
    assert error("GET", "/credentials/none")["code"] == "credential_not_found"
    put = error("PUT", "/credentials/github/value", {"value": "x"})
    assert put["code"] == "credential_source_fixed"
    path = error("POST", "/credentials/github/test", {"path": "/a/../b"})
    assert path["code"] == "credential_path_invalid"
    again = keys.daemon.cli(
        "credential", "add", "github", "--host", "a.example", stdin="x\n", code=None
    )
    assert "credential_exists" in again.err


class TokenServer:
    """A token endpoint that rotates refresh tokens, on loopback."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.status = 200
        outer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.asked.append({key: one[0] for key, one in parse_qs(body).items()})
                number = len(outer.asked)
                token = {"access_token": f"access-{number}", "expires_in": 3600}
                token["refresh_token"] = f"refresh-{number}"
                data = json.dumps(token if outer.status == 200 else {}).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    """Yield a token endpoint."""
    made = TokenServer()
    yield made
    made.close()


def test_an_oauth_client_renews_its_token_and_keeps_the_rotated_one(
    keys: Keys, tokens: TokenServer
) -> None:
    section = (
        '[credentials.cloud]\nhosts = ["cloud.example"]\n[credentials.cloud.oauth]\n'
        f'token_url = "{tokens.url}"\nclient_id = "kaged"\nclient_secret = "cloud"\n'
        'scopes = ["read"]\n'
    )
    local = (
        '[credentials.github]\nvalue = "${GITHUB_VALUE}"\n[secrets]\ncloud = "s3cret-of-client"\n'
    )
    keys.configure(CONFIG + section, local)
    assert "cloud: missing" in show(keys, "cloud")
    keys.daemon.cli("credential", "set", "cloud", stdin="refresh-0\n")
    assert "cloud: set" in show(keys, "cloud")
    asked = tokens.asked[0]
    assert (asked["refresh_token"], asked["client_secret"]) == ("refresh-0", "s3cret-of-client")
    assert len(tokens.asked) == 1  # the token that it got is used again
    keys.daemon.restart()
    assert "cloud: set" in show(keys, "cloud")
    assert len(tokens.asked) == 1
    tokens.status = 400
    keys.daemon.cli("credential", "set", "cloud", stdin="refresh-bad\n")
    said = show(keys, "cloud")
    assert "cloud: failed" in said
    assert "credential_token_refused" in keys.daemon.log()
    assert "s3cret-of-client" not in said + keys.daemon.log()
