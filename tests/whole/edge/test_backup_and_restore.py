"""A whole home in one file, made while the daemon works, and put into an empty home."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sqlite3
import stat
import tarfile
import threading
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon
from whole.harness.project import Project

Own = Callable[..., Daemon]


def _refused(daemon: Daemon, *words: str) -> str:
    done = daemon.cli(*words, "--json", code=None)
    assert done.code != 0, done
    return str(json.loads(done.err)["error"]["code"])


def _filled(daemon: Daemon, tmp_path: Path) -> Project:
    daemon.start()
    project = daemon.load(Project(tmp_path / "project"))
    project.post("/issues", {"title": "Kept", "body": "whole"})
    project.call("file.create", path="a.txt", content="a")
    return project


def test_what_was_kept_is_there_again_on_an_empty_machine(own: Own, tmp_path: Path) -> None:
    first, second = own(), own()
    project = _filled(first, tmp_path)
    (first.home / "plugin-data" / "notes").mkdir(parents=True)
    (first.home / "plugin-data" / "notes" / "n.txt").write_text("kept", encoding="utf-8")
    (first.home / "plugin-data" / "notes" / "link").symlink_to("n.txt")
    file = tmp_path / "copy.tar.gz"
    made = first.cli("backup", str(file), "--json").json
    assert made["files"] >= 5
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert first.running  # it went on meanwhile
    project.post("/issues", {"title": "Too late", "body": ""})
    first.stop()
    for name in ("config.toml", "local.toml"):
        (second.home / name).unlink()
    second.cli("restore", str(file))
    for name in ("audit.key", "vault.key", "config.toml", "local.toml"):
        kept, there = first.home / name, second.home / name
        if kept.exists():
            assert there.read_bytes() == kept.read_bytes(), name
            assert stat.S_IMODE(there.stat().st_mode) == 0o600
    assert (second.home / "plugin-data/notes/link").read_text(encoding="utf-8") == "kept"
    assert not (second.home / ".restore").exists()
    second.start()
    titles = [one["title"] for one in second.get(f"/projects/{project.id}/issues")["items"]]
    assert titles == ["Kept"]
    assert second.post("/audit/verify")["ok"]
    # The second copy, of the second home, is as good as the first.
    assert second.cli("backup", str(tmp_path / "again.tar.gz"), "--json").json["files"] > 0


def test_files_that_come_and_go_meanwhile_spoil_no_backup(own: Own, tmp_path: Path) -> None:
    """As those of plugins do, which write beside a file and rename."""
    daemon = own()
    _filled(daemon, tmp_path)
    folder = daemon.home / "plugin-data" / "busy"
    folder.mkdir(parents=True)
    (folder / "stays").write_text("here", encoding="utf-8")
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            made = [folder / f"{number}.new" for number in range(200)]
            for one in made:
                one.write_text("x", encoding="utf-8")
            for one in made:
                one.unlink()

    busy = threading.Thread(target=come_and_go, daemon=True)
    busy.start()
    try:
        for number in range(3):
            file = tmp_path / f"copy{number}.tar.gz"
            assert daemon.cli("backup", str(file), "--json").json["files"] >= 5
            with tarfile.open(file) as tar:
                assert "data/plugin-data/busy/stays" in tar.getnames()
    finally:
        ended.set()
        busy.join(timeout=60)


def test_a_plugins_own_database_is_as_it_was_at_one_moment(own: Own, tmp_path: Path) -> None:
    """Two programs write without a pause; in each copy what one transaction wrote is together."""
    daemon, empty = own(), own()
    _filled(daemon, tmp_path)
    folder = daemon.home / "plugin-data" / "busy"
    folder.mkdir(parents=True)
    ended = threading.Event()

    def write(mode: str) -> None:
        with closing(sqlite3.connect(folder / f"{mode}.db", isolation_level=None)) as own_db:
            own_db.execute(f"PRAGMA journal_mode = {mode}").fetchall()
            own_db.execute("PRAGMA synchronous = OFF")
            own_db.execute("CREATE TABLE a (n, filling)")
            own_db.execute("CREATE TABLE b (n, filling)")
            number = 0
            while not ended.is_set():
                number += 1
                own_db.execute("BEGIN IMMEDIATE")
                for table in ("a", "b"):
                    own_db.execute(f"INSERT INTO {table} VALUES (?, ?)", (number, "x" * 900))
                own_db.execute("COMMIT")
                ended.wait(0.002)

    writers = [threading.Thread(target=write, args=(mode,)) for mode in ("wal", "delete")]
    for one in writers:
        one.start()
    file = tmp_path / "2.tar.gz"
    try:
        for number in range(3):
            file = tmp_path / f"{number}.tar.gz"
            daemon.cli("backup", str(file))
            with tarfile.open(file) as tar:
                names = [one.name for one in tar if "/busy/" in one.name]
            assert sorted(names) == [f"data/plugin-data/busy/{one}.db" for one in ("delete", "wal")]
    finally:
        ended.set()
        for one in writers:
            one.join()
    daemon.stop()
    for name in ("config.toml", "local.toml"):
        (empty.home / name).unlink()
    empty.cli("restore", str(file))
    for mode in ("wal", "delete"):
        path = empty.home / "plugin-data" / "busy" / f"{mode}.db"
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(
            (folder / path.name).stat().st_mode
        )
        with closing(sqlite3.connect(path)) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            counts = [copy.execute(f"SELECT count(*) FROM {one}").fetchone()[0] for one in "ab"]
        assert counts[0] == counts[1] > 0


def test_a_backup_never_replaces_a_file_and_leaves_none_half_written(
    own: Own, tmp_path: Path
) -> None:
    daemon = own()
    _filled(daemon, tmp_path)
    file = tmp_path / "copy.tar.gz"
    file.write_text("mine", encoding="utf-8")
    assert _refused(daemon, "backup", str(file)) == "archive_target_exists"
    assert file.read_text(encoding="utf-8") == "mine"
    assert _refused(daemon, "backup", str(tmp_path / "no" / "copy")) == "archive_unwritable"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["copy.tar.gz", "h0", "project"]


def test_a_restore_is_refused_beside_a_daemon_and_where_there_is_data(
    own: Own, tmp_path: Path
) -> None:
    daemon = own()
    project = _filled(daemon, tmp_path)
    file = tmp_path / "copy.tar.gz"
    daemon.cli("backup", str(file))
    assert _refused(daemon, "restore", str(file)) == "daemon_running"
    project.post("/issues", {"title": "Newer", "body": ""})
    daemon.stop()
    before = (daemon.home / "kaged.db").read_bytes()
    assert _refused(daemon, "restore", str(file)) == "restore_not_empty"
    assert (daemon.home / "kaged.db").read_bytes() == before
    daemon.cli("restore", str(file), "--replace")
    aside = list(daemon.home.glob("replaced-*"))
    assert len(aside) == 1
    assert before in [one.read_bytes() for one in aside[0].rglob("kaged.db")]
    daemon.start()
    titles = [one["title"] for one in daemon.get(f"/projects/{project.id}/issues")["items"]]
    assert titles == ["Kept"]


def _forged(
    source: Path, target: Path, change: Callable[[dict[str, Any]], None], *, fits: bool = True
) -> Path:
    """Copy an archive with other members; the manifest is made to fit them, or left as it was."""
    members: dict[str, Any] = {}
    with tarfile.open(source) as tar:
        for one in tar:
            file = tar.extractfile(one)
            members[one.name] = b"" if file is None else file.read()
    manifest = json.loads(members.pop("manifest.json"))
    change(members)
    fitting = {
        name: {"size": 0, "mode": 0o600, "link": content}
        if isinstance(content, str)
        else {"size": len(content), "mode": 0o600, "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members.items()
    }
    manifest["files"] = fitting if fits else manifest["files"]
    members["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(target, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return target


ABSOLUTE = Path(f"/tmp/kgd-escaped-{os.getpid()}")
FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a file outside": lambda all_: all_.update({"data/../../escaped": b"x"}),
    "an absolute file": lambda all_: all_.update({str(ABSOLUTE): b"x"}),
    "another folder": lambda all_: all_.update({"etc/passwd": b"x"}),
    "a link to outside": lambda all_: all_.update({"data/out": "../../../etc"}),
    "an absolute link": lambda all_: all_.update({"data/out": "/etc"}),
    "no database": lambda all_: all_.pop("database"),
    "a link for a database": lambda all_: all_.update({"database": "data/x"}),
}


SWAPS: dict[str, Callable[[dict[str, Any]], None]] = {
    "other content of the same size": lambda all_: all_.update(
        {"data/audit.key": all_["data/audit.key"][::-1]}
    ),
    "a file less": lambda all_: all_.pop("data/audit.key"),
    "a file more": lambda all_: all_.update({"data/more": b"x"}),
}


def _changed(whole: bytes) -> bytes:
    """Change a byte of an archive that counts; one that stands for zeros may change nothing."""
    inside = gzip.decompress(whole)
    for at in range(len(whole) // 2, len(whole)):
        made = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        try:
            if gzip.decompress(made) != inside:
                return made
        except (OSError, EOFError, zlib.error):
            return made
    raise AssertionError("no byte of it counts")


def test_an_archive_that_is_damaged_or_forged_changes_nothing(own: Own, tmp_path: Path) -> None:
    daemon, empty = own(), own()
    _filled(daemon, tmp_path)
    file = tmp_path / "copy.tar.gz"
    daemon.cli("backup", str(file))
    for name in ("config.toml", "local.toml"):
        (empty.home / name).unlink()
    whole = file.read_bytes()
    bad = tmp_path / "bad.tar.gz"
    damaged = {
        "cut short": whole[: len(whole) // 2],
        "without its manifest": whole[: len(whole) * 9 // 10],
        "a byte changed": _changed(whole),
        "no archive": b"hello" * 100,
        "empty": b"",
    }
    for what, content in damaged.items():
        bad.write_bytes(content)
        assert _refused(empty, "restore", str(bad)) == "archive_invalid", what
    for what, change in FORGERIES.items():
        bad.unlink()
        assert _refused(empty, "restore", str(_forged(file, bad, change))) == "archive_invalid", (
            what
        )
    for what, change in SWAPS.items():
        bad.unlink()
        made = _forged(file, bad, change, fits=False)
        assert _refused(empty, "restore", str(made)) == "archive_invalid", what
    assert not (tmp_path / "escaped").exists()
    assert not ABSOLUTE.exists()
    left = {one.name for one in empty.home.iterdir()} - {"run", "logs", "backups", "daemon.lock"}
    assert {one for one in left if any((empty.home / one).rglob("*"))} == set()
    assert _refused(empty, "restore", str(tmp_path / "none")) == "archive_unwritable"
    empty.cli("restore", str(file))  # and the good one still fits
