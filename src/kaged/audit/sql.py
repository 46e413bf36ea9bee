"""`redact_sql`: a statement without the values in it."""

from __future__ import annotations

import re

_LITERAL = re.compile(
    r"--[^\n]*"  # comments may quote anything
    r"|/\*.*?(?:\*/|\Z)"
    r"|[xXbBeEnN]?'(?:[^']|'')*(?:'|\Z)"  # text, blobs; an open quote runs to the end
    r'|"(?:[^"]|"")*(?:"|\Z)'  # SQLite reads an unknown "name" as text, so it may be a value
    r"|`(?:[^`]|``)*(?:`|\Z)"
    r"|\$([A-Za-z_]*)\$.*?(?:\$\1\$|\Z)"
    r"|(?<![\w$@:?])[-+]?(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)(?!\w)",
    re.DOTALL,
)


def redact_sql(sql: str) -> str:
    """Replace every literal, quoted name and comment of a statement by `?`.

    What is left shows the shape of the statement and its bare names. Errs on the side of taking
    too much: a quoted table name goes too, because SQLite would read it as a value elsewhere.
    """
    return " ".join(_LITERAL.sub(" ? ", sql).split())
