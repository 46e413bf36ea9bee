"""Names that people give their files, made harmless."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.toolbox.project.errors import WorkError
from kaged.toolbox.project.uploads import FILES_LIMIT, Upload, UploadPlace, safe_name, store_uploads
from raising import raises_code


@given(st.text())
def test_every_name_becomes_a_plain_file_name(name: str) -> None:
    safe = safe_name(name)
    assert safe not in {"", ".", ".."}
    assert not set("/\\\0\n:") & set(safe)
    assert not safe.startswith((".", " "))
    assert len(safe.encode("utf-8")) <= 120


def test_names_stay_recognizable() -> None:
    assert safe_name("../../etc/passwd") == "passwd"
    assert safe_name("C:\\Users\\me\\Report (1).pdf") == "Report _1_.pdf"
    assert safe_name("résumé.doc") == "résumé.doc"
    assert safe_name("x" * 300 + ".png").endswith(".png")
    assert safe_name("...") == "file"


@pytest.mark.parametrize("folder", ["", "..", "a/b", "-x", "a" * 200, "a\n"])
def test_a_folder_has_a_plain_name(folder: str) -> None:
    with raises_code("upload_refused", WorkError):
        UploadPlace.in_project("/nowhere", folder)


def test_there_are_not_too_many_files() -> None:
    files = {str(number): Upload("a", b"") for number in range(FILES_LIMIT + 1)}
    with raises_code("upload_refused", WorkError):
        store_uploads(UploadPlace.in_project("/nowhere", "folder"), files)
