"""Folders of skills: what is read, what is refused, and that nothing leads out of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fakes.file_clock import settle
from kaged.config.skill_file import SkillFileInvalid
from kaged.skills import folder as folder_module
from kaged.skills import library as library_module
from kaged.skills.copies import SkillCopies
from kaged.skills.folder import read_folder
from kaged.skills.library import SkillLibrary, SkillSource, read_skill
from raising import raises_code

FRONT = "---\nname: {name}\ndescription: Does it.\n---\nGo.\n"


def make(place: Path, name: str, front: str = FRONT) -> Path:
    folder = place / name
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(front.format(name=name), encoding="utf-8")
    script = folder / "scripts" / "go.py"
    script.write_text("print(1)\n", encoding="utf-8")
    script.chmod(0o755)
    return folder


def refusal(folder: Path, inside: Path) -> str:
    with pytest.raises(SkillFileInvalid) as caught:
        read_folder(folder, inside)
    return caught.value.message


def test_every_file_counts_for_the_digest_and_leavings_do_not(tmp_path: Path) -> None:
    folder = make(tmp_path, "mail")
    first = read_folder(folder, tmp_path)
    assert [one.path for one in first.files] == ["SKILL.md", "scripts/go.py"]
    assert [one.executable for one in first.files] == [False, True]
    for left in (".git", "scripts/__pycache__"):
        (folder / left).mkdir(parents=True)
        (folder / left / "x").write_text("x", encoding="utf-8")
    assert read_folder(folder, tmp_path).digest == first.digest
    (folder / "scripts" / "go.py").chmod(0o644)
    second = read_folder(folder, tmp_path)
    assert second.digest != first.digest
    (folder / "scripts" / "go.py").rename(folder / "scripts" / "do.py")
    assert read_folder(folder, tmp_path).digest not in {first.digest, second.digest}


def test_an_unchanged_folder_is_not_read_again_and_a_changed_one_is(tmp_path: Path) -> None:
    folder = make(tmp_path, "mail")
    fresh = read_folder(folder, tmp_path)
    assert read_folder(folder, tmp_path, fresh) is not fresh, "it may change in the same moment"
    settle()
    first = read_folder(folder, tmp_path)
    assert read_folder(folder, tmp_path, first) is first
    script = folder / "scripts" / "go.py"
    times = script.stat()
    script.write_text("print(2)\n", encoding="utf-8")  # of the same length
    os.utime(script, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert read_folder(folder, tmp_path, first).digest != first.digest


def test_links_lead_to_files_of_the_skill_and_to_nothing_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s", encoding="utf-8")
    folder = make(tmp_path / "skills", "mail")
    (folder / "again.py").symlink_to("scripts/go.py")
    found = read_folder(folder, tmp_path / "skills")
    assert {one.path: one.sha256 for one in found.files}["again.py"] == found.files[-1].sha256
    for number, target in enumerate((secret, "../../secret", "scripts", "nowhere")):
        link = folder / f"link{number}"
        link.symlink_to(target)
        assert f"link{number} is a link" in refusal(folder, tmp_path / "skills")
        link.unlink()
    elsewhere = make(tmp_path / "other", "cal")
    (tmp_path / "skills" / "cal").symlink_to(elsewhere)
    assert "leads elsewhere" in refusal(tmp_path / "skills" / "cal", tmp_path / "skills")
    assert read_folder(tmp_path / "skills" / "cal", tmp_path).files


def test_pipes_and_folders_that_are_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path, "mail")
    os.mkfifo(folder / "pipe")
    assert "neither a file nor a folder" in refusal(folder, tmp_path)
    (folder / "pipe").unlink()
    monkeypatch.setattr(folder_module, "FILES_LIMIT", 1)
    assert "more than 1 files" in refusal(folder, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(folder_module, "FOLDER_LIMIT_BYTES", 20)
    assert "larger than" in refusal(folder, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(folder_module, "DEPTH_LIMIT", 0)
    assert "nested" in refusal(folder, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(folder_module, "SKILL_FILE_LIMIT_BYTES", 10)
    assert "SKILL.md is larger" in refusal(folder, tmp_path)
    monkeypatch.undo()
    (folder / "SKILL.md").write_bytes(b"---\ndescription: a\n---\n\xff\n")
    assert "line 4" in refusal(folder, tmp_path)
    (folder / "SKILL.md").unlink()
    assert "no SKILL.md" in refusal(folder, tmp_path)


def test_the_first_place_counts_and_refused_skills_say_why_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    make(own, "mail")
    make(other, "mail", "---\ndescription: Another.\n---\n")
    make(other, "cal", "---\ndescription: Calendar.\ncommand: [evil]\nimage: evil\n---\n")
    make(other, "broken", "---\naccess: {{users: [x]}}\n---\n")
    (other / "no-skill").mkdir()
    library = SkillLibrary(SkillSource.PROJECT, [own, other, tmp_path / "none"], tmp_path)
    with capture_logs() as logs:
        found = library.look()
        again = library.look()
    assert sorted(found.skills) == ["cal", "mail"]
    assert found.skills["mail"].file.description == "Does it."
    assert again.skills["mail"] is found.skills["mail"]
    assert list(found.refused) == ["broken"]
    assert sorted(one["event"] for one in logs) == ["skill.ignored", "skill.refused"]
    assert next(one for one in logs if "fields" in one)["fields"] == ["command", "image"]
    assert "evil" not in str(logs)
    monkeypatch.setattr(library_module, "SKILLS_LIMIT", 2)
    assert len(library.look().skills) == 2 or "more than 2" in str(library.look().refused)


def test_a_copy_holds_the_digested_bytes_and_is_made_once(tmp_path: Path) -> None:
    place, cache = tmp_path / "skills", tmp_path / "cache"
    cache.mkdir()
    folder = make(place, "mail")
    skill = read_skill(folder, SkillSource.PROJECT, place)
    copies = SkillCopies(cache)
    made = copies.ensure(skill)
    assert (made / "scripts" / "go.py").read_text(encoding="utf-8") == "print(1)\n"
    assert (made / "scripts" / "go.py").stat().st_mode & 0o777 == 0o555
    assert (made / "SKILL.md").stat().st_mode & 0o777 == 0o444
    (folder / "scripts" / "go.py").write_text("print(2)\n", encoding="utf-8")
    assert copies.ensure(skill) == made
    assert (made / "scripts" / "go.py").read_text(encoding="utf-8") == "print(1)\n"
    changed = read_skill(folder, SkillSource.PROJECT, place)
    (folder / "scripts" / "go.py").write_text("print(3)\n", encoding="utf-8")
    with raises_code("skill_changed"):
        copies.ensure(changed)
    assert [one.name for one in cache.iterdir()] == [made.name]
