"""What a cage sees of a credential: placeholders of its own, and the value nowhere."""

from __future__ import annotations

import re

import httpx

from whole.harness.keys import CONFIG, VALUE, Keys, out

PLACEHOLDER = re.compile(r"kgd_[a-z2-7]{32}")
CODER = "primary.subagents.coder"
READER = "primary.subagents.reader"


def test_programs_find_a_placeholder_where_they_look_for_the_value(keys: Keys) -> None:
    shop = keys.project("shop", "github")
    found = out(
        shop,
        'echo "$GITHUB_TOKEN $GH_TOKEN"; cat ~/.netrc "$NETRC" "$NPM_CONFIG_USERCONFIG" '
        '"$PIP_CONFIG_FILE"; git config --get-regexp "credential.*"; '
        "printf 'protocol=https\\nhost=github.example\\n\\n' | git credential fill",
    )
    assert len(set(PLACEHOLDER.findall(found))) == 1
    (mark,) = set(PLACEHOLDER.findall(found))
    assert f"{mark} {mark}\n" in found
    assert f"machine github.example login x-access-token password {mark}\n" in found
    assert f"//api.github.example:8443/:_authToken={mark}\n" in found
    assert f"index-url = https://x-access-token:{mark}@github.example/simple/" in found
    assert f"username=x-access-token\npassword={mark}\n" in found.replace("\r\n", "\n")


def test_the_value_is_nowhere_in_the_cage(keys: Keys) -> None:
    shop = keys.project("shop", "github")
    seen = out(
        shop,
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; "
        "find /tmp /run /etc /opt -type f 2>/dev/null | xargs cat 2>/dev/null | strings -n 8; "
        "cat ~/.netrc; cat /proc/self/mountinfo /proc/1/cmdline",
    )
    assert PLACEHOLDER.search(seen)
    assert VALUE not in seen
    assert VALUE[:12] not in seen
    assert VALUE not in keys.daemon.log()
    assert VALUE not in str(keys.daemon.audit())


def test_nothing_is_left_in_the_project_and_a_cage_cannot_change_its_files(keys: Keys) -> None:
    shop = keys.project("shop", "github")
    said = out(shop, 'echo x > "$NETRC"; rm -f ~/.netrc "$NETRC"; cat "$NETRC" ~/.netrc')
    assert said.count("machine github.example login") == 2, said
    assert not list(shop.root.rglob("*netrc*"))


def test_each_cage_and_each_agent_has_a_placeholder_of_its_own(keys: Keys) -> None:
    shop, other = keys.project("shop", "github"), keys.project("other", "github")
    marks = [
        out(project, "echo $GITHUB_TOKEN", agent).strip()
        for project, agent in ((shop, "primary"), (shop, "primary"), (shop, CODER), (other, CODER))
    ]
    assert all(PLACEHOLDER.fullmatch(one) for one in marks)
    assert len(set(marks)) == len(marks)


def test_the_project_asks_and_the_operator_grants_and_neither_alone_is_enough(keys: Keys) -> None:
    shop, quiet = keys.project("shop", "github"), keys.project("other")
    stranger = keys.project("stranger", "github")
    assert PLACEHOLDER.search(out(shop, "echo [$GITHUB_TOKEN]"))
    assert "[]" in out(quiet, "echo [$GITHUB_TOKEN]")  # granted, and does not ask
    assert "[]" in out(stranger, "echo [$GITHUB_TOKEN]")  # asks, and is not granted
    assert "[]" in out(shop, "echo [$GITHUB_TOKEN]", READER)  # another agent of that project
    out(stranger, "true")
    (row,) = keys.daemon.audit("credential.not_granted", what="shell primary")[:1]
    assert row["data"]["name"] == "github"
    assert "this project" in row["data"]["reason"]
    told = [one["data"]["what"] for one in keys.daemon.audit("credential.not_granted")]
    assert told == ["shell primary", f"shell {READER}"]  # each once, however often it asks


def test_a_grant_that_is_taken_away_is_gone_at_the_next_command(keys: Keys) -> None:
    shop = keys.project("shop", "github")
    assert PLACEHOLDER.search(out(shop, "echo $GITHUB_TOKEN"))
    keys.configure(CONFIG.replace('"shop", ', ""))
    assert "[]" in out(shop, "echo [$GITHUB_TOKEN]; test -e ~/.netrc && echo there")
    keys.configure(CONFIG)
    assert PLACEHOLDER.search(out(shop, "echo $GITHUB_TOKEN"))


def test_bound_hosts_are_network_grants_for_that_host_and_port_alone(keys: Keys) -> None:
    shop = keys.project("shop", "github")
    said = out(shop, "cat /etc/hosts")
    assert "github.example" in said
    assert "api.github.example" in said
    started = keys.daemon.audit("cage.started")[-1]["data"]
    assert started["network"] == ["api.github.example:8443", "github.example:443"]


def test_a_credential_is_part_of_what_the_project_asks_to_be_trusted_with(keys: Keys) -> None:
    shop = keys.project("shop")
    text = shop.read(".kaged/project.yaml").replace("credentials: []", "credentials: [github]", 1)
    shop.write(".kaged/project.yaml", text)
    keys.daemon.post(f"/projects/{shop.id}/reload", {})
    view = keys.daemon.get(f"/projects/{shop.id}")
    assert view["trusted"] is False
    asked = str(view["ask"])
    assert "may use your credential github in its cage, without seeing it" in asked


def test_a_credential_of_one_person_is_not_in_what_agents_do_for_others(keys: Keys) -> None:
    keys.configure(CONFIG.replace("for = {", 'for = { people = ["service:robot"],'))
    shop = keys.project("shop", "github")

    def told(name: str) -> str:
        made = keys.daemon.post("/service-accounts", {"name": name, "expires_in_s": 600})
        url = f"{keys.daemon.url}/api/v1/projects/{shop.id}/tools/call"
        params = {"command": "echo [$GITHUB_TOKEN]"}
        body = {"agent": "primary", "tool": "shell.bash", "params": params}
        headers = {"Authorization": f"Bearer {made['token']}"}
        got = httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60)
        return str(got.json()["result"]["stdout"])

    assert PLACEHOLDER.search(told("robot"))
    assert "[]" in told("another")
    assert "[]" in out(shop, "echo [$GITHUB_TOKEN]")  # the operator is not that person either
    said = keys.daemon.cli("cage", "explain", "primary", "--project", str(shop.root)).out
    assert "has github only while it acts for service:robot" in said
