"""Real programs, unmodified, in a daemon's cage, with a placeholder for a key."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.bound_server import BoundServer
from whole.harness.daemon import Daemon, wait_for
from whole.harness.keys import VALUE, Keys, out
from whole.harness.model import ModelServer
from whole.harness.project import Project

SECTION = """\
[credentials.host]
hosts = ["localhost:{port}"]
ca_file = "{ca_file}"
place = ["bearer", "basic:x-access-token", "header:X-Api-Key"]
{rules}
as = {{ env = ["API_KEY", "GITHUB_TOKEN", "OPENAI_API_KEY"], files = ["netrc", "npmrc", "pip"] }}
for = {{ projects = ["shop"] }}
"""
LOADED = """
import sys, httpx, openai, requests
httpx.Client(), openai.OpenAI(api_key="x").chat.completions, requests.Session()
print(*{name.partition(".")[0] for name in sys.modules})
"""
LOCAL = '[credentials.host]\nvalue = "${HOST_VALUE}"\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BoundServer]:
    """Return a server that wants the value."""
    made = BoundServer(tmp_path / "outside", VALUE)
    yield made
    made.close()


def section(server: BoundServer, rules: str = "") -> str:
    """Return the operator's section that binds the credential to a server."""
    return SECTION.format(port=server.port, ca_file=server.ca_file, rules=rules)


@pytest.fixture
def keys(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path, server: BoundServer
) -> Keys:
    """Return a running daemon with the credential `host`."""
    local = model.local_toml()
    daemon = own(config=section(server), local=local + LOCAL, env={"HOST_VALUE": VALUE})
    daemon.start()
    return Keys(daemon, local, tmp_path)


@pytest.fixture
def shop(keys: Keys) -> Project:
    """Return a project whose agents ask for the credential, and see the tests' Python."""
    return keys.project("shop", "host")


def test_curl_gets_in_and_sees_only_the_placeholder(
    keys: Keys, shop: Project, server: BoundServer
) -> None:
    said = out(
        shop,
        f'curl -sS -D- -H "Authorization: Bearer $API_KEY" {server.url}/echo; '
        f'curl -sS -X POST -H "X-Api-Key: $API_KEY" -d a=b {server.url}/echo; '
        f"curl -sS -n {server.url}/echo; "
        f'curl -sS -T /etc/services -H "Authorization: Bearer $API_KEY" {server.url}/echo',
    )
    assert said.count("HTTP/1.1 200") == 1, said
    assert [one.method for one in server.seen if one.headers.get("authorization")] == [
        "GET",
        "GET",
        "PUT",
    ]
    assert server.seen[0].headers["authorization"] == f"Bearer {VALUE}"
    assert server.seen[1].headers["x-api-key"] == VALUE
    assert "*" * len(VALUE) in said
    assert VALUE not in said
    assert base64.b64encode(f"x-access-token:{VALUE}".encode()).decode()[24:-4] not in said
    wait_for(lambda: len(keys.daemon.audit("cage.net.connected")) >= 4)
    connected = keys.daemon.audit("cage.net.connected")[0]["data"]
    assert (connected["host"], connected["port"]) == ("localhost", server.port)
    assert connected["bytes_up"] > 500
    used = [row["data"] for row in keys.daemon.audit("credential.used")]
    assert {(row["name"], row["method"], row["path"]) for row in used} >= {
        ("host", "GET", "/echo"),
        ("host", "POST", "/echo"),
    }
    assert VALUE not in str(keys.daemon.audit()) + keys.daemon.log()


def test_git_clones_and_pushes_where_the_rules_allow(
    keys: Keys, shop: Project, server: BoundServer
) -> None:
    bare = server.repository("app")
    rules = 'rules = ["git fetch /git/app.git", "git push agent/* /git/app.git"]'
    keys.configure(section(server, rules), LOCAL)
    said = out(
        shop,
        f"git clone -q {server.url}/git/app.git 2>&1; cd app; "
        "git -c user.name=a -c user.email=a@b.test commit -q --allow-empty -m second; "
        "git push -q origin HEAD:agent/one 2>&1 && echo pushed; "
        "git push -q origin HEAD:main 2>&1 || echo not pushed to main; "
        f"git ls-remote {server.url}/git/other.git 2>&1 || echo no other",
    )
    assert "pushed\nerror" in said or "pushed\nfatal" in said or "pushed\n" in said, said
    assert "not pushed to main" in said
    assert "no other" in said
    refs = subprocess.run(
        ["git", "-C", bare, "for-each-ref", "--format=%(refname) %(subject)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert refs == "refs/heads/agent/one second\nrefs/heads/main first\n"
    rules_seen = {row["data"]["rule"] for row in keys.daemon.audit("credential.refused")}
    assert rules_seen == {"credential.git.ref", "credential.rule"}


def test_python_clients_and_a_model_sdk_get_in(shop: Project, server: BoundServer) -> None:
    # An agent sees its project only, so the clients stand there.
    site = next(Path(one) for one in sys.path if one.endswith("site-packages"))
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True)
    for name in loaded.stdout.decode().split():
        if (site / name).is_dir():
            for folder in (site / name, *site.glob(f"{name}-*.dist-info")):
                shutil.copytree(folder, shop.root / "lib" / folder.name)
        elif (site / f"{name}.py").is_file():
            shop.write(f"lib/{name}.py", (site / f"{name}.py").read_bytes())
    shop.write(
        "clients.py",
        f"""
import os, urllib.request
import httpx, openai, requests
key, url = os.environ["API_KEY"], "{server.url}"
headers = {{"Authorization": "Bearer " + key}}
print(urllib.request.urlopen(urllib.request.Request(url + "/a", headers=headers)).read())
print(requests.get(url + "/b", headers=headers).text)
with requests.Session() as session:
    print([session.get(url + "/c", headers=headers).status_code for _ in range(3)])
print(httpx.get(url + "/d", headers=headers).text)
model = openai.OpenAI(base_url=url + "/v1")
stream = model.chat.completions.create(
    model="m", stream=True, messages=[{{"role": "user", "content": "hi"}}])
print("".join(one.choices[0].delta.content or "" for one in stream))
""",
    )
    said = out(shop, "PYTHONPATH=lib python3 clients.py 2>&1")
    assert said == "b'ok\\n'\nok\n\n[200, 200, 200]\nok\n\nHello from outside\n", said
    basic = base64.b64encode(f"x-access-token:{VALUE}".encode()).decode()
    # requests prefers what ~/.netrc says.
    assert set(server.keys_seen()) == {f"Bearer {VALUE}", f"Basic {basic}"}
    assert len(server.seen) == 7


def test_pip_installs_from_an_index_that_wants_the_key(shop: Project, server: BoundServer) -> None:
    said = out(
        shop,
        "python3 -m pip --version >/dev/null 2>&1 || exit 9; "
        "python3 -m pip install -q --no-input --disable-pip-version-check --target out small 2>&1; "
        "PYTHONPATH=out python3 -c 'import small; print(small.SAID)'",
    )
    assert said.endswith("installed\n"), said
    assert any(one.path.endswith(".whl") for one in server.seen)


def test_npm_installs_from_a_registry_that_wants_the_key(
    shop: Project, server: BoundServer
) -> None:
    said = out(
        shop,
        f"npm install --no-audit --no-fund --registry {server.url}/ small 2>&1; "
        "node -e \"console.log(require('small'))\"",
    )
    assert said.endswith("installed\n"), said
    assert VALUE not in said


def test_node_fetches(shop: Project, server: BoundServer) -> None:
    shop.write(
        "fetch.mjs",
        f"const got = await fetch('{server.url}/plain',"
        " {headers: {authorization: `Bearer ${process.env.API_KEY}`}});\n"
        "console.log(got.status, await got.text());\n",
    )
    assert out(shop, "node fetch.mjs") == "200 ok\n\n"
    assert server.keys_seen() == [f"Bearer {VALUE}"]


def test_go_gets_in(shop: Project, server: BoundServer) -> None:
    shop.write(
        "main.go",
        f"""package main

import ("fmt"; "io"; "net/http"; "os")

func main() {{
    ask, _ := http.NewRequest("GET", "{server.url}/plain", nil)
    ask.Header.Set("Authorization", "Bearer " + os.Getenv("API_KEY"))
    got, err := http.DefaultClient.Do(ask)
    if err != nil {{ fmt.Println(err); return }}
    body, _ := io.ReadAll(got.Body)
    fmt.Print(got.StatusCode, " ", string(body))
}}
""",
    )
    subprocess.run(
        ["go", "build", "-o", "ask", "main.go"],
        cwd=shop.root,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(shop.root), "GOFLAGS": "-mod=mod"},
    )
    assert out(shop, "./ask") == "200 ok\n"
    assert server.keys_seen() == [f"Bearer {VALUE}"]


def test_what_is_refused_says_so_to_the_program_and_to_the_operator(
    keys: Keys, shop: Project, server: BoundServer
) -> None:
    said = out(
        shop,
        f'curl -sS -i -H "X-Other: $API_KEY" {server.url}/echo; '
        f'curl -sS -i -d "$API_KEY" {server.url}/echo',
    )
    assert said.count("HTTP/1.1 403") == 2
    assert said.count("kaged-refused: credential.") == 2
    assert "send a placeholder by itself" in said
    assert server.seen == []
    wait_for(lambda: len(keys.daemon.audit("credential.refused")) >= 2)
    rows = [row["data"] for row in keys.daemon.audit("credential.refused")]
    assert {row["rule"] for row in rows} == {"credential.place", "credential.body"}
    assert all(row["what"] == "shell primary" for row in rows)


def test_a_client_that_trusts_others_only_is_told_about(
    keys: Keys, shop: Project, server: BoundServer
) -> None:
    shop.write("other.pem", server.ca_file.read_bytes())
    said = out(shop, f"curl -sS --cacert other.pem {server.url}/echo 2>&1 || echo refused")
    assert "refused" in said
    wait_for(lambda: bool(keys.daemon.audit("credential.client_refused_certificate")))
    (row,) = keys.daemon.audit("credential.client_refused_certificate")
    assert row["data"]["host"] == "localhost"
    assert server.seen == []


def test_a_server_whose_certificate_is_not_right_gets_nothing(
    keys: Keys, shop: Project, tmp_path: Path
) -> None:
    wrong = BoundServer(tmp_path / "wrong", VALUE, trusted=False)
    try:
        keys.configure(section(wrong), LOCAL)
        ask = f'curl -sS -i -H "Authorization: Bearer $API_KEY" {wrong.url}/echo'
        said = out(shop, ask)
    finally:
        wrong.close()
    assert "HTTP/1.1 502" in said
    assert "The certificate of localhost" in said
    assert wrong.seen == []


def test_another_cages_placeholder_and_a_removed_grant_open_nothing(
    keys: Keys, shop: Project, server: BoundServer
) -> None:
    first = out(shop, "echo $API_KEY").strip()
    said = out(shop, f'curl -sS -i -H "Authorization: Bearer {first}" {server.url}/echo')
    assert "HTTP/1.1 403" in said
    assert "credential.foreign" in said
    assert server.seen == []
