"""Which imports of a Python file mean a module that is about to move."""

from __future__ import annotations

import pytest

from kaged.toolbox.lsp.importers import import_line


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("import pack.util\n", "main.py", 1),
        ("import os, pack.util as u\n", "main.py", 1),
        ("import os\n\ndef f():\n    from pack.util import x\n", "main.py", 4),
        ("from pack import (\n    other,\n    util,\n)\n", "main.py", 1),
        ("from src.pack import util\n", "main.py", 1),
        ("from . import util\n", "src/pack/__init__.py", 1),
        ("from .util import x\n", "src/pack/a.py", 1),
        ("from ..util import x\n", "src/pack/deep/a.py", 1),
        ("from .. import util\n", "src/pack/deep/a.py", 1),
        ("import util\n", "src/pack/script.py", 1),
        ("import util\n", "main.py", None),
        ("from .util import x\n", "src/other/a.py", None),
        ("from ..util import x\n", "src/pack/a.py", None),
        ("from other import util\n", "main.py", None),
        ("import pack.utils\n", "main.py", None),
        ("import packs.util\n", "main.py", None),
        ("'import pack.util'\n# import pack.util\n", "main.py", None),
        ("import pack.util (\n", "main.py", None),
    ],
)
def test_an_import_means_the_module_or_it_does_not(text: str, path: str, line: int | None) -> None:
    assert import_line(text, f"/p/{path}", "/p", "/p/src/pack/util") == line


@pytest.mark.parametrize("text", ["import pack\n", "import pack.util\n", "from pack import x\n"])
def test_a_package_is_imported_by_its_name(text: str) -> None:
    assert import_line(text, "/p/main.py", "/p", "/p/pack") == 1
