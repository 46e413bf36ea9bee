"""The git configuration of exec cages holds an identity and nothing that runs."""

from __future__ import annotations

from pathlib import Path

from kaged.lua.gitsettings import cage_config, operator_settings, read_settings


def test_settings_are_read_as_git_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        '[core]\n\tautocrlf = input ; note\n[remote "a.b"]\n\turl = x\n'
        '[user] name = "A \\"B\\" #1"\n'
        "[include]\n\tpath = ../other\n# comment\n[alias]\n\tst\n",
        encoding="utf-8",
    )
    assert dict(read_settings(path)) == {
        "core.autocrlf": "input",
        "remote.url": "x",
        "user.name": 'A "B" #1',
        "include.path": "../other",
        "alias.st": "true",
    }


def test_only_identity_and_line_ends_are_taken_from_the_operator(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text(
        "[user]\n\tname = Ada\n\temail = a@b\n\tsigningkey = K\n"
        "[core]\n\teol = lf\n\tpager = evil\n"
        "[credential]\n\thelper = store\n",
        encoding="utf-8",
    )
    found = operator_settings({"HOME": str(tmp_path)})
    assert found == {"user.name": "Ada", "user.email": "a@b", "core.eol": "lf"}
    text = cage_config(found, ("/w", "/w/.git"))
    assert "evil" not in text
    assert text.count("directory = ") == 2


def test_without_a_configuration_the_identity_is_neutral(tmp_path: Path) -> None:
    found = operator_settings({"HOME": str(tmp_path)})
    assert set(found) == {"user.name", "user.email"}
    assert operator_settings({}) == found


def test_a_value_cannot_break_out_of_its_line(tmp_path: Path) -> None:
    text = cage_config({"user.name": 'x"\n[core]\n\tpager = evil'}, ())
    path = tmp_path / "made"
    path.write_text(text, encoding="utf-8")
    assert dict(read_settings(path))["user.name"].startswith('x"')
    assert "core.pager" not in dict(read_settings(path))
