"""`rewrite`: turns every table and index name of a statement into one of the plugin's own schema.

The statement stays as the plugin wrote it, letter by letter, but for its names: the syntax tree
says where they stand, and they are replaced there. `FROM presets` becomes
`FROM "plugin_oh_my_pi_presets" AS "presets"`, so that `presets.id` means what it meant before.
Common table expressions are renamed like tables; so what a name refers to never changes.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum, auto

from sqlglot import exp

from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.storage.dialect import named_parameter, parse_statement
from kaged.plugins.storage.gate import check_statement
from kaged.plugins.storage.names import PluginSchema, outside, quoted
from kaged.plugins.storage.statement import Rewritten, StatementKind
from kaged.store.backends.sqlite_guard import TABLE_FUNCTIONS
from kaged.store.backends.sqlite_words import fold_name
from kaged.store.guest import Claim, GuestStatement, NameKind
from kaged.wire.errors import StorageAccessDenied

_QUOTES = {'"': '"', "`": "`", "[": "]", "'": "'"}
_TABLE_PARTS = frozenset({"this", "alias", "joins", "indexed", "only"})
_DEFINITIONS = (exp.Create, exp.Alter)


def rewrite(schema: PluginSchema, sql: str) -> Rewritten:
    """Rewrite one statement of a plugin.

    Raises:
        InvalidParams: it is no statement, several, or none that a plugin may run this way.
        StorageAccessDenied: it reaches outside the plugin's schema, or cannot be understood.
    """
    check_statement(sql)
    tree = parse_statement(sql)
    work = _Rewrite(schema, sql, tree, _kind(tree))
    for node in tree.walk():
        work.visit(node)
    return work.finish()


def _kind(tree: exp.Expr) -> StatementKind:
    kind = str(tree.args.get("kind") or "").upper()
    match tree:
        case exp.Select() | exp.SetOperation():
            return StatementKind.SELECT
        case exp.Insert():
            return StatementKind.INSERT
        case exp.Update():
            return StatementKind.UPDATE
        case exp.Delete():
            return StatementKind.DELETE
        case exp.Create() if kind in {"TABLE", "INDEX"}:
            return StatementKind(f"CREATE {kind}")
        case exp.Drop() if kind in {"TABLE", "INDEX"}:
            return StatementKind(f"DROP {kind}")
        case exp.Alter() if kind == "TABLE":
            return StatementKind.ALTER_TABLE
        case _:
            raise StorageAccessDenied("plugins may not run statements of this kind")


@dataclass(frozen=True, slots=True)
class _Splice:
    start: int
    end: int  # behind the last character
    text: str


@dataclass(slots=True)
class _Rewrite:
    """One statement on its way: what to put where, and which names it uses."""

    schema: PluginSchema
    sql: str
    tree: exp.Expr
    kind: StatementKind
    splices: list[_Splice] = field(default_factory=list[_Splice])
    uses: set[str] = field(default_factory=set[str])
    queried: set[str] = field(default_factory=set[str])  # plain, folded
    claims: list[Claim] = field(default_factory=list[Claim])

    def visit(self, node: exp.Expr) -> None:
        """Take note of one node of the tree."""
        match node:
            case exp.Table():
                self._table(node)
            case exp.CTE():
                self._put(node.args["alias"].this, with_alias=False)
                self.queried.add(fold_name(node.alias))
            case exp.In():
                if node.args.get("field") is not None:
                    self._in_table(node.args["field"])
            case exp.Index():
                self._index(node)
            case exp.Column():
                self._column(node)
            case exp.Placeholder() | exp.Parameter() | exp.SessionParameter():
                if node.args.get("this") is not None:
                    raise named_parameter()
            case _:
                pass

    def finish(self) -> Rewritten:
        """Put the statement together."""
        parts: list[str] = []
        position = 0
        for splice in sorted(self.splices, key=lambda one: one.start):
            if splice.start < position:
                raise _not_understood()
            parts += (self.sql[position : splice.start], splice.text)
            position = splice.end
        parts.append(self.sql[position:])
        made = {
            fold_name(claim.plain) for claim in self.claims if claim.kind is not NameKind.RESERVED
        }
        guest = GuestStatement(
            "".join(parts),
            self._physical(self.uses | self.queried | made),
            self._physical(self.queried),
            tuple(self.claims),
        )
        shown = {splice.text: self.sql[splice.start : splice.end] for splice in self.splices}
        uses = frozenset(self.uses - self.queried - made)
        return Rewritten(self.kind, guest, uses, tuple(shown.items()))

    def _physical(self, plain: set[str]) -> frozenset[str]:
        return frozenset(fold_name(self.schema.physical(name)) for name in plain)

    # -- tables --------------------------------------------------------------------------------

    def _table(self, node: exp.Table) -> None:
        if node.args.get("db") or node.args.get("catalog"):
            raise outside(node.sql(dialect="sqlite"))
        if any(value for part, value in node.args.items() if part not in _TABLE_PARTS):
            raise _not_understood()
        identifier = node.this
        if not isinstance(identifier, exp.Identifier):
            self._table_function(identifier)
            return
        plain = str(identifier.this)
        role = _role(node)
        match role:
            case _Role.MADE:
                self.claims.append(self.schema.claim(plain, NameKind.TABLE))
            case _Role.REFERRED:
                self.claims.append(self.schema.claim(plain, NameKind.RESERVED))
            case _Role.INDEX | _Role.NAMED | _Role.QUERIED:
                pass
        if role is not _Role.INDEX:
            self.uses.add(fold_name(plain))
        aliased = node.args.get("alias") is not None
        self._put(identifier, with_alias=role is _Role.QUERIED and not aliased)

    def _table_function(self, function: object) -> None:
        if isinstance(function, exp.Anonymous) and fold_name(function.name) in TABLE_FUNCTIONS:
            return
        if isinstance(function, exp.Func):
            raise outside(function.name or function.sql_name())
        raise _not_understood()

    def _in_table(self, operand: object) -> None:
        """Take `x IN name`, where the name is a table's."""
        if not isinstance(operand, exp.Column) or not isinstance(operand.this, exp.Identifier):
            raise _not_understood()
        if operand.args.get("table") is not None:
            raise outside(operand.sql(dialect="sqlite"))
        self.uses.add(fold_name(str(operand.this.this)))
        self._put(operand.this, with_alias=False)

    def _index(self, node: exp.Index) -> None:
        identifier = node.this
        if not isinstance(identifier, exp.Identifier) or node.args.get("db"):
            raise _not_understood()
        self.claims.append(self.schema.claim(str(identifier.this), NameKind.INDEX))
        self._put(identifier, with_alias=False)

    # -- columns -------------------------------------------------------------------------------

    def _column(self, node: exp.Column) -> None:
        """Check that a column's qualifier still means its table."""
        if node.args.get("db") or node.args.get("catalog"):
            raise outside(node.sql(dialect="sqlite"))
        qualifier = node.args.get("table")
        if not isinstance(qualifier, exp.Identifier) or not self._loses_alias(node):
            return
        target = self.tree.this
        while isinstance(target, exp.Schema | exp.Index):
            target = target.args["table"] if isinstance(target, exp.Index) else target.this
        if not isinstance(target, exp.Table) or target.args.get("alias") is not None:
            return
        if fold_name(target.name) == fold_name(str(qualifier.this)):
            self._put(qualifier, with_alias=False)

    def _loses_alias(self, node: exp.Column) -> bool:
        """Return whether this is a place where SQLite knows the table by its real name only."""
        ends = node.find_ancestor(exp.Returning, exp.Select, *_DEFINITIONS)
        return isinstance(ends, exp.Returning | exp.Create | exp.Alter)

    # -- text ----------------------------------------------------------------------------------

    def _put(self, identifier: exp.Expr, *, with_alias: bool) -> str:
        """Replace an identifier by its physical name, which is given back."""
        if not isinstance(identifier, exp.Identifier):
            raise _not_understood()
        plain = str(identifier.this)
        physical = self.schema.physical(plain)
        start, last = identifier.meta.get("start"), identifier.meta.get("end")
        if not isinstance(start, int) or not isinstance(last, int):
            raise _not_understood()
        if _unquoted(self.sql[start : last + 1]) != plain:
            raise _not_understood()
        text = quoted(physical)
        if with_alias:
            text = f"{text} AS {quoted(plain)}"
        self.splices.append(_Splice(start, last + 1, text))
        return physical


class _Role(Enum):
    """What a table's name does where it stands."""

    QUERIED = auto()  # read or changed; may have an alias
    NAMED = auto()  # the subject of DDL
    MADE = auto()
    REFERRED = auto()  # by a foreign key
    INDEX = auto()


def _role(node: exp.Table) -> _Role:
    parent = node.parent
    holder = parent.parent if isinstance(parent, exp.Schema) else parent
    if node.arg_key == "indexed":
        return _Role.INDEX
    match holder:
        case exp.From() | exp.Join() | exp.Insert() | exp.Update() | exp.Delete():
            return _Role.QUERIED
        case exp.Subquery() if node.arg_key == "this":
            return _Role.QUERIED  # FROM (a JOIN b)
        case exp.Create() if node.arg_key == "this":
            return _Role.MADE
        case exp.AlterRename():
            return _Role.MADE
        case exp.Reference():
            return _Role.REFERRED
        case exp.Drop() if holder.parent is None:
            index = str(holder.args.get("kind")).upper() == "INDEX"
            return _Role.INDEX if index else _Role.NAMED
        case exp.Alter() | exp.Index():
            return _Role.NAMED
        case _:
            raise _not_understood()


def _unquoted(text: str) -> str:
    closing = _QUOTES.get(text[:1])
    if closing is None:
        return text
    inner = text[1:-1] if text.endswith(closing) else text
    return inner if closing == "]" else inner.replace(closing * 2, closing)


def _not_understood() -> StorageAccessDenied:
    return StorageAccessDenied("the statement has a form that the host does not understand")
