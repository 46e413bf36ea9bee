"""`ash-sb` as an agent types it, in a cage: what it sends, what it prints, how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.services import (
    Bridge,
    Desk,
    capability,
    operation,
    read_token,
    somebody,
)

# A host of one's own inside the cage: it notes every request and answers with an empty result.
RECORDER = """\
import json, socket, sys
answer = json.loads(sys.argv[1])
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    line, _ = server.accept()
    size = int.from_bytes(line.recv(4), "big")
    data = b""
    while len(data) < size:
        data += line.recv(size - len(data))
    with open("seen.jsonl", "ab") as file:
        file.write(data + b"\\n")
    request = json.loads(data)
    said = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}).encode()
    line.sendall(len(said).to_bytes(4, "big") + said)
    line.close()
"""
ANSWERS = (
    '{"ok": true, "capabilities": [{"id": "gog.email", "description": "Mail.", "available": true,'
    ' "requires_auth": true}, {"id": "gog.calendar", "description": "Dates.", "available": true,'
    ' "requires_auth": true}], "output": {}, "request_id": "cap_1", "flow_id": "caf_1",'
    ' "auth_url": "https://x.example", "expires_at": "2030-01-01T00:00:00Z", "flows": [],'
    ' "account_ref": "acct_1"}'
)
COMMANDS = {
    "list": "capability.list",
    "invoke -c gog.email -o list": "capability.invoke",
    "auth begin -c gog.email": "capability.auth.begin",
    "auth list": "capability.auth.list",
    "auth complete --flow-id caf_1 --code x": "capability.auth.complete",
    "auth complete-callback --code x": "capability.auth.complete_callback",
    "auth poll --flow-id caf_1": "capability.auth.poll",
    "auth cancel --flow-id caf_1": "capability.auth.cancel",
    "auth revoke -c gog.email --account a": "capability.auth.revoke",
}


@pytest.fixture(scope="module")
def post(module_path: Path) -> Bridge:
    ops = [operation("echo"), operation("ping", requires_auth=False)]
    plan = {"definitions": [capability("post.box", *ops), capability("post.other", *ops)]}
    return Bridge(module_path, "post", plan)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], post: Bridge) -> Desk:
    made = desks(post).open()
    made.project.write("recorder.py", RECORDER)
    return made


class Recorded:
    """What commands said to a host of the test's own."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def __call__(self, *commands: str, before: str = "") -> tuple[list[dict[str, Any]], str]:
        """Run commands one after the other; return the requests, and all that was printed."""
        lines = "; ".join(f'ash-sb capability {one} 2>&1; echo "rc=$?"' for one in commands)
        script = (
            f"rm -f seen.jsonl; python3 recorder.py '{ANSWERS}' >port & "
            "until [ -s port ]; do :; done; "
            'printf "token=%s\\n" "$ASH_CONTEXT_TOKEN"; '
            f'export ASH_RPC_HOST=127.0.0.1 ASH_RPC_PORT="$(cat port)"; {before} {lines}; '
            "rm -f port; kill %1"
        )
        said = str(self.desk.run(somebody(), script)["stdout"])
        file = self.desk.project.root / "seen.jsonl"
        seen = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(one) for one in seen], said


@pytest.fixture
def recorded(desk: Desk) -> Recorded:
    return Recorded(desk)


@whole("SC-TOK-09", "SC-CLI-05", "SC-AMB-01")
def test_every_command_sends_the_token_of_its_cage_without_being_told(recorded: Recorded) -> None:
    seen, said = recorded(*COMMANDS)
    found = re.search(r"token=(\S+)", said)
    assert found is not None
    token = found[1]
    assert read_token(token)[0]["typ"] == "ASH_CONTEXT"
    assert [one["method"] for one in seen] == list(COMMANDS.values())
    assert all(one["params"]["context_token"] == token for one in seen)
    # Without it every command says so, and asks nobody.
    unset = "unset ASH_CONTEXT_TOKEN; export KAGED_CONTEXT_TOKEN=x CONTEXT_TOKEN=x;"
    seen, said = recorded(*COMMANDS, before=unset)
    assert seen == []
    assert said.count("Error: ASH_CONTEXT_TOKEN is not set") == len(COMMANDS)
    assert said.count("rc=1") == len(COMMANDS)


@whole("SC-CLI-01", "SC-CLI-02", "SC-CLI-03", "SC-CLI-04")
@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("list", {"include_unavailable": False}),
        ("list --all", {"include_unavailable": True}),
        (
            """invoke --capability gog.email --operation list --input-json '{"a": [1]}'""",
            {"capability": "gog.email", "operation": "list", "input": {"a": [1]}},
        ),
        (
            "invoke --capability gog.email --operation list",
            {"capability": "gog.email", "operation": "list", "input": {}},
        ),
        (
            "invoke -c gog.email -o list --input-json '' --idempotency-key k --account acct_w",
            {
                "capability": "gog.email",
                "operation": "list",
                "input": {},
                "idempotency_key": "k",
                "account_ref": "acct_w",
            },
        ),
        ("auth begin --capability gog.email", {"capability": "gog.email"}),
        (
            "auth begin --capability gog.email --account work",
            {"capability": "gog.email", "account_hint": "work"},
        ),
        ("auth complete --flow-id caf_9 --code abc", {"flow_id": "caf_9", "code": "abc"}),
        (
            "auth complete --flow-id caf_9 --callback-url 'https://x/?code=a'",
            {"flow_id": "caf_9", "callback_url": "https://x/?code=a"},
        ),
        (
            "auth complete --flow-id caf_9 --callback-url 'https://x/?code=a' --code b",
            {"flow_id": "caf_9", "callback_url": "https://x/?code=a", "code": "b"},
        ),
    ],
)
def test_options_become_parameters_and_nothing_else_does(
    recorded: Recorded, command: str, wanted: dict[str, Any]
) -> None:
    [request], said = recorded(command)
    params = dict(request["params"])
    params.pop("context_token")
    if "idempotency_key" not in wanted and "invoke" in command:
        assert params.pop("idempotency_key").startswith("ash-")
    assert params == wanted
    assert "rc=0" in said
    if command == "list":
        assert "gog.email" in said
        assert "gog.calendar" in said


@whole("SC-CLI-02", "SC-CLI-04", "SC-CLI-08", "SC-AMB-27")
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("invoke --operation list", 2, "--capability"),
        ("invoke --capability gog.email", 2, "--operation"),
        ("invoke -c gog.email -o list --input-json '[1]'", 1, "must be a JSON object"),
        ("invoke -c gog.email -o list --input-json 5", 1, "must be a JSON object"),
        ("invoke -c gog.email -o list --input-json '{'", 1, "not valid JSON"),
        ("invoke -c gog.email -o list --nonsense", 2, "--nonsense"),
        ("auth complete --flow-id caf_1", 1, "--callback-url"),
        ("auth complete --code x", 2, "--flow-id"),
        ("auth begin", 2, "--capability"),
        ("auth", 2, "Usage"),
        ("nonsense", 2, "nonsense"),
    ],
)
def test_what_makes_no_sense_ends_before_anybody_is_asked(
    recorded: Recorded, command: str, code: int, said: str
) -> None:
    seen, shown = recorded(command)
    assert seen == []
    assert f"rc={code}" in shown
    assert said in shown
    if code == 1:
        assert "Error: " in shown


@whole("SC-CLI-06")
def test_no_variable_with_a_credential_is_read_or_sent(recorded: Recorded) -> None:
    marker = "ya29.marker-credential"
    names = ("GOOGLE_ACCESS_TOKEN", "GOG_TOKEN", "ASH_ACCESS_TOKEN", "OAUTH_TOKEN", "API_KEY")
    export = "".join(f"export {name}={marker};" for name in names)
    with_them, said = recorded(*COMMANDS, before=export)
    without, _ = recorded(*COMMANDS)
    assert len(with_them) == len(COMMANDS)
    assert marker not in json.dumps(with_them)
    assert marker not in said
    for one, other in zip(with_them, without, strict=True):
        changing = {"context_token", "idempotency_key"}
        first, second = (
            {key: value for key, value in dict(two["params"]).items() if key not in changing}
            for two in (one, other)
        )
        assert first == second


@whole("SC-CLI-07")
def test_the_program_is_the_standard_library_and_the_guests_part_alone(desk: Desk) -> None:
    """No module of the host is even there, and no file of the vault is."""
    trace = (
        'file=$(command -v ash-sb); sed -n 2p "$file"; '
        "python3 -ISX importtime /opt/kaged/ash/lib/ash_sb.py capability list 2>&1 >/dev/null"
        " | sed 's/.*| *//' | sort -u; echo ---;"
        " find / -name '*.key' -o -name '*vault*' 2>/dev/null"
        " | grep -v -e ^/proc -e ^/usr -e ^/sys; find /opt/kaged -name '*.py'; true"
    )
    said = desk.run(somebody(), trace)["stdout"]
    loaded, _, files = said.partition("---\n")
    ours = {one for one in loaded.split() if one.startswith("kaged")}
    assert ours <= {
        *("kaged", "kaged.sandbox", "kaged.sandbox.main", "kaged.sandbox.arguments"),
        *("kaged.sandbox.channel", "kaged.sandbox.commands", "kaged.sandbox.lines"),
    }
    assert "kaged.sandbox.channel" in ours
    assert all(
        "/lib/kaged/sandbox/" in one or one.endswith(("/kaged/__init__.py", "/ash_sb.py"))
        for one in files.split()
    )
    foreign = {"httpx", "pydantic", "msgspec", "sqlite3", "structlog", "cryptography"}
    assert foreign.isdisjoint(one.split(".")[0] for one in loaded.split())


@whole("SC-AMB-27", "SC-CLI-09", "SC-AMB-28")
def test_answers_go_to_standard_output_and_refusals_to_standard_error(desk: Desk) -> None:
    ann = somebody()
    code, out, err = desk.ash(ann, "list")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Capabilities:",
        "- post.box: Things of post.box.",
        "  Available: yes",
        "  Authenticated: no",
        "  Operations: echo, ping",
        "- post.other: Things of post.other.",
        "  Available: yes",
        "  Authenticated: no",
        "  Operations: echo, ping",
        "Total: 2 capability(ies)",
    ]
    code, out, err = desk.ash(ann, "invoke", "-c", "post.box", "-o", "echo")
    assert (code, out) == (1, "")
    assert err.startswith("Error: capability_auth_required: ")
    code, out, err = desk.ash(ann, "invoke", "-c", "post.box", "-o", "echo", "--json")
    assert (code, out) == (1, "")
    assert json.loads(err)["error"]["code"] == "capability_auth_required"
    assert len(err.splitlines()) == 1
    code, out, err = desk.ash(ann, "auth", "begin", "-c", "post.box", "--account", "work")
    assert (code, err) == (0, "")
    found = re.fullmatch(
        r"Started capability auth flow \(flow_id=(caf_[0-9a-f]+)\)\n"
        r"Capability: post\.box\n"
        r"Auth URL: https://login\.example/authorize\n"
        r"Flow type: authorization_code\n"
        r"Expires: \d{4}-\d\d-\d\dT[\d:.]+Z\n",
        out,
    )
    assert found is not None, out
    flow = found[1]
    code, out, err = desk.ash(ann, "auth", "list")
    assert code == 0
    assert flow in out
    code, out, err = desk.ash(ann, "auth", "complete", "--flow-id", flow, "--code", "x")
    assert (code, err) == (0, "")
    assert out == f"Capability auth completed (flow_id={flow}, account_ref=acct_work)\n"
    code, out, err = desk.ash(
        *(ann, "invoke", "-c", "post.box", "-o", "echo", "--input-json", '{"n": 1}'),
        *("--account", "acct_work", "--idempotency-key", "k-1", "--json"),
    )
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1
    output = json.loads(out)["output"]
    assert (output["input"], output["account"], output["key"]) == ({"n": 1}, "acct_work", "k-1")
    code, out, err = desk.ash(ann, "invoke", "-c", "post.box", "-o", "ping", "--input-json", "")
    assert (code, err) == (0, "")
    code, out, err = desk.ash(ann, "auth", "revoke", "-c", "post.box", "--account", "acct_work")
    assert code == 0
    assert desk.accounts(ann.user) == []
    code, out, err = desk.ash(ann, "invoke", "-c", "post.box")
    assert (code, out) == (2, "")
    assert "Usage: ash-sb capability invoke" in err
