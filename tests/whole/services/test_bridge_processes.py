"""What a bridge is: the operator's own program, started by the host, with what it was given.

Its requests, the token in them, its environment, its cage; and that no cage of an agent reaches it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import wait_for
from whole.harness.services import (
    GUESTS,
    PYTHON,
    Bridge,
    Desk,
    capability,
    code_of,
    invoking,
    operation,
    read_token,
    result_of,
    somebody,
    step,
)

EXAMPLE = Path(__file__).parents[3] / "plugins" / "examples" / "letters-bridge" / "bridge.py"
SYSTEM_PYTHON = ["/usr/bin/python3", "-I"]
IDENTITY_KEYS = {
    *("user_id", "chat_id", "chat_type", "thread_id", "session_key", "context", "provider"),
    *("source_username", "source_display_name", "username"),
}
HOST = {
    "OPENAI_API_KEY": "sk-hosts-own-api-key-000000",
    "ASH_CONTEXT_TOKEN_SECRET": b"the-hosts-own-signing-key-of-32b".hex(),
    "POSTING_REGION": "north",
    "UNRELATED": "private to the host",
    "LC_ALL": "C.UTF-8",
    "USER": "the-operator",
    "PYTHONPATH": "/nowhere",
}
LOOK = """\
import json, os, socket, sys
from pathlib import Path
r = json.load(sys.stdin)
def look():
    found = {}
    for name in ("outside", "granted"):
        try:
            found[name] = Path(os.environ[name.upper()]).read_text()
        except OSError as error:
            found[name] = type(error).__name__
    try:
        socket.create_connection(("127.0.0.1", int(os.environ["LISTENER"])), 2).close()
        found["net"] = "open"
    except OSError:
        found["net"] = "refused"
    return found
ops = [{"name": "look", "description": "Look.", "requires_auth": False}]
offered = [{"id": r["namespace"] + ".look", "description": "Look.", "operations": ops}]
result = {"definitions": offered} if r["method"] == "definitions" else {"output": look()}
print(json.dumps({"version": 1, "id": r["id"], "result": result}))
"""


@pytest.fixture(scope="module")
def post(module_path: Path) -> Bridge:
    plan = {
        "definitions": [
            capability("post.box", operation("echo"), operation("send", mutating=True))
        ],
        "begin": {"flow_state": {"user_id": "its own", "n": 1}},
    }
    return Bridge(
        module_path,
        "post",
        plan,
        env={"LETTERS": "here", "ASH_CONTEXT_TOKEN_SECRET": "mine", "ASH_CONTEXT_TOKEN": "mine"},
        env_prefixes=["POSTING_"],
    )


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture(scope="module")
def bridges(module_path: Path, post: Bridge, listener: int) -> dict[str, Bridge]:
    granted = module_path / "granted"
    granted.mkdir()
    (granted / "look.py").write_text(LOOK, encoding="utf-8")
    (granted / "file.txt").write_text("inside", encoding="utf-8")
    (module_path / "outside.txt").write_text("OUTSIDE", encoding="utf-8")
    env = {
        "OUTSIDE": str(module_path / "outside.txt"),
        "GRANTED": str(granted / "file.txt"),
        "LISTENER": str(listener),
    }
    looking = [*SYSTEM_PYTHON, str(granted / "look.py")]
    folder = {"fs": [{"mode": "ro", "path": str(granted)}]}
    guests = {"fs": [{"mode": "ro", "path": str(GUESTS)}]}
    flags = module_path / "flags"
    flags.mkdir()
    guests["fs"].append({"mode": "ro", "path": str(flags)})
    ready = {"BRIDGE_READY": str(flags / "ready")}
    made = [
        post,
        Bridge(module_path, "caged", env=env, command=looking, cage=folder),
        Bridge(module_path, "loose", env=env, command=looking),
        Bridge(module_path, "first", command=[*PYTHON, str(GUESTS / "bridge_g1.py")]),
        Bridge(module_path, "second", command=[*PYTHON, str(GUESTS / "bridge_g2.py")], env=ready),
        Bridge(
            module_path,
            "insider",
            command=[*SYSTEM_PYTHON, str(GUESTS / "bridge_g2.py")],
            cage=guests,
            env=ready,
        ),
        Bridge(
            module_path,
            "stays",
            command=[*PYTHON, str(GUESTS / "bridge_g2.py")],
            mode="persistent",
            env=ready,
        ),
    ]
    return {one.name: one for one in made}


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], bridges: dict[str, Bridge]) -> Desk:
    return desks(*bridges.values(), env=HOST).open()


@pytest.fixture(scope="module")
def walked(desk: Desk, post: Bridge) -> list[dict[str, Any]]:
    """Everything that a person can do with an account, once; what the bridge saw of it."""
    ann = somebody()
    lies: dict[str, Any] = {
        "user_id": "bob",
        "chat_id": "elsewhere",
        "context": {"user_id": "bob"},
    }
    answers = desk.asks(
        ann,
        step("list", **lies),
        step("auth.begin", capability="post.box", account_hint="work", **lies),
        step("auth.complete", flow_id={"$": [1, "flow_id"]}, code="ok", **lies),
        invoking("post.box", input={"n": 1}, **lies),
        invoking("post.box", "send", input={"n": 2}, idempotency_key="k", **lies),
        step("list"),
        step("auth.revoke", capability="post.box", account_ref="acct_work", **lies),
    )
    for one in answers:
        result_of(one)
    return post.log()


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


@whole("SC-BRG-01", "SC-BRG-02")
def test_a_bridge_is_asked_in_one_envelope_and_for_what_was_done_only(
    desk: Desk, walked: list[dict[str, Any]], post: Bridge
) -> None:
    assert [one["request"]["method"] for one in walked] == [
        "definitions",
        "auth_begin",
        "auth_complete",
        "invoke",
        "invoke",
        "auth_revoke",
    ]
    ann = somebody()
    desk.link(ann, "post.box")
    desk.asks(ann, *[invoking("post.box")] * 20)
    requests = [one["request"] for one in post.log()]
    for one in requests:
        assert set(one) == {"version", "id", "namespace", "method", "params"}
        assert type(one["version"]) is int
        assert one["version"] == 1
        assert re.fullmatch(r"cap_bridge_[0-9a-z]+", one["id"])
        assert one["namespace"] == "post"
        assert isinstance(one["params"], dict)
    assert len({one["id"] for one in requests}) == len(requests) >= 28


@whole("SC-BRG-11", "SC-AMB-12", "SC-BRG-12", "SC-BRG-13")
def test_every_request_but_the_first_brings_a_token_that_the_bridge_can_check(
    walked: list[dict[str, Any]], desk: Desk
) -> None:
    """This bridge refuses what its key does not fit; `kaged bridge claims` agrees with it."""
    assert walked[0]["request"]["params"] == {}
    for one in walked[1:6]:
        token = one["request"]["params"]["context_token"]
        claims = read_token(token)[1]
        assert claims["sub"].startswith("person-")
        assert claims["aud"] == "bridge:post"
    for one in (walked[1], walked[2], walked[3], walked[5]):
        done = desk.daemon.cli(
            *("bridge", "claims", "-n", "post"),
            stdin=one["request"]["params"]["context_token"],
            env={"ASH_CONTEXT_TOKEN_SECRET": one["env"]["ASH_CONTEXT_TOKEN_SECRET"]},
        )
        assert done.json["sub"].startswith("person-")
    # Each call's token is its own.
    tokens = [one["request"]["params"]["context_token"] for one in walked[1:6]]
    assert len(set(tokens)) == 5


@whole("SC-BRG-14")
@pytest.mark.parametrize("method", ["auth_begin", "auth_complete", "invoke", "auth_revoke"])
def test_no_request_says_in_plain_words_who_calls(
    desk: Desk, walked: list[dict[str, Any]], method: str
) -> None:
    assert desk.daemon.get("/status")
    found = [one["request"] for one in walked if one["request"]["method"] == method]
    assert found
    for one in found:
        rest = {
            key: value
            for key, value in one["params"].items()
            if key not in {"input_data", "flow_state"}
        }
        envelope = {**one, "params": rest}
        assert IDENTITY_KEYS.isdisjoint(keys_of(envelope)), method
        del rest["context_token"]
        said = json.dumps(envelope)
        assert "person-" not in said
        assert "chat-" not in said
        assert "elsewhere" not in said
    if method == "auth_complete":  # what the bridge itself had said comes back as it was
        assert found[0]["params"]["flow_state"] == {"user_id": "its own", "n": 1}


@whole("SC-BRG-14")
def test_when_the_operator_takes_an_account_back_the_bridge_is_told_no_more(
    desk: Desk, post: Bridge
) -> None:
    ann = somebody()
    desk.link(ann, "post.box", "taken")
    desk.daemon.cli("account", "revoke", ann.user, "post.box", "acct_taken")
    [asked] = post.asked("auth_revoke", account_ref="acct_taken")
    assert set(asked) == {"capability_id", "account_ref", "context_token"}
    assert read_token(asked["context_token"])[1]["sub"] == ann.user
    assert desk.accounts(ann.user) == []


@whole("SC-BRG-23")
def test_a_bridge_inherits_a_few_ordinary_variables_and_no_open_file(
    desk: Desk, walked: list[dict[str, Any]]
) -> None:
    env = walked[-1]["env"]
    ordinary = {"HOME", "LANG", "LC_ALL", "PATH", "TMP", "TEMP", "TMPDIR", "USER"}
    own = {"BRIDGE_PLAN", "BRIDGE_LOG", "LETTERS", "POSTING_REGION", "ASH_CONTEXT_TOKEN_SECRET"}
    # LC_CTYPE is Python's own; the mark is how the host finds what a bridge leaves behind.
    assert set(env) - ordinary - {"LC_CTYPE", "KAGED_STARTED_FOR"} == own
    assert (env["LETTERS"], env["POSTING_REGION"], env["USER"]) == ("here", "north", "the-operator")
    for name in ("OPENAI_API_KEY", "UNRELATED", "PYTHONPATH", "ASH_CONTEXT_TOKEN"):
        assert name not in env
    values = json.dumps(env)
    assert HOST["OPENAI_API_KEY"] not in values
    assert HOST["ASH_CONTEXT_TOKEN_SECRET"] not in values
    assert len(env["ASH_CONTEXT_TOKEN_SECRET"]) == 43  # not "mine"
    for one in walked:
        assert sorted(one["opened"]) == ["0", "1", "2"], one["request"]["method"]
    assert desk.provider("post")["available"] is True


@whole("SC-BRG-22")
def test_a_bridge_is_the_hosts_child_and_out_of_every_cages_reach(desk: Desk, post: Bridge) -> None:
    ann = somebody()
    desk.link(ann, "post.box")
    look = (
        "ash-sb capability invoke -c post.box -o echo >/dev/null & ps -ef 2>/dev/null;"
        " cat /proc/*/cmdline | tr '\\0' ' '; cat /proc/*/environ | tr '\\0' '\\n';"
        f" cat {post.plan_file} {post.log_file} 2>&1; wait"
    )
    said = desk.run(ann, look)["stdout"]
    assert "bridge_plan.py" not in said
    assert "ASH_CONTEXT_TOKEN_SECRET" not in said
    assert said.count("No such file or directory") == 2
    last = post.log("invoke")[-1]
    assert last["parent"] == desk.daemon.pid
    # The same program, started inside with a token of one's own, has nothing to check it with.
    source = (GUESTS / "bridge_g1.py").read_text(encoding="utf-8")
    desk.project.write("own.py", source)
    request = (
        '{"version": 1, "id": "x", "namespace": "post", "method": "invoke", "params": '
        '{"context_token": "\'$ASH_CONTEXT_TOKEN\'", "account_ref": "acct_default"}}'
    )
    alone = desk.run(ann, f"echo '{request}' | python3 own.py; echo rc=$?")["stdout"]
    assert "not here: 'ASH_CONTEXT_TOKEN_SECRET'" in alone
    assert '"result"' not in alone


@whole("SC-AMB-39")
def test_a_bridge_with_a_cage_has_its_grants_and_nothing_else(desk: Desk) -> None:
    ann = somebody()
    caged, loose = desk.asks(ann, invoking("caged.look", "look"), invoking("loose.look", "look"))
    assert result_of(caged)["output"] == {
        "outside": "FileNotFoundError",
        "granted": "inside",
        "net": "refused",
    }
    assert result_of(loose)["output"] == {"outside": "OUTSIDE", "granted": "inside", "net": "open"}
    assert desk.provider("caged")["caged"] is True
    assert desk.provider("loose")["caged"] is False
    # On record, and shown by doctor.
    rows = [one["data"] for one in desk.daemon.audit("cage.started")]
    started = {one["what"]: one for one in rows if one["what"].startswith("bridge ")}
    assert started["bridge caged"]["caged"] is True
    assert started["bridge loose"]["caged"] is False
    assert "without a cage" in json.dumps(started["bridge loose"])
    checks = desk.daemon.cli("doctor", "--json", code=None).json["rows"]
    found = {one["id"]: one for one in checks if one["id"].startswith("services.")}
    assert found["services.loose"]["status"] == "warn"
    assert "cage" in json.dumps(found["services.loose"])
    assert found["services.caged"]["status"] == "ok"


@whole("SC-AMB-37", "SC-AMB-39")
@pytest.mark.parametrize("name", ["first", "second", "insider", "stays"])
def test_bridges_of_both_generations_do_the_same_things(
    desk: Desk, module_path: Path, name: str
) -> None:
    """Definitions, begin, complete, invoke, and no account for the second person."""
    ann, bob = somebody(), somebody()
    callback = f"https://x.example/?code=c&state=state-{ann.user}"
    answers = desk.asks(
        ann,
        invoking(f"{name}.email", "ping"),
        step("auth.begin", capability=f"{name}.email", account_hint="work"),
        step("auth.complete", flow_id={"$": [1, "flow_id"]}, callback_url=callback),
        invoking(f"{name}.email", "whoami"),
        invoking(f"{name}.email", "send", idempotency_key="k"),
    )
    for one in answers:
        result_of(one)
    whoami = result_of(answers[3])["output"]
    assert (whoami["user"], whoami["account"]) == (ann.user, "acct_work")
    assert desk.code(bob, f"{name}.email", "whoami") == "capability_auth_required"
    if name in {"first", "stays"}:
        return
    # The later generation: a code that is typed into another device.
    ready = module_path / "flags" / "ready"
    ready.unlink(missing_ok=True)
    begun, waits = desk.asks(
        bob,
        step("auth.begin", capability=f"{name}.devices"),
        step("auth.poll", flow_id={"$": [0, "flow_id"]}),
    )
    flow = result_of(begun)
    assert (flow["flow_type"], flow["user_code"]) == ("device_code", "ABCD-EFGH")
    assert result_of(waits) == {"status": "pending", "retry_after_seconds": 3}
    ready.write_text("", encoding="utf-8")
    done = wait_for(lambda: desk.ask(bob, "auth.poll", flow_id=flow["flow_id"]).get("account_ref"))
    assert done == "acct_device"
    other = desk.asks(ann, step("auth.poll", flow_id=flow["flow_id"]))
    assert code_of(other[0]) == "capability_auth_flow_invalid"


@whole("SC-BRG-15")
def test_the_shipped_helper_believes_no_token_that_it_cannot_check(
    desk: Desk, module_path: Path
) -> None:
    letters = module_path / "letters.json"
    letters.write_text('{"kaged-check-nobody": ["a letter"]}', encoding="utf-8")
    env = ("--env", f"LETTERS={letters}")

    def check(*program: str) -> dict[str, Any]:
        done = desk.daemon.cli(
            *("bridge", "check", "-n", "post", *env, "--json", "--", *program), code=None
        )
        rows = done.json["checks"]
        return {one["id"]: one for one in rows}

    assert check(*PYTHON, str(EXAMPLE))["tokens"]["verdict"] == "ok"
    # A bridge that checks nothing is told so: the question is a real one.
    ledger = module_path / "trusting.py"
    source = (GUESTS / "bridge_ledger.py").read_text(encoding="utf-8")
    ledger.write_text(source, encoding="utf-8")
    assert check(*PYTHON, str(ledger))["tokens"]["verdict"] == "fail"


@whole("SC-PROV-01")
@pytest.mark.parametrize(
    "method",
    ["capability.register", "capability.providers.add", "capability.refresh", "definitions"],
)
def test_nobody_in_a_cage_can_bring_a_provider(desk: Desk, method: str) -> None:
    offered = {"namespace": "mine", "command": ["/bin/true"], "definitions": []}
    [answer] = desk.asks(somebody(), {"method": method, "params": offered})
    assert answer["error"]["code"] == -32601
    before = {one["name"] for one in desk.providers()}
    for verb, path in (("POST", "/services/providers"), ("PUT", "/services/providers/mine")):
        assert desk.daemon.error(verb, path, offered)["status"] in {404, 405}
    assert {one["name"] for one in desk.providers()} == before
