"""The scenes of the demo, in order."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

from demo_story import texts
from demo_story.stage import LOOKOUT, TIMEOUT_S, DemoFailed, Stage, say

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "plugins" / "examples"
UNITTEST: Final = ("python3", "-B", "-m", "unittest")
RECORDED: Final = (
    "tool.denied",
    "plugin.storage_denied",
    "plugin.method_returned",
    "capability_invoke",
)


def play(stage: Stage) -> None:
    """Play them all."""
    set_the_stage(stage)
    start(stage)
    meet_a_stranger(stage)
    fix_a_bug(stage)
    explain_the_helper(stage)
    remember(stage)
    read_mail(stage)
    rewind_a_turn(stage)
    misspell_a_rule(stage)
    read_the_record(stage)
    tamper_with_the_record(stage)


def set_the_stage(stage: Stage) -> None:
    """Write the sample project and the operator's files, and commit the project."""
    files = {**texts.SOURCES, ".kaged/project.yaml": texts.PROJECT}
    _write(stage.project, files)
    _write(stage.folder / "chart-reader", texts.PLUGIN)
    who = ["-c", "user.name=Demo", "-c", "user.email=demo@localhost"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "Paper boats"]):
        subprocess.run(["git", *words], cwd=stage.project, env=stage.env, check=True,
                       capture_output=True, timeout=TIMEOUT_S)  # fmt: skip
    letters = stage.home / "letters.json"
    config = texts.CONFIG.format(
        server=json.dumps([str(Path(sys.executable).parent / "ty"), "server"]),
        bridge=json.dumps([sys.executable, str(EXAMPLES / "letters-bridge" / "bridge.py")]),
        letters=json.dumps(str(letters)),
        key=json.dumps(texts.BOX_KEY),
    )
    stage.home.mkdir(mode=0o700)
    _write(stage.home, {
        "config.toml": config,
        "local.toml": texts.MODELS,
        "story.yaml": texts.SCRIPT.replace("FILE_OF_THE_BRIDGE", str(letters)),
        "letters.json": texts.LETTERS,
    })  # fmt: skip
    for path in stage.home.iterdir():
        path.chmod(0o600)
    (stage.home / "lua").mkdir(mode=0o700)
    shutil.copy(EXAMPLES / "rewind.lua", stage.home / "lua")


def start(stage: Stage) -> None:
    """Check the project and start the daemon."""
    stage.scene("Start the daemon",
                "The project file says what each agent can reach. Everything else is "
                "unreachable.")  # fmt: skip
    stage.run("project", "check", str(stage.project))
    stage.run("daemon", "start", lines=3)
    stage.run("cage", "explain", LOOKOUT, lines=5)


def meet_a_stranger(stage: Stage) -> None:
    """Install, enable and call a caged plugin; show what it could not read."""
    stage.scene("Install a third-party plugin",
                "The plugin lists what it needs, and you agree. Its cage contains that and "
                "nothing else.")  # fmt: skip
    stage.run("plugin", "install", str(stage.folder / "chart-reader"), "--yes")
    stage.ask("plugin", "install", str(EXAMPLES / "memory-markdown"), "--yes")
    stage.run("project", "load", "--trust", str(stage.project))
    stage.run("plugin", "enable", "chart-reader")
    stage.run("plugin", "enable", "memory-markdown")
    chart, secret = stage.project / "charts" / "harbour.txt", stage.project / "secrets.env"
    _call(stage, chart)
    stage.allowed(f"chart.read {chart}")
    cage = "its cage contains read:fs:project:/charts and no other file"
    _call(stage, secret, expect=4)
    stage.denied(f"chart.read {secret}", rule=cage,
                 change="install a version that asks for read:fs:project:/secrets.env, and "
                 "agree")  # fmt: skip
    _call(stage, stage.home / "http-token", expect=4)
    stage.denied(f"chart.read {stage.home / 'http-token'}", rule=cage,
                 change="not possible: no cage contains the daemon's own files")  # fmt: skip
    stage.run("plugin", "call", "chart-reader", "journal.peek", "{}", expect=4)
    stage.denied("journal.peek: SELECT * FROM audit_events",
                 rule="kaged:storage: a plugin can query its own tables only",
                 change="not possible: no plugin can query the daemon's tables")  # fmt: skip


def fix_a_bug(stage: Stage) -> None:
    """Let the agent find and fix the bug, with a caged helper."""
    stage.scene("An agent fixes a bug",
                "The agent loop, the tools and the tests are real. The model is scripted, so you "
                "need no key.")  # fmt: skip
    stage.program(*UNITTEST, expect=1)
    said = stage.run("run", "A test fails. Find out why, and fix it.")
    refused = [line for line in said.splitlines() if "denied" in line and "secrets.env" in line]
    if len(refused) != 1 or "both tests pass" not in said:
        raise DemoFailed("the agent did not do its work, or its helper was not refused")
    stage.program("git", "diff", "--unified=0", "--no-color", "tides.py")
    stage.program(*UNITTEST)
    stage.done("FIXED", "tides.py; both tests pass")


def explain_the_helper(stage: Stage) -> None:
    """Ask why the helper was refused."""
    stage.scene("Explain a denial",
                "Above, the subagent `lookout` tried to read secrets.env. `tool explain` says why "
                "it could not:")  # fmt: skip
    call = ("tool", "explain", "file.read", "path=secrets.env", "--agent", LOOKOUT)
    stage.run(*call, expect=4)
    no = next(gate for gate in stage.ask(*call)["gates"] if gate["passed"] is False)
    stage.denied("file.read secrets.env, for the lookout",
                 rule=f"{no['rule']}: {no['detail']} is not in its cage",
                 change=f"{no['remedy']} in the project file")  # fmt: skip


def remember(stage: Stage) -> None:
    """Show that the plugin's memory reaches the next session."""
    stage.scene("Use memory in a new session",
                "The plugin memory-markdown stores notes as files and adds them to each new "
                "session.")  # fmt: skip
    if "My note from the last session" not in stage.run(
        "run", "How do you count hours on the clock?"
    ):
        raise DemoFailed("the plugin did not remember")


def read_mail(stage: Stage) -> None:
    """Let the agent read mail through a bridge: each person their own, no group any."""
    stage.scene("Read mail without the credential",
                "A bridge on the host keeps the credential. The cage has a token that names one "
                "user, ann.")  # fmt: skip
    begin = "command=ash-sb capability auth begin -c post.box --json"
    begun = json.loads(stage.ask("tool", "call", "shell.bash", begin)["result"]["stdout"])
    words = f"auth complete --flow-id {begun['flow_id']} --code agreed"
    stage.ask("tool", "call", "shell.bash", f"command=ash-sb capability {words}")
    stage.run("account", "list")
    said = stage.run("run", "Is there mail for me?")
    session = said.split()[-1]
    calls = json.dumps(stage.ask("session", "show", session, "--calls"))
    if "the boat leaves at nine" not in calls or "No such file or directory" not in calls:
        raise DemoFailed("the agent got no letter, or found the bridge's file")
    if texts.BOX_KEY in calls:
        raise DemoFailed("the credential got into the session")
    stage.allowed("post.box list, for ann: Dear Ann, the boat leaves at nine.")
    stage.denied("cat letters.json, env | grep BOX_KEY, by the agent",
                 rule="its cage contains the project, not the bridge's files and variables",
                 change="not possible: no cage contains a credential")  # fmt: skip
    listing = "ash-sb capability invoke -c post.box -o list"
    for user, chat, code, change in (
        ("bob", "private", "capability_auth_required", "bob links his own account"),
        ("ann", "group", "capability_access_denied",
         "the bridge allows post.box in group chats"),
    ):  # fmt: skip
        said = stage.through_the_front_end(listing, user, chat).strip().splitlines()[-1]
        if code not in said or "boat" in said:
            raise DemoFailed(f"{user} in a {chat} chat got: {said}")
        stage.denied(f"post.box list, for {user} in a {chat} chat",
                     rule=said.removeprefix("Error: "), change=change)  # fmt: skip


def rewind_a_turn(stage: Stage) -> None:
    """Take a whole turn back, conversation and files, with a Lua script."""
    stage.scene("Undo a turn: the conversation and the files",
                "rewind.lua is a Lua script in its own cage, with the two powers that config.toml "
                "grants it.")  # fmt: skip
    test, notes = stage.project / "test_harbour.py", stage.project / "NOTES.txt"
    before = test.read_text(encoding="utf-8")
    stage.run("run", "Please clean up the tests.")
    if test.read_text(encoding="utf-8") == before or not notes.exists():
        raise DemoFailed("the agent did not clean up")
    say("     (That deleted a useful test. Undo it.)")
    stage.run("lua", "run", "undo")
    if test.read_text(encoding="utf-8") != before or notes.exists():
        raise DemoFailed("the turn was not rewound")
    if "cleaned up" in json.dumps(stage.ask("session", "show")):
        raise DemoFailed("the turn is still in the session")
    stage.done("REWOUND", "test_harbour.py is restored; NOTES.txt and the turn are gone")


def misspell_a_rule(stage: Stage) -> None:
    """Show that a mistake in the project file loosens nothing."""
    stage.scene("Misspell a rule",
                "`nett:` instead of `net:`. The file is rejected as a whole, and the loaded one "
                "stays in force.")  # fmt: skip
    stage.project_file.write_text(texts.MISSPELT, encoding="utf-8")
    stage.run("project", "reload", str(stage.project), expect=6)
    stage.denied("project reload", rule="config_invalid: unknown keys are errors, never ignored",
                 change="write `net:`")  # fmt: skip
    stage.project_file.write_text(texts.PROJECT, encoding="utf-8")
    (loaded,) = stage.ask("project", "list")
    if loaded["agents"] != 2 or loaded["state"] != "loaded":
        raise DemoFailed("the project did not stay in force")


def read_the_record(stage: Stage) -> None:
    """Show that the denials are on record."""
    stage.scene("Find the denials in the audit log",
                "The log has every denial: who asked, what for, and which rule denied "
                "it.")  # fmt: skip
    stage.run("audit", "query", "-e", "tool.denied", "-e", "plugin.storage_denied",
              "-e", "project.load_failed")  # fmt: skip
    rows = stage.ask("audit", "query", "-n", "200",
                     *(word for name in RECORDED for word in ("-e", name)))  # fmt: skip
    refused = [
        row
        for row in rows
        if row["event"] in {"tool.denied", "plugin.storage_denied"}
        or row["data"].get("error_code") == -32001
        or row["data"].get("outcome") == "denied"
    ]
    kinds = sorted(row["event"] for row in refused)
    if kinds != ["capability_invoke"] * 2 + ["plugin.method_returned"] * 2 + [
        "plugin.storage_denied",
        "tool.denied",
    ]:
        raise DemoFailed(f"these denials are in the audit log: {kinds}")
    stage.done("FOUND", "three denials of the plugin, one of the lookout, two of the mail bridge")


def tamper_with_the_record(stage: Stage) -> None:
    """Edit a row behind the daemon's back, and find it."""
    stage.scene("Detect a changed audit log",
                "Rows are chained with a key that is not in the database. Someone edits a row in "
                "the file.")  # fmt: skip
    stage.run("audit", "verify")
    stage.run("daemon", "stop")
    _tamper(stage.home / "kaged.db")
    stage.run("audit", "verify", expect=8)
    stage.done("FOUND", "the edited row")


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _call(stage: Stage, path: Path, expect: int = 0) -> None:
    params = json.dumps({"path": str(path)})
    stage.run("plugin", "call", "chart-reader", "chart.read", params, expect=expect)


def _tamper(database: Path) -> None:
    """Edit one row directly in the database file."""
    edit = (
        "update audit_events set data = replace(data, 'secrets.env', 'harmless.txt')"
        " where name = 'tool.denied'"
    )
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        try:
            connection.execute(edit)
        except sqlite3.IntegrityError as refusal:
            say(f"     (the database refuses: {refusal}; the trigger is removed first)")
        guards = connection.execute("select name from sqlite_master where type = 'trigger'")
        for (guard,) in guards.fetchall():
            connection.execute(f'drop trigger "{guard}"')
        changed = connection.execute(edit).rowcount
    say(f"     ({changed} row edited: secrets.env is now harmless.txt)")
    if changed != 1:
        raise DemoFailed("there was no row to edit")
