"""`file.read` through dispatch: windows of numbered lines, listings, binaries, and refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fakes.tool_lab import ToolLab, cage
from kaged.toolbox.files import file_tools
from kaged.toolbox.files import read as read_module
from kaged.workspace import ChangeKind, FileChange
from requirements import requirement

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01"


@pytest.fixture
def lab(tmp_path: Path) -> ToolLab:
    return ToolLab(tmp_path, file_tools())


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(1, count + 1))


@requirement("AT-FILE-01")
@pytest.mark.parametrize("text", ["src/../src/a.py", "src/a.py", "./src/a.py", "src//./a.py"])
async def test_every_spelling_is_answered_with_the_normal_form(lab: ToolLab, text: str) -> None:
    (lab.root / "src").mkdir()
    (lab.root / "src" / "a.py").write_text("x\n", encoding="utf-8")
    assert (await lab.call("file.read", path=text))["path"] == "./src/a.py"


@requirement("AT-FILE-04")
async def test_two_thousand_lines_is_the_default_and_zero_is_no_number(lab: ToolLab) -> None:
    (lab.root / "a").write_text(lines(2500), encoding="utf-8")
    answer = await lab.call("file.read", path="a")
    assert answer["content"].split("\n")[0] == "1: line 1"
    assert answer["content"].split("\n")[-1] == "2000: line 2000"
    assert (answer["total_lines"], answer["truncated"], answer["next_offset"]) == (2500, True, 2001)
    wrong: list[dict[str, Any]] = [
        {"offset": 0}, {"offset": -1}, {"limit": 0}, {"limit": -5},
        {"offset": "1"}, {"limit": True}, {"offset": 1.5},
    ]  # fmt: skip
    for extra in wrong:
        error = await lab.refusal("file.read", path="a", **extra)
        assert error.code == "invalid_params", extra
    assert (await lab.refusal("file.read", offset=1)).code == "invalid_params"
    assert (await lab.refusal("file.read", path=5)).code == "invalid_params"


@requirement("AT-FILE-05")
async def test_a_text_file_gives_exactly_five_fields(lab: ToolLab) -> None:
    (lab.root / "a.txt").write_text("hello\nworld\n", encoding="utf-8")
    assert await lab.call("file.read", path="a.txt") == {
        "path": "./a.txt",
        "type": "file",
        "content": "1: hello\n2: world",
        "total_lines": 2,
        "truncated": False,
    }


@requirement("AT-FILE-06")
@pytest.mark.parametrize("data", [b"a\nb\nc\n", b"a\nb\nc", b"a\r\nb\r\nc\r\n", b"a\r\nb\nc\r\n"])
async def test_line_ends_are_no_part_of_the_text(lab: ToolLab, data: bytes) -> None:
    (lab.root / "a").write_bytes(data)
    answer = await lab.call("file.read", path="a")
    assert (answer["content"], answer["total_lines"]) == ("1: a\n2: b\n3: c", 3)


async def test_tabs_form_feeds_and_lone_returns_stay_in_their_line(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes("a\tb\rc\x0cd\x85e\u2028f\n\n".encode())
    answer = await lab.call("file.read", path="a")
    assert answer["content"] == "1: a\tb\rc\x0cd\x85e\u2028f\n2: "
    assert answer["total_lines"] == 2


@requirement("AT-FILE-07")
async def test_a_window_is_not_renumbered(lab: ToolLab) -> None:
    (lab.root / "a").write_text(lines(100), encoding="utf-8")
    answer = await lab.call("file.read", path="a", offset=10, limit=11)
    assert answer["content"] == "\n".join(f"{n}: line {n}" for n in range(10, 21))
    assert answer["total_lines"] == 100


@requirement("AT-FILE-08")
async def test_truncated_says_whether_lines_remain(lab: ToolLab) -> None:
    (lab.root / "a").write_text(lines(10), encoding="utf-8")
    first = await lab.call("file.read", path="a", limit=5)
    assert (first["truncated"], first["next_offset"]) == (True, 6)
    rest = await lab.call("file.read", path="a", offset=6, limit=5)
    assert rest["truncated"] is False
    assert "next_offset" not in rest


@requirement("AT-FILE-09")
async def test_past_the_end_and_empty_files_are_answered_plainly(lab: ToolLab) -> None:
    (lab.root / "a").write_text(lines(10), encoding="utf-8")
    (lab.root / "empty").touch()
    answer = await lab.call("file.read", path="a", offset=999)
    assert (answer["content"], answer["total_lines"], answer["truncated"]) == ("", 10, False)
    answer = await lab.call("file.read", path="empty")
    assert (answer["content"], answer["total_lines"], answer["truncated"]) == ("", 0, False)


@requirement("AT-FILE-10")
async def test_long_lines_are_cut_with_a_mark(lab: ToolLab) -> None:
    exact, longer = "é" * 2000, "x" * 5000
    (lab.root / "a").write_text(f"{exact}\n{longer}\nshort\n", encoding="utf-8")
    answer = await lab.call("file.read", path="a")
    assert answer["content"] == f"1: {exact}\n2: {'x' * 2000}[truncated]\n3: short"
    assert answer["truncated"] is False


@requirement("AT-FILE-11")
async def test_a_directory_gives_its_entries(lab: ToolLab) -> None:
    (lab.root / "d" / "sub").mkdir(parents=True)
    (lab.root / "d" / "a.txt").touch()
    answer = await lab.call("file.read", path="d")
    assert (answer["type"], answer["content"]) == ("directory", "a.txt\nsub/")
    assert answer["path"] == "./d"


@requirement("AT-FILE-12")
async def test_a_listing_is_sorted_and_paged(lab: ToolLab) -> None:
    (lab.root / "d").mkdir()
    for name in ("e", "b", "d", "a", "c"):
        (lab.root / "d" / name).touch()
    answer = await lab.call("file.read", path="d", limit=2)
    assert (answer["content"], answer["total_lines"], answer["truncated"]) == ("a\nb", 5, True)
    answer = await lab.call("file.read", path="d", offset=4)
    assert (answer["content"], answer["truncated"]) == ("d\ne", False)


async def test_names_that_are_no_text_are_listed_as_escapes(lab: ToolLab) -> None:
    for name in (b"new\nline", b"caf\xe9", b"ok", b"tab\there"):
        Path(os.fsdecode(os.fsencode(lab.root) + b"/" + name)).touch()
    answer = await lab.call("file.read", path=".")
    assert sorted(answer["content"].split("\n")) == ["caf\\xe9", "new\\nline", "ok", "tab\\there"]


async def test_a_link_is_listed_by_its_name_alone(lab: ToolLab) -> None:
    """Whether there is a directory behind it may be nobody's business."""
    (lab.root / "link").symlink_to("/etc")
    assert (await lab.call("file.read", path="."))["content"] == "link"


async def test_a_directory_without_end_is_looked_at_in_part(
    lab: ToolLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_module, "MAX_ENTRIES", 3)
    for number in range(5):
        (lab.root / f"{number}").touch()
    answer = await lab.call("file.read", path=".")
    assert (answer["total_lines"], answer["truncated"]) == (3, True)
    assert "more than 3" in answer["notice"]


@requirement("AT-FILE-13")
async def test_a_binary_file_has_a_size_and_a_kind_but_no_content(lab: ToolLab) -> None:
    (lab.root / "x.png").write_bytes(PNG)
    assert await lab.call("file.read", path="x.png") == {
        "path": "./x.png",
        "type": "binary",
        "size": len(PNG),
        "mime": "image/png",
    }


@requirement("AT-FILE-14")
@pytest.mark.parametrize(
    ("name", "data", "mime"),
    [
        ("png.txt", PNG, "image/png"),
        ("text.png", b"just text\n", None),
        ("nul.bin", b"a\0b", "application/octet-stream"),
        ("nul.txt", b"a\0b", "application/octet-stream"),
        ("late.txt", b"a" * 9000 + b"\0", None),
        ("edge.txt", b"a" * 8191 + b"\0", "application/octet-stream"),
        ("a.pdf", b"%PDF-1.7\nall text", "application/pdf"),
        ("a", b"\x1f\x8b\x08 whatever", "application/gzip"),
        ("wide.txt", b"\xff\xfeh\0i\0", "text/plain; charset=utf-16le"),
        ("latin.txt", b"\xff\xfe no NUL here", None),
        ("a.docx", b"PK\x03\x04\x00", None),
        ("a.webp", b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        ("a.mp3", b"ID3\x03\x00", "audio/mpeg"),
    ],
)
async def test_what_is_binary_is_decided_by_content(
    lab: ToolLab, name: str, data: bytes, mime: str | None
) -> None:
    (lab.root / name).write_bytes(data)
    answer = await lab.call("file.read", path=name)
    if name == "a.docx":
        assert answer["mime"] in {
            "application/zip",
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        }
    elif mime is None:
        assert answer["type"] == "file"
    else:
        assert (answer["type"], answer["mime"]) == ("binary", mime)


@requirement("AT-FILE-15")
async def test_what_is_no_utf8_is_shown_with_replacement_characters(lab: ToolLab) -> None:
    (lab.root / "latin").write_bytes("caf\xe9\nna\xefve\n".encode("latin-1"))
    (lab.root / "bom").write_bytes(b"\xef\xbb\xbfhello\n")
    assert (await lab.call("file.read", path="latin"))["content"] == "1: caf\ufffd\n2: na\ufffdve"
    assert (await lab.call("file.read", path="bom"))["content"] == "1: hello"


@requirement("AT-FILE-16")
@pytest.mark.parametrize("path", ["./nope", "nope", "src/../nope", "./nope/"])
async def test_a_missing_path_is_said_to_be_missing(lab: ToolLab, path: str) -> None:
    error = await lab.refusal("file.read", path=path)
    assert error.code == "file_not_found"
    assert error.number == -32000
    assert "./nope" in error.message
    assert error.detail == {"path": "./nope", "requested": path}


@requirement("AT-FILE-18")
async def test_what_is_no_file_is_refused_without_opening_it(lab: ToolLab) -> None:
    """Opening a FIFO would wait for somebody to write; the call returns at once."""
    os.mkfifo(lab.root / "fifo")
    error = await lab.refusal("file.read", path="fifo")
    assert error.code == "invalid_params"
    assert "FIFO" in error.message


@requirement("AT-FILE-20", "AT-AMB-38")
@pytest.mark.parametrize(
    ("data", "window"),
    [(b"1\n2\n3\n", {"offset": 2, "limit": 1}), (PNG, {}), (b"x", {"offset": 9})],
)
async def test_any_read_of_a_file_counts_as_having_read_it(
    lab: ToolLab, data: bytes, window: dict[str, Any]
) -> None:
    (lab.root / "d").mkdir()
    (lab.root / "d" / "a").write_bytes(data)
    await lab.call("file.read", path="d")
    error = await lab.refusal("file.write", path="d/a", content="new")
    assert error.code == "file_not_read", "listing a directory reads none of its files"
    await lab.call("file.read", path="d/a", **window)
    await lab.call("file.write", path="d/a", content="new")
    assert (lab.root / "d" / "a").read_bytes() == b"new"


async def test_listeners_hear_that_a_file_was_read(lab: ToolLab) -> None:
    heard: list[FileChange] = []
    lab.workspace.changes.subscribe(heard.append)
    (lab.root / "a").write_bytes(b"x")
    await lab.call("file.read", path="a")
    await lab.call("file.read", path=".")
    assert [(one.kind, one.path.relative) for one in heard] == [(ChangeKind.READ, "./a")]


async def test_an_answer_has_a_size_however_many_lines_are_asked_for(lab: ToolLab) -> None:
    (lab.root / "a").write_text(("x" * 1999 + "\n") * 2000, encoding="utf-8")
    answer = await lab.call("file.read", path="a", limit=2**53 - 1)
    assert len(answer["content"]) <= 1024 * 1024
    assert (answer["total_lines"], answer["truncated"]) == (2000, True)
    again = await lab.call("file.read", path="a", offset=answer["next_offset"], limit=1)
    assert again["content"].startswith(f"{answer['next_offset']}: x")


async def test_a_file_without_end_is_refused(lab: ToolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    with (lab.root / "huge").open("wb") as file:
        file.truncate(2 * 1024**3 + 1)
    error = await lab.refusal("file.read", path="huge")
    assert error.code == "file_too_large"
    monkeypatch.setattr(read_module, "MAX_READ_BYTES", 5)
    (lab.root / "grows").write_bytes(b"x" * 6)
    assert (await lab.refusal("file.read", path="grows")).code == "file_too_large"


async def test_a_long_text_file_is_counted_to_its_end(lab: ToolLab) -> None:
    line = b"x" * 99 + b"\n"
    (lab.root / "a").write_bytes(line * 50_000)
    answer = await lab.call("file.read", path="a", offset=49_999)
    assert answer["content"].split("\n") == [f"{n}: {'x' * 99}" for n in (49_999, 50_000)]
    one_line = b"y" * 10_000_000
    (lab.root / "b").write_bytes(one_line)
    answer = await lab.call("file.read", path="b")
    assert answer["content"] == f"1: {'y' * 2000}[truncated]"
    assert answer["total_lines"] == 1


# -- did you mean --------------------------------------------------------------------------------


async def test_a_misspelt_path_is_answered_with_a_guess(lab: ToolLab) -> None:
    (lab.root / "src" / "deep").mkdir(parents=True)
    (lab.root / "src" / "main.py").touch()
    (lab.root / "src" / "deep" / "config.toml").touch()
    for wrong, right in (
        ("src/mian.py", "./src/main.py"),
        ("src/Main.py", "./src/main.py"),
        ("config.toml", "./src/deep/config.toml"),
    ):
        error = await lab.refusal("file.read", path=wrong)
        assert isinstance(error.detail, dict)
        assert error.detail["did_you_mean"] == [right], wrong
        assert right in error.as_json()["message"]  # type: ignore[operator]  # it is a text


async def test_a_guess_never_names_what_the_caller_may_not_read(tmp_path: Path) -> None:
    for place in ("src", "data", "src/inner"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "secret.txt").touch()
    (tmp_path / "src" / "link").symlink_to("../data")
    lab = ToolLab(tmp_path, file_tools(), cage("ro ./src/inner", root=tmp_path))
    error = await lab.refusal("file.read", path="src/inner/secrets.txt")
    assert isinstance(error.detail, dict)
    assert error.detail["did_you_mean"] == ["./src/inner/secret.txt"]
    lab = ToolLab(tmp_path, file_tools(), cage("ro ./src", root=tmp_path))
    error = await lab.refusal("file.read", path="src/nothing/secret.txt")
    assert isinstance(error.detail, dict)
    assert error.detail["did_you_mean"] == ["./src/secret.txt", "./src/inner/secret.txt"]
    assert "data" not in str(error.as_json())


async def test_a_guess_looks_at_a_bounded_number_of_names(
    lab: ToolLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.toolbox.files.suggest.MAX_LOOKED_AT", 5)
    for number in range(10):
        (lab.root / f"d{number}").mkdir()
        (lab.root / f"d{number}" / "wanted.py").touch()
    error = await lab.refusal("file.read", path="x/wanted.py")
    assert isinstance(error.detail, dict)
    assert "did_you_mean" not in error.detail
