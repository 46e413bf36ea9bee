"""What `uninstall --keep-data` keeps is for the very files that made it, and for no others."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.guests import STORAGE, Guest
from whole.harness.plugin_store import preview
from whole.harness.plugin_terminal import at_terminal

SECRET = "marker-secret-of-the-first-0451"
SYSTEM = {"type": "object", "properties": {"api_token": {"type": "string"}}}
PROGRAM = """
from kit import *
greet()
def on(message):
    wanted = message["params"]
    if message["method"] == "mem.ask":
        found = ask(wanted["number"], wanted["ask"], wanted["given"])
        answer(message, found.get("result", found.get("error")))
    else:
        folder = os.environ["KAGED_CONFIG_ROOT"] + "/notes"
        answer(message, {"folder": folder, "files": os.listdir(folder)})
serve(on)
"""


class Mem(Guest):
    """A plugin with tables, a data folder and a secret; `note` makes its files others."""

    def __init__(self, daemon: Daemon, below: Path, note: str = "", **manifest: Any) -> None:
        super().__init__(
            daemon,
            below,
            PROGRAM + f"# {note}\n",
            name="mem",
            package="@scope/mem",
            methods=["mem.ask", "mem.files"],
            capabilities=[*STORAGE, "write:fs:config:/notes"],
            system_config_schema=SYSTEM,
            **manifest,
        )
        self._asked = 0

    def sql(self, *statements: str) -> Any:
        """Let it run statements; returns the last answer."""
        found: Any = None
        for sql in statements:
            self._asked += 1
            word = "query" if sql.startswith("SELECT") else "exec"
            asked = {"number": self._asked, "ask": f"kaged.storage.{word}", "given": {"sql": sql}}
            found = self.call("mem.ask", **asked)
            assert "code" not in found, (sql, found)
        return found

    def tables(self) -> list[str]:
        """Return the names of its tables, as the host tells it."""
        self._asked += 1
        asked = {"number": self._asked, "ask": "kaged.storage.schema", "given": {}}
        found: list[str] = self.call("mem.ask", **asked)["tables"]
        return found

    def fill(self) -> None:
        """Make tables that refer to each other and to one that is missing, and a file."""
        self.sql(
            "CREATE TABLE Notes (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT UNIQUE)",
            "CREATE TABLE tags (note INTEGER REFERENCES Notes (id), word TEXT)",
            "CREATE TABLE later (a INTEGER REFERENCES other (id))",
            "CREATE UNIQUE INDEX by_word ON tags (word, lower(word))",
            "INSERT INTO Notes (text) VALUES ('of the first')",
            "INSERT INTO tags (note, word) VALUES (1, 'w')",
        )
        Path(self.call("mem.files")["folder"], "diary").write_text("of the first", "utf-8")

    def config(self) -> Any:
        """Return the last config that it was given."""
        return self.heard("config.update")[-1]["params"]["config"]

    def require_all(self) -> None:
        """Require that everything of `fill` is there and works as before."""
        assert self.tables() == ["Notes", "later", "tags"]
        joined = "SELECT text, word FROM notes JOIN tags ON note = notes.id"
        assert self.sql(joined)["rows"] == [{"text": "of the first", "word": "w"}]
        self.sql("DROP INDEX by_word", "CREATE INDEX by_word ON tags (word)")
        assert self.call("mem.files")["files"] == ["diary"]
        assert self.config() == {"api_token": SECRET}


@pytest.fixture
def daemon(own: Callable[..., Daemon]) -> Daemon:
    """Return a daemon whose operator has a secret for the package, and grants."""
    local = f'[plugins."@scope/mem"]\napi_token = "{SECRET}"\ngrants = ["read:fs:/usr/share"]\n'
    made = own(local=f"{local}\n[plugins.near]\nx = 1\n")
    made.start()
    return made


def below_home(daemon: Daemon, text: str) -> list[str]:
    """Return the files of the daemon's home that hold a text, or have it in their name."""
    found: list[str] = []
    for one in daemon.home.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the daemon goes on writing its own
            if one.is_file() and (text in one.name or text.encode() in one.read_bytes()):
                found.append(str(one.relative_to(daemon.home)))
    return found


def table_names(daemon: Daemon) -> list[str]:
    """Return the names of the plugins' tables and indexes in the database."""
    with sqlite3.connect(f"file:{daemon.home / 'kaged.db'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    database.close()
    return [row[0] for row in rows if row[0].startswith("plugin_")]


@whole("PH-INST-33", "PH-INST-34")
def test_kept_data_is_for_the_same_files_only_and_over_a_restart(  # noqa: PLR0915 - one life, step by step
    daemon: Daemon, tmp_path: Path
) -> None:
    first = Mem(daemon, tmp_path / "first")
    first.run()
    first.fill()
    told = daemon.cli("plugin", "uninstall", "mem", "--keep-data").out
    words = ["tables: Notes, later, tags", "data folder", "settings: api_token"]
    for part in (*words, "plugin forget mem"):
        assert part in told
    assert not (daemon.home / "plugin-data" / "mem").exists()
    local = (daemon.home / "local.toml").read_text(encoding="utf-8")
    assert SECRET not in local
    assert "scope/mem" not in local
    assert "[plugins.near]" in local
    (place,) = below_home(daemon, SECRET)
    assert (daemon.home / place).stat().st_mode & 0o777 == 0o600
    (row,) = first.rows("plugin.uninstalled")
    assert row["kept"] == words
    assert daemon.error("GET", "/plugins/mem")["code"] == "plugin_not_found"

    daemon.restart()
    done = daemon.cli("plugin", "list")
    listed = done.out + done.err
    for part in ("mem", "data kept", "Notes, later, tags", "plugin forget NAME"):
        assert part in listed
    (item,) = daemon.cli("plugin", "list", "--json").json
    assert (item["name"], item["version"], item["folder"]) == ("mem", "1.0.0", True)
    assert SECRET not in f"{listed}{item}"

    # Another plugin of that name, of the same version and package, gets nothing of it.
    second = Mem(daemon, tmp_path / "second", "of somebody else")
    shown = preview(daemon, second.root)
    assert (shown["given"], shown["given_back"], shown["not_given"]) == ([], [], ["1.0.0"])
    second.run()
    assert (second.tables(), second.call("mem.files")["files"]) == ([], [])
    assert SECRET not in str(second.heard())
    second.sql(
        "CREATE TABLE notes (mine TEXT)",
        "CREATE TABLE other (id INTEGER PRIMARY KEY)",
        "CREATE INDEX by_word ON notes (mine)",
        "INSERT INTO other VALUES (1)",
        "DELETE FROM other",
    )
    assert second.sql("SELECT * FROM notes")["rows"] == []
    daemon.restart()
    wait_for(lambda: second.state()["state"] == "running")
    assert second.tables() == ["notes", "other"]
    assert SECRET not in str(second.heard())
    daemon.cli("plugin", "uninstall", "mem")

    # The same files get it all back, once the operator has said yes to them again.
    code, text = at_terminal(daemon, "plugin", "install", str(first.root), answer="n")
    assert code != 0
    assert "It is given back what was kept of it" in text
    assert "settings: api_token" in text
    assert daemon.get("/plugins")["items"] == []
    assert len(daemon.get("/plugins")["kept"]) == 1
    first.run()
    first.require_all()
    assert first.state()["operator_grants"] == [], "grants are given anew, or not at all"
    assert first.rows("plugin.installed")[-1]["given_back"] == row["kept"]
    assert daemon.get("/plugins")["kept"] == []
    daemon.restart()
    wait_for(lambda: first.state()["state"] == "running")
    first.require_all()

    # Without the option nothing is left of it, as before.
    daemon.cli("plugin", "uninstall", "mem")
    assert below_home(daemon, SECRET) == []
    assert below_home(daemon, "diary") == []
    assert table_names(daemon) == []
    assert daemon.get("/plugins")["kept"] == []


@whole("PH-INST-34")
def test_kept_data_is_removed_for_good_by_its_command(daemon: Daemon, tmp_path: Path) -> None:
    first = Mem(daemon, tmp_path / "first")
    first.run()
    first.fill()
    daemon.ask("DELETE", "/plugins/mem?keep_data=true")
    second = Mem(daemon, tmp_path / "second", "of somebody else")
    second.run()
    second.sql("CREATE TABLE notes (mine TEXT)", "INSERT INTO notes VALUES ('of the second')")
    assert "there was no data" not in daemon.cli("plugin", "uninstall", "mem", "--keep-data").out
    assert len(daemon.get("/plugins")["kept"]) == 2
    daemon.restart()

    # One is taken back; what is left of the other goes, and what is in use stays.
    first.run()
    first.require_all()
    told = daemon.cli("plugin", "forget", "mem").out
    assert "mem 1.0.0: tables: notes" in told
    assert [one for one in first.rows("plugin.kept_data_removed") if "digest" in one]
    first.require_all()
    assert daemon.error("DELETE", "/plugins/mem/kept")["code"] == "plugin_not_found"
    assert "data kept" not in daemon.cli("plugin", "list").out

    daemon.cli("plugin", "uninstall", "mem", "--keep-data")
    daemon.restart()
    daemon.cli("plugin", "forget", "mem")
    assert below_home(daemon, SECRET) == []
    assert below_home(daemon, "diary") == []
    assert table_names(daemon) == []
    first.run()
    assert first.tables() == []
    assert SECRET not in str(first.config() if first.heard("config.update") else "")


@whole("PH-INST-33")
def test_what_cannot_be_kept_or_given_back_is_refused_and_nothing_changed(
    daemon: Daemon, tmp_path: Path
) -> None:
    first = Mem(daemon, tmp_path / "first")
    first.run()
    first.fill()
    daemon.cli("plugin", "uninstall", "mem", "--keep-data")

    # Something else is in its place.
    stray = daemon.home / "plugin-data" / "mem" / "stray"
    stray.parent.mkdir()
    stray.write_text("of the operator", encoding="utf-8")
    digest = preview(daemon, first.root)["digest"]
    body = {"path": str(first.root), "digest": digest}
    refused = daemon.error("POST", "/plugins", body)
    assert refused["code"] == "plugin_store_failed"
    assert "forget mem" in str(refused)
    assert daemon.get("/plugins")["items"] == []
    stray.unlink()

    # An upgrade from other files is none of it, and its data is the running plugin's.
    other = Mem(daemon, tmp_path / "second", version="0.9.0")
    (other.root / "main.py").write_text(
        PROGRAM.replace("greet()", "greet(version='0.9.0')"), encoding="utf-8"
    )
    other.run()
    other.sql("CREATE TABLE younger (a)")
    first.install()
    wait_for(lambda: first.state()["state"] == "running")
    assert first.tables() == ["younger"]
    refused = daemon.error("DELETE", "/plugins/mem?keep_data=true")
    assert refused["code"] == "plugin_store_failed"
    assert "kept already" in refused["message"]
    assert first.state()["state"] == "running", "it was not even stopped"

    # Put into the store by hand: nobody agreed to any files that it could be sealed to.
    by_hand = Mem(daemon, tmp_path / "third")
    target = daemon.home / "plugins" / "handmade"
    by_hand.root.rename(target)
    manifest = (target / "kaged-plugin.yaml").read_text(encoding="utf-8")
    (target / "kaged-plugin.yaml").write_text(
        manifest.replace("name: mem", "name: handmade"), encoding="utf-8"
    )
    daemon.restart()
    refused = daemon.error("DELETE", "/plugins/handmade?keep_data=true")
    assert refused["code"] == "plugin_store_failed"
    assert target.is_dir()
    daemon.cli("plugin", "uninstall", "handmade")
    assert not target.exists()


def test_kept_data_is_in_a_backup_and_given_back_on_another_machine(
    daemon: Daemon, own: Callable[..., Daemon], tmp_path: Path
) -> None:
    first = Mem(daemon, tmp_path / "first")
    first.run()
    first.fill()
    daemon.cli("plugin", "uninstall", "mem", "--keep-data")
    daemon.cli("backup", str(tmp_path / "copy.tar.gz"))
    daemon.stop()
    other = own()
    for name in ("config.toml", "local.toml"):
        (other.home / name).unlink()
    other.cli("restore", str(tmp_path / "copy.tar.gz"))
    other.start()
    (kept,) = other.get("/plugins")["kept"]
    assert kept["settings"] == ["api_token"]
    shutil.rmtree(tmp_path / "first")
    again = Mem(other, tmp_path / "first")  # the same files, in the same place
    again.run()
    again.require_all()
    assert other.get("/plugins")["kept"] == []


def test_doctor_tells_of_a_record_of_kept_data_that_cannot_be_read(
    daemon: Daemon, tmp_path: Path
) -> None:
    def row() -> dict[str, Any]:
        rows = daemon.cli("doctor", "--json", code=None).json["rows"]
        (found,) = [one for one in rows if one["id"] == "plugins.kept"]
        return dict(found)

    assert (row()["status"], row()["cause"]) == ("ok", "none")
    first = Mem(daemon, tmp_path / "first")
    first.run()
    first.fill()
    daemon.cli("plugin", "uninstall", "mem", "--keep-data")
    assert (row()["status"], row()["cause"]) == ("ok", "of 1 plugins")
    (place,) = below_home(daemon, SECRET)
    record = daemon.home / place
    sound = record.read_text(encoding="utf-8")
    for broken in (sound[:-20], "[]", '{"format": 9}', sound.replace('"mem"', "7")):
        record.write_text(broken, encoding="utf-8")
        said = row()
        assert said["status"] == "warn", broken
        assert record.name in said["cause"]
        assert "from a backup" in said["fix"]
        assert SECRET not in str(said)
        assert daemon.get("/plugins")["kept"] == []
    record.write_text(sound, encoding="utf-8")
    assert row()["status"] == "ok"
    first.run()
    first.require_all()


@whole("PH-INST-34")
def test_what_is_left_beside_an_unreadable_record_can_be_removed(
    daemon: Daemon, tmp_path: Path
) -> None:
    first = Mem(daemon, tmp_path / "first")
    first.run()
    first.fill()
    daemon.cli("plugin", "uninstall", "mem", "--keep-data")
    other = Mem(daemon, tmp_path / "second", "of somebody else")
    other.run()
    other.sql("CREATE TABLE theirs (a TEXT)")
    daemon.cli("plugin", "uninstall", "mem", "--keep-data")
    (place,) = below_home(daemon, SECRET)
    record = daemon.home / place
    which = f"~{record.stem}"
    assert daemon.error("DELETE", f"/plugins/{which}/kept")["code"] == "plugin_not_found", "sound"
    sound = record.read_text(encoding="utf-8")
    (folder,) = (daemon.home / "plugin-data").rglob(record.stem)
    # One that says it is another's is none; it cannot lead to what that one has.
    (its,) = (one for one in record.parent.glob("*.json") if one != record)
    forged = json.loads(sound) | {"lost_id": its.stem}
    for broken in (json.dumps(forged), sound[:-20]):
        record.write_text(broken, encoding="utf-8")
        assert [one["digest"] for one in daemon.get("/plugins")["kept"]] == [
            json.loads(its.read_text(encoding="utf-8"))["digest"]
        ]
    # The same files again get nothing, and nothing of theirs can be put on top of what is left.
    first.run()
    assert first.tables() == []
    first.sql("CREATE TABLE fresh (a TEXT)")
    refused = daemon.error("DELETE", "/plugins/mem?keep_data=true")
    assert refused["code"] == "plugin_store_failed"
    assert which in str(refused)
    assert first.state()["state"] == "running"

    rows = daemon.cli("doctor", "--json", code=None).json["rows"]
    (row,) = [one for one in rows if one["id"] == "plugins.kept"]
    assert f"kaged plugin forget '{which}'" in row["fix"]
    told = daemon.cli("plugin", "forget", which).out
    assert "tables: Notes, later, tags" in told
    assert "data folder" in told
    assert below_home(daemon, SECRET) == []
    assert not folder.exists()
    assert daemon.audit("plugin.kept_data_removed")[-1]["data"]["name"] == record.stem
    assert daemon.error("DELETE", f"/plugins/{which}/kept")["code"] == "plugin_not_found"
    # What runs, and what is kept of others, is as it was.
    assert first.tables() == ["fresh"]
    assert [one["tables"] for one in daemon.get("/plugins")["kept"]] == [["theirs"]]
    daemon.cli("plugin", "uninstall", "mem")
    other.run()
    assert other.tables() == ["theirs"]
    daemon.cli("plugin", "uninstall", "mem")
    assert table_names(daemon) == []
