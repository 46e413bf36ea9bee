"""The wire between a daemon and a plugin, byte for byte, as the plugin itself sees it.

The plugins are programs that the tests write; they keep what they read in a diary. Nothing but
their standard streams joins them to the daemon.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import STORAGE, Guest

LIMIT = 4 * 1024 * 1024

ODD = """
from kit import *
greet()
open_calls = []

def on(message):
    method, params = message["method"], message["params"]
    if method == "odd.echo":
        params.pop("_context")
        answer(message, params)
    elif method == "odd.halves":
        line = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": "Grüße 🙂"},
                          ensure_ascii=False).encode() + b"\\n"
        cuts = params["cuts"] or range(1, len(line))
        last = 0
        for cut in [*cuts, len(line)]:
            raw(line[last:cut])
            last = cut
            time.sleep(0.01)
    elif method == "odd.pair":
        open_calls.append(message)
        if len(open_calls) == 2:
            second, first = open_calls
            raw(b"".join(json.dumps({"jsonrpc": "2.0", "id": one["id"],
                "result": one["params"]["who"]}).encode() + b"\\n" for one in (first, second)))
            open_calls.clear()
    elif method == "odd.raw":
        for line in params["lines"]:
            raw(line.replace("$id", str(message["id"])).encode("latin-1"))
        if params["reply"]:
            answer(message, "still here")
    elif method == "odd.stderr":
        sys.stderr.write(params["text"].replace("$id", str(message["id"])))
        sys.stderr.flush()
        answer(message, "said")
    elif method == "odd.flood":
        chunk = "x" * 1023 + "\\n"
        for _ in range(4096):
            sys.stderr.write(chunk)
        sys.stderr.flush()
        answer(message, "said much")
    elif method == "odd.big":
        head = b'{"jsonrpc":"2.0","id":%d,"result":"' % message["id"]
        size = params["size"] - len(head) - 2
        raw(head + b"y" * size + b'"}' + b"\\n")
serve(on)
"""
METHODS = ["echo", "halves", "pair", "raw", "stderr", "flood", "big"]


@pytest.fixture(scope="module")
def odd(daemon: Daemon, module_path: Path) -> Guest:
    """Return a running plugin that writes its answers in odd ways."""
    made = Guest(
        daemon,
        module_path,
        ODD,
        name="odd",
        methods=[f"odd.{one}" for one in METHODS],
    )
    assert made.run()["state"] == "running"
    assert made.call("odd.echo") == {}
    return made


def together(*work: Callable[[], Any]) -> list[Any]:
    """Do all of these at once and return what they return."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [one.result() for one in [pool.submit(each) for each in work]]


@whole("PH-WIRE-01", "PH-WIRE-03", "PH-WIRE-14", "PH-WIRE-18")
def test_the_host_writes_one_object_a_line_and_counts_from_one(
    daemon: Daemon, tmp_path: Path
) -> None:
    looks = """
from kit import *
greet()
def on(message):
    ends = {number: os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{number}")}
    answer(message, {"ends": ends, "args": sys.argv})
serve(on)
"""
    guest = Guest(daemon, tmp_path, looks)
    guest.run()
    seen = [guest.call(turn=turn) for turn in range(3)]
    ends = seen[0]["ends"]
    assert {ends[number].split(":")[0] for number in "012"} == {"pipe"}
    assert len({ends[number] for number in "012"}) == 3
    assert not [one for one in ends.values() if "socket" in one], ends
    text = guest.heard_bytes()
    assert text.endswith(b"\n")
    assert b"\r" not in text
    lines = text.decode("utf-8").split("\n")[:-1]
    assert [json.loads(line)["method"] for line in lines] == [
        "initialize",
        "initialized",
        "a.b",
        "a.b",
        "a.b",
    ]
    ids = [one["id"] for one in guest.heard() if "id" in one]
    assert ids == [1, 2, 3, 4]
    for message in guest.heard():
        assert message["jsonrpc"] == "2.0"
        assert isinstance(message["method"], str)
        assert set(message) <= {"jsonrpc", "id", "method", "params"}


SHELL = """#!/bin/sh
while IFS= read -r line; do
  id=${line#*'"id":'}
  id=${id%%,*}
  case "$line" in
    *'"method":"initialize"'*)
      echo '{"jsonrpc":"2.0","id":'$id',"result":{"name":"NAME","version":"1.0.0",'\\
'"api_version":1,"methods":["a.b"]}}' ;;
    *'"method":"ping"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"status":"ok"}}' ;;
    *'"method":"shutdown"'*) exit 0 ;;
    *'"method":"a.b"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":"from the shell"}' ;;
  esac
done
"""
SCRIPT = """
import { createInterface } from "node:readline";
const say = (id, result) => console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method } = JSON.parse(line);
  if (method === "initialize")
    say(id, { name: "NAME", version: "1.0.0", api_version: 1, methods: ["a.b"] });
  else if (method === "ping") say(id, { status: "ok" });
  else if (method === "shutdown") process.exit(0);
  else if (method === "a.b") say(id, "from JavaScript");
}
"""
PLAIN = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    results = {
        "initialize": {"name": "NAME", "version": "1.0.0", "api_version": 1, "methods": ["a.b"]},
        "ping": {"status": "ok"},
        "a.b": "from Python",
    }
    if message["method"] == "shutdown":
        break
    if message["method"] in results:
        result = results[message["method"]]
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


LANGUAGES = {
    "sh": (["./main.sh"], "main.sh", SHELL, "from the shell"),
    "py": (["/usr/bin/env", "python3", "main.py"], "main.py", PLAIN, "from Python"),
    "js": (["/usr/bin/env", "node", "main.mjs"], "main.mjs", SCRIPT, "from JavaScript"),
}


@pytest.fixture(scope="module")
def languages(daemon: Daemon, module_path: Path) -> dict[str, Guest]:
    """Return plugins without any library, by language, each checked every five seconds."""
    made: dict[str, Guest] = {}
    for kind, (command, file, source, _) in LANGUAGES.items():
        made[kind] = Guest(
            daemon,
            module_path,
            files={file: source.replace("NAME", f"lang-{kind}")},
            name=f"lang-{kind}",
            command=command,
            methods=["a.b"],
            health_interval_sec=5,
        )
        state = made[kind].run()
        assert state["state"] == "running", state
    return made


@whole("PH-WIRE-02")
def test_any_language_that_reads_and_writes_lines_makes_a_plugin(
    languages: dict[str, Guest],
) -> None:
    for kind, guest in languages.items():
        assert guest.call() == LANGUAGES[kind][3]


@whole("PH-WIRE-04")
def test_line_breaks_travel_inside_one_line(odd: Guest) -> None:
    text = "first\nsecond\r\nthird\u2028fourth\x85"
    before = len(odd.heard_bytes().split(b"\n"))
    assert odd.call("odd.echo", text=text) == {"text": text}
    assert len(odd.heard_bytes().split(b"\n")) == before + 1
    assert odd.heard("odd.echo")[-1]["params"]["text"] == text


@whole("PH-WIRE-05", "PH-WIRE-06")
@pytest.mark.parametrize("cuts", [[20], [1, 2], [-4], []])
def test_an_answer_in_pieces_is_put_together_also_within_a_letter(
    odd: Guest, cuts: list[int]
) -> None:
    # An empty list cuts behind every byte, so within each letter that has several.
    assert odd.call("odd.halves", cuts=cuts) == "Grüße 🙂"


@whole("PH-WIRE-05", "PH-WIRE-25")
def test_two_answers_in_one_write_and_in_the_wrong_order_find_their_callers(odd: Guest) -> None:
    got = together(lambda: odd.call("odd.pair", who="one"), lambda: odd.call("odd.pair", who="two"))
    assert got == ["one", "two"]


@whole("PH-WIRE-09", "PH-WIRE-10")
def test_standard_error_is_a_log_and_never_an_answer(odd: Guest) -> None:
    words = 'first line\nsecond line\n{"jsonrpc":"2.0","id":$id,"result":"forged"}\n'
    assert odd.call("odd.stderr", text=words) == "said"
    lines = wait_for(lambda: found if len(found := odd.logged("plugin.stderr")) > 2 else [])
    records = [json.loads(line) for line in lines]
    texts = [str(one) for one in records]
    assert all(one["plugin"] == "odd" for one in records)
    for wanted in ("first line", "second line", "forged"):
        assert len([text for text in texts if wanted in text]) == 1
    tail = odd.daemon.get("/plugins/odd/logs")
    assert "first line" in json.dumps(tail)
    assert odd.rows("plugin.stdout_noise") == []


@whole("PH-WIRE-11")
def test_megabytes_on_standard_error_hold_up_nothing(odd: Guest) -> None:
    assert odd.call("odd.flood") == "said much"
    assert odd.call("odd.echo", n=1) == {"n": 1}


@whole("PH-WIRE-12", "PH-WIRE-13", "PH-FAIL-07")
def test_a_line_that_is_no_json_is_noise_and_the_plugin_goes_on(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, ODD, methods=["odd.raw"])
    guest.run()
    assert guest.call("odd.raw", lines=["hello\n"], reply=True) == "still here"
    noise = exactly(1, lambda: guest.rows("plugin.stdout_noise"))
    assert noise[0]["line"] == "hello"
    assert guest.state()["state"] == "running"
    assert len(guest.logged("plugin.stdout_noise")) == 1
    assert guest.call("odd.raw", lines=["z" * 1000 + "\n"], reply=True) == "still here"
    noise = exactly(2, lambda: guest.rows("plugin.stdout_noise"))
    assert noise[1]["line"] == "z" * 200
    assert guest.rows("plugin.spawned")[0]["pid"] == guest.state()["pid"]
    assert not [one for one in guest.heard() if "error" in one], "noise is never answered"


@whole("PH-WIRE-27")
@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","id":$id,"result":"\xff\xfe"}\n',
        '{"jsonrpc":"2.0","id":$id,"result":NaN}\n',
        '{"jsonrpc":"2.0","id":$id,"result":Infinity}\n',
        '{"jsonrpc":"2.0","id":$id,"result":-Infinity}\n',
        '{"jsonrpc":"2.0","id":$id,"result":' + "[" * 20_000 + "]" * 20_000 + "}\n",
    ],
    ids=["utf-8", "NaN", "Infinity", "-Infinity", "nested"],
)
def test_what_only_looks_like_json_is_noise_too(odd: Guest, line: str) -> None:
    before = len(odd.rows("plugin.stdout_noise"))
    assert odd.call("odd.raw", lines=[line], reply=True) == "still here"
    exactly(before + 1, lambda: odd.rows("plugin.stdout_noise"))
    assert odd.call("odd.echo", n=1) == {"n": 1}
    assert odd.state()["state"] == "running"


@whole("PH-WIRE-27")
def test_a_carriage_return_before_the_line_feed_is_harmless(odd: Guest) -> None:
    before = odd.rows("plugin.stdout_noise")
    lines = ['{"jsonrpc":"2.0","id":$id,"result":"from DOS"}\r\n']
    assert odd.call("odd.raw", lines=lines, reply=False) == "from DOS"
    assert odd.rows("plugin.stdout_noise") == before


@whole("PH-WIRE-07", "PH-AMB-33")
def test_a_line_may_have_four_mebibytes_and_not_a_byte_more(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, ODD, methods=["odd.big"])
    guest.run()
    pid = guest.state()["pid"]
    got = guest.call("odd.big", size=LIMIT)
    assert set(got) == {"y"}
    assert guest.rows("plugin.protocol_violation") == []
    refused = guest.fail("odd.big", size=LIMIT + 1)
    assert (refused["status"], refused["code"]) == (502, "plugin_unavailable")
    violations = exactly(1, lambda: guest.rows("plugin.protocol_violation"))
    assert violations[0]["violation_type"] == "protocol.oversize_message"
    assert guest.await_rows("plugin.crashed")[0]["reason"] == "protocol.oversize_message"
    again = guest.await_state("running")
    assert again["pid"] != pid
    assert not Path(f"/proc/{pid}").exists()


@whole("PH-WIRE-08")
def test_an_endless_line_ends_the_plugin_before_its_line_feed(
    daemon: Daemon, tmp_path: Path
) -> None:
    endless = """
from kit import *
greet()
def on(message):
    while True:
        raw(b"x" * 65536)
        with open(DIARY + ".written", "a") as file:
            file.write("x")
serve(on)
"""
    guest = Guest(daemon, tmp_path, endless)
    guest.run()
    refused = guest.fail()
    assert (refused["status"], refused["code"]) == (502, "plugin_unavailable")
    violations = exactly(1, lambda: guest.rows("plugin.protocol_violation"))
    assert violations[0]["violation_type"] == "protocol.oversize_message"
    guest.await_rows("plugin.crashed")
    written = 65536 * (guest.shared / "diary.written").stat().st_size
    # Not bounded by the plugin: what it could write beyond the limit is what the pipe holds, and
    # what it managed until it was ended.
    assert LIMIT <= written + 65536 <= 4 * LIMIT
    status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="utf-8")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) < 600 * 1024


@whole("PH-WIRE-15", "PH-METH-23")
def test_ten_calls_at_once_are_ten_objects_and_ten_answers(odd: Guest) -> None:
    before = len(odd.heard())
    work = [lambda n=n: odd.call("odd.echo", number=n, text=f"call {n}") for n in range(10)]
    got = together(*work)
    assert got == [{"number": n, "text": f"call {n}"} for n in range(10)]
    sent = odd.heard()[before:]
    assert all(isinstance(one, dict) for one in sent)
    ids = [one["id"] for one in sent]
    assert len(set(ids)) == 10
    assert ids == sorted(ids)


@whole("PH-WIRE-16", "PH-WIRE-17", "PH-AMB-33", "PH-ERR-02")
def test_a_batch_is_refused_as_one_and_nothing_in_it_is_done(
    daemon: Daemon, tmp_path: Path
) -> None:
    batches = """
from kit import *
greet()
def on(message):
    if message["method"] == "a.b":
        put([{"jsonrpc": "2.0", "id": message["id"], "result": "in a batch"}])
    else:
        put([
            {"jsonrpc": "2.0", "id": 1, "method": "kaged.storage.exec",
             "params": {"sql": "create table made (a)"}},
            {"jsonrpc": "2.0", "method": "x.y", "params": {}},
        ])
    refusal = receive()
    time.sleep(0.2)
    if message["method"] == "a.b":
        fail(message, -32050, "told so", data=refusal)
    else:
        answer(message, [refusal, ask(1, "kaged.storage.schema", {})])
serve(on)
"""
    guest = Guest(daemon, tmp_path, batches, capabilities=STORAGE)
    guest.run()
    answered = guest.fail()
    assert answered["data"]["number"] == -32050, answered
    told = answered["data"]["detail"]
    assert (told["id"], told["error"]["code"]) == (None, -32600)
    told, schema = guest.call("c.d")
    assert (told["id"], told["error"]["code"]) == (None, -32600)
    assert schema["result"] == {"tables": []}
    assert guest.rows("plugin.notification") == []
    types = [one["violation_type"] for one in guest.rows("plugin.protocol_violation")]
    assert types == ["batch", "batch"]
    assert guest.state()["state"] == "running"
    assert guest.rows("plugin.crashed") == []


@whole("PH-WIRE-19", "PH-AMB-67")
def test_both_sides_may_use_the_same_number_and_any_id_is_answered(
    daemon: Daemon, tmp_path: Path
) -> None:
    both = """
from kit import *
greet()
def on(message):
    number = message["id"]
    if message["method"] == "a.b":
        got = ask(number, "kaged.storage.schema", {})
    else:
        for one in (7, 7, "a"):
            put({"jsonrpc": "2.0", "id": one, "method": "kaged.storage.schema", "params": {}})
        got = [receive() for _ in range(3)]
    answer(message, {"number": number, "got": got})
serve(on)
"""
    guest = Guest(daemon, tmp_path, both, capabilities=STORAGE)
    guest.run()
    got = guest.call()
    assert got["got"] == {"jsonrpc": "2.0", "id": got["number"], "result": {"tables": []}}
    answers = guest.call("c.d")["got"]
    assert sorted(str(one["id"]) for one in answers) == ["7", "7", "a"]
    assert all(one["result"] == {"tables": []} for one in answers)
    assert guest.state()["state"] == "running"
    assert len(guest.logged("plugin.request_ids_out_of_order")) == 1


@whole("PH-WIRE-21", "PH-WIRE-26", "PH-NOTIF-04")
def test_what_nobody_asked_for_is_never_answered(daemon: Daemon, tmp_path: Path) -> None:
    unasked = """
from kit import *
greet()
def on(message):
    notify("unknown.name")
    notify("Not.Legal")
    notify("kaged.storage.schema")
    for number in (9999, None, 0):
        put({"jsonrpc": "2.0", "id": number, "result": "nobody asked"})
        put({"jsonrpc": "2.0", "id": number, "error": {"code": -32600, "message": "no"}})
    answer(message, "done")
serve(on)
"""
    guest = Guest(daemon, tmp_path, unasked, capabilities=STORAGE)
    guest.run()
    assert guest.call() == "done"
    assert guest.call("c.d") == "done"
    methods = [one.get("method") for one in exactly(4, guest.heard)]
    assert methods == ["initialize", "initialized", "a.b", "c.d"]
    ignored = wait_for(lambda: x if len(x := guest.logged("plugin.answer_ignored")) >= 12 else [])
    assert len(ignored) == 12
    assert guest.state()["state"] == "running"


@whole("PH-WIRE-22", "PH-WIRE-24", "PH-METH-03", "PH-SUP-20")
def test_a_life_goes_in_order_from_initialize_to_shutdown(daemon: Daemon, tmp_path: Path) -> None:
    pushes = """
from kit import *
greet()
def on(message):
    notify("x.y", {"during": message["id"]})
    answer(message, "answered")
serve(on)
"""
    guest = Guest(daemon, tmp_path, pushes)
    guest.run()
    assert guest.call() == "answered"
    assert guest.call("c.d") == "answered"
    exactly(2, lambda: guest.rows("plugin.notification"))
    daemon.post(f"/plugins/{guest.name}/disable")
    heard = guest.heard()
    assert [one["method"] for one in heard] == [
        "initialize",
        "initialized",
        "a.b",
        "c.d",
        "shutdown",
    ]
    assert "id" not in heard[-1]
    assert guest.rows("plugin.exited")[0]["exit_code"] == 0
    exactly(1, lambda: guest.rows("plugin.spawned"), "not started again")
    assert guest.state()["state"] == "disabled"


@whole("PH-WIRE-20")
def test_a_new_process_begins_at_one_again(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, {"on": {"a.b": [{"exit": 1}], "c.d": [{"result": 1}]}})
    guest.run()
    assert [guest.call("c.d") for _ in range(3)] == [1, 1, 1]
    guest.fail()
    guest.await_rows("plugin.initialized", 2)
    guest.await_state("running")
    assert guest.call("c.d") == 1
    first, second = guest.heard("initialize")
    assert (first["id"], second["id"]) == (1, 1)
    assert guest.heard("c.d")[-1]["id"] == 2


@whole("PH-AMB-32", "PH-ERR-02", "PH-WIRE-14")
def test_json_that_is_no_message_is_refused_and_survived(daemon: Daemon, tmp_path: Path) -> None:
    wrong = """
from kit import *
greet()
def on(message):
    bad = json.loads(json.dumps(message["params"]["bad"]).replace('"$id"', str(message["id"])))
    put(bad)
    told = receive()
    if message["params"]["reply"]:
        answer(message, told)
    else:
        answer({"id": message["id"]}, "too late")
serve(on)
"""
    guest = Guest(daemon, tmp_path, wrong)
    guest.run()
    for bad in (5, "text", None, True, {"id": 3}, {"id": 3, "method": "x.y"}, {"jsonrpc": "1.0"}):
        told = guest.call(bad=bad, reply=True)
        assert told["error"]["code"] == -32600, (bad, told)
    # One that carries the id of an open call ends that call at once.
    for bad in (
        {"jsonrpc": "2.0", "id": "$id", "result": 1, "error": None},
        {"jsonrpc": "2.0", "id": "$id", "result": None, "error": {"code": 1, "message": "m"}},
        {"jsonrpc": "2.0", "id": "$id", "error": "text"},
        {"jsonrpc": "2.0", "id": "$id", "error": {"code": "x", "message": "m"}},
        {"id": "$id", "result": 1},
    ):
        refused = guest.fail(bad=bad, reply=False)
        assert refused["data"]["number"] == -32603, (bad, refused)
    codes = {one["error"]["code"] for one in guest.heard() if "error" in one}
    assert codes == {-32600}
    assert len(guest.rows("plugin.protocol_violation")) == 12
    assert guest.state()["state"] == "running"
    assert guest.rows("plugin.crashed") == []


@whole("PH-AMB-59", "PH-WIRE-14")
def test_an_answer_with_neither_result_nor_error_is_null(odd: Guest) -> None:
    lines = ['{"jsonrpc":"2.0","id":$id}\n']
    assert odd.call("odd.raw", lines=lines, reply=False) is None


@whole("PH-WIRE-02")
def test_after_a_check_of_its_health_a_plugin_of_any_language_still_runs_and_ends_when_told(
    daemon: Daemon, languages: dict[str, Guest]
) -> None:
    # The last test of the module: by now a ping was due.
    for kind, guest in languages.items():
        wait_for(lambda one=guest: one.state()["uptime_s"] > 5.5)
        assert guest.rows("plugin.health_fail") == []
        assert guest.call() == LANGUAGES[kind][3]
        daemon.post(f"/plugins/{guest.name}/disable")
        assert guest.events()[-3:] == ["plugin.exited", "plugin.stopped", "plugin.disabled"]
