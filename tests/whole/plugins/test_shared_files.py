"""Bytes and long payloads pass as files between a plugin and its host, checked by the host."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.guests import Guest
from whole.harness.model import ModelServer
from whole.harness.plugin_hooks import PRE, Talk
from whole.harness.project import Project

SIZE = 6_000_000  # more than a line of the wire holds
SDK = """
import hashlib, json, os
from kaged_sdk import create_plugin, shared_file
NAME = os.environ["KAGED_PLUGIN_NAME"]

def draw(params, context):
    data = b"\\x89PNG\\r\\n\\x1a\\n" + os.urandom(params["size"])
    return {
        "picture": shared_file(data, "image/png"), "sha": hashlib.sha256(data).hexdigest(),
        "note": "drawn", "waiting": os.listdir(os.environ["KAGED_FILES_OUT"]),
    }

def whole(params, context):
    return shared_file("grüße".encode(), "text/plain")

def told(params, context):
    texts = [json.dumps(m["content"]) for name in ("messages_being_compacted", "messages_remaining")
             for m in params[name]]
    parts = {int(t.split("Part ")[1].split(".")[0]) for t in texts if "Part " in t}
    line = {"method": "told", "role": params["role"], "chars": sum(map(len, texts)),
            "parts": sorted(parts), "session": context.session_id,
            "left": os.listdir(os.environ["KAGED_FILES_IN"])}
    with open(os.environ["DIARY"], "a", encoding="utf-8") as diary:
        diary.write(json.dumps(line) + "\\n")

create_plugin(NAME, "1.0.0", {"a.b": draw, "c.d": whole}, hooks={"pre_compact": told}).start()
"""
RAW = """
from kit import *
request = greet()
OUT = os.environ.get("KAGED_FILES_OUT", "/opt/kaged/files/out")
def reference(name, size=4, kind="application/octet-stream"):
    return {"$file": {"name": name, "size": size, "type": kind}}
def on(message):
    how = message["params"].get("how")
    name = OUT + "/it"
    if how == "look":
        return answer(message, {
            "said": request["params"].get("shared_files"), "there": os.path.exists(OUT),
            "env": sorted(one for one in os.environ if one.startswith("KAGED_FILES")),
            "writes": writes(),
        })
    if os.path.lexists(name) and not os.path.isdir(name):
        os.unlink(name)
    made = reference("it")
    if how == "link":
        os.symlink(message["params"]["target"], name)
    elif how == "hard":
        open(OUT + "/other", "w").write("four")
        os.link(OUT + "/other", name)
    elif how == "fifo":
        os.mkfifo(name)
    elif how == "folder":
        os.mkdir(name)
    elif how == "up":
        made = reference("../in/x")
    elif how == "many":
        made = {str(n): reference("it") for n in range(17)}
    elif how == "odd":
        made = {"$file": 7}
    elif how != "missing":
        open(name, "wb").write(b"f\\xffur")
    if how == "longer":
        made = reference("it", 5)
    elif how == "shorter":
        made = reference("it", 3)
    elif how == "huge":
        made = reference("it", 10**12)
    elif how == "picture":
        made = reference("it", 4, "image/png")
    elif how == "text":
        made = reference("it", 4, "text/plain")
    elif how == "type":
        made = reference("it", 4, "text/html")
    answer(message, made)
def writes():
    try:
        open("/opt/kaged/files/in/x", "w")
        return True
    except OSError:
        return False
serve(on)
"""


FLOOD = """
from kit import *
import threading, time
greet()
OUT = os.environ["KAGED_FILES_OUT"]
def flood(how):
    if how == "bytes":
        with open(OUT + "/big", "wb") as file:
            for _ in range(136):
                file.write(b"x" * 1048576)
    elif how == "files":
        for number in range(300):
            open(OUT + "/" + str(number), "w").close()
    elif how == "below":
        os.makedirs(OUT + "/a/b/c")
        for number in range(300):
            os.mkdir(OUT + "/a/b/c/" + str(number))
    elif how == "deep":
        os.chdir(OUT)
        for _ in range(200):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    elif how == "locked":
        os.mkdir(OUT + "/a")
        open(OUT + "/a/b", "w").write("b")
        os.chmod(OUT + "/a", 0)
    else:
        for number in range(255):
            open(OUT + "/" + str(number), "w").write("y" * 100_000)
def on(message):
    how = message["params"].get("how")
    if how != "none":
        # It answers at once and does it later: nobody waits for an answer of it.
        threading.Thread(target=flood, args=(how,)).start()
    answer(message, {"pid": os.getpid(), "there": sorted(os.listdir(OUT))})
serve(on)
"""


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose model has room for a very long conversation."""
    made = Daemon(module_path / "h", local=model.local_toml(context_window=50_000_000))
    made.write("cache/plugin-files/one-of-a-killed-daemon/out/left", "x")
    made.start()
    yield made
    made.close()


def shared(daemon: Daemon) -> list[str]:
    """Return what lies in the folders that plugins share with this daemon."""
    top = daemon.home / "cache" / "plugin-files"
    found = (one.relative_to(top).parts for one in top.rglob("*"))
    # Each process has folders of its own: the plugin's name with something unique behind it.
    return sorted("/".join((first[:-27], *below)) for first, *below in found)


@whole("PH-BEY-06")
def test_a_plugin_passes_bytes_as_a_file_and_they_arrive_equal(
    daemon: Daemon, tmp_path: Path
) -> None:
    one = Guest(daemon, tmp_path, SDK, shared_files=True, hooks=[PRE])
    one.run()
    for _ in range(2):
        found = one.call("a.b", size=SIZE)
        data = base64.b64decode(found["picture"].pop("base64"))
        assert hashlib.sha256(data).hexdigest() == found["sha"]
        assert found["picture"] == {"type": "image/png", "size": SIZE + 8}
        assert len(found["waiting"]) == 1, "the one before was taken away"
    text = one.call("c.d")
    assert base64.b64decode(text["base64"]).decode() == "grüße"
    assert shared(daemon) == [one.name, f"{one.name}/in", f"{one.name}/out"]
    daemon.ask("DELETE", f"/plugins/{one.name}?force=true")
    wait_for(lambda: shared(daemon) == [], "the end of its folders")


@whole("PH-BEY-06")
def test_what_is_not_the_plugins_own_file_is_refused_and_does_no_harm(
    daemon: Daemon, tmp_path: Path
) -> None:
    one = Guest(daemon, tmp_path, RAW, shared_files=True)
    one.run()
    found = one.call("a.b", how="look")
    assert found["said"]["out"] == "/opt/kaged/files/out"
    assert found["env"] == ["KAGED_FILES_IN", "KAGED_FILES_OUT"]
    assert not found["writes"], "what the host writes, the plugin only reads"
    secret = tmp_path / "secret"
    secret.write_text("four")
    why: dict[str, Any] = {
        "link": "cannot be opened", "hard": "no plain file", "fifo": "no plain file",
        "up": "letters, digits", "many": "16 files", "odd": "an object", "missing": "be opened",
        "longer": "another size", "shorter": "another size", "huge": "at most",
        "picture": "not image/png", "text": "not text/plain", "type": "one of the types",
    }  # fmt: skip
    for how, words in why.items():
        refused = one.fail("a.b", how=how, target=str(secret))
        assert refused["code"] == "plugin_file_refused", (how, refused)
        assert words in refused["message"], (how, refused)
    assert one.fail("a.b", how="folder")["code"] == "plugin_file_refused"
    assert secret.read_text() == "four"
    assert one.state()["state"] == "running"
    daemon.ask("DELETE", f"/plugins/{one.name}?force=true")
    # Without a word in the manifest nothing is announced, and nothing is there.
    plain = Guest(daemon, tmp_path, RAW)
    plain.run()
    assert plain.call("a.b", how="look") == {
        "said": None, "there": False, "env": [], "writes": False,
    }  # fmt: skip
    assert shared(daemon) == []
    daemon.ask("DELETE", f"/plugins/{plain.name}?force=true")


def _bytes_below(daemon: Daemon) -> int:
    top = daemon.home / "cache" / "plugin-files"
    return sum(one.lstat().st_blocks * 512 for one in top.rglob("*") if one.is_file())


def test_who_leaves_too_much_in_the_shared_folder_is_ended_and_the_other_goes_on(
    daemon: Daemon, tmp_path: Path
) -> None:
    floods = {
        "bytes": "134217728 bytes", "files": "256 shared files", "below": "256 shared files",
        "deep": "16 deep", "locked": "cannot be read",
    }  # fmt: skip
    made = {one: Guest(daemon, tmp_path, FLOOD, shared_files=True) for one in (*floods, "fits")}
    for one in made.values():
        one.run()
    made["fits"].call("a.b", how="fits")
    for how, words in floods.items():
        flooding = made[how]
        flooding.call("a.b", how=how)
        (row,) = flooding.await_rows("plugin.crashed")
        assert words in row["reason"], (how, row)
        # It comes back, with nothing of what it left, as every plugin that has crashed.
        flooding.await_state("running")
        assert flooding.call("a.b", how="none")["there"] == [], how
    assert _bytes_below(daemon) < 40_000_000
    found = made["fits"].call("a.b", how="none")
    assert len(found["there"]) == 255, "what fits stays as long as the process lives"
    assert made["fits"].rows("plugin.crashed") == []
    for one in made.values():
        daemon.ask("DELETE", f"/plugins/{one.name}?force=true")
    wait_for(lambda: shared(daemon) == [], "the end of all folders, locked and deep ones as well")


@whole("PH-BEY-16")
def test_a_window_that_fits_into_no_line_arrives_complete(
    daemon: Daemon, project: Project, model: ModelServer, tmp_path: Path
) -> None:
    made = {
        name: Guest(daemon, tmp_path, program, hooks=[PRE], name=name, shared_files=shares)
        for name, program, shares in (
            ("sharing", SDK, True),
            ("short", SDK.replace('os.environ["KAGED_FILES_IN"]', '"/opt"'), False),
        )
    }
    for one in made.values():
        one.run()
    project.describe(
        plugins={name: {"package": name} for name in made}, compaction={"strategy": "summarize"}
    )
    project.reload()
    talk = Talk(project, model)
    for number in range(11):
        talk.say(f"Part {number}. " + "y" * 490_000)
    talk.compact()
    (whole_window,) = made["sharing"].heard("told")
    assert whole_window["chars"] > 5_300_000
    assert whole_window["parts"] == list(range(11))
    assert whole_window["session"] == talk.id
    assert len(whole_window["left"]) == 1
    (shortened,) = made["short"].heard("told")
    assert shortened["chars"] < 4_000_000, "as it was: the oldest are left out"
    assert len(shortened["parts"]) < 11
    assert shared(daemon) == ["sharing", "sharing/in", "sharing/out"], "gone with its answer"
    for one in made.values():
        daemon.ask("DELETE", f"/plugins/{one.name}?force=true")
