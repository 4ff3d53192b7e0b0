"""What a database distributed by tenant asks of a statement, looked up in its syntax tree.

Citus sends a statement to one node if every block of it that reads a table of tenants says which
tenant. What it refuses beyond that is listed here too, so that no distributed database is needed
to see it. A statement is parsed by PostgreSQL's own parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pgparse

__all__ = ["Catalog", "executed", "faults", "nested_statements"]

Node = Any
"""Of a syntax tree: dicts, lists and values, as JSON has them."""

SHELLS = {
    "pg_total_relation_size", "pg_relation_size", "pg_table_size", "pg_class.reltuples",
    "pg_stat_user_tables", "pg_stat_all_tables",
}  # fmt: skip
"""Which know only the empty shells that the coordinator has."""


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """What of a database the rules depend on."""

    tables: frozenset[str]
    """Of the schema `zerda`, those with a tenant."""
    volatility: Mapping[str, str]
    """Function → i, s or v; of several with one name the least stable."""
    reading: frozenset[str] = frozenset()
    """Functions of the schema that read or write such tables."""


@dataclass(kw_only=True)
class Block:
    """One FROM list with its conditions."""

    tenants: dict[str, str] = field(default_factory=dict)
    """Alias → table, of tables with a tenant."""
    conditions: list[Node] = field(default_factory=list)
    bound: set[str] = field(default_factory=set)
    """Aliases whose tenant is known."""


def executed(sql: str) -> str:
    """A statement as the server gets it: parameters numbered, percent signs single."""
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[0], len(numbers) + 1)}"

    return re.sub(r"%\(\w+\)s|%s", number, sql).replace("%%", "%")


def nested_statements(function: str) -> Iterator[tuple[str, bool]]:
    """Statements and expressions of a PL/pgSQL function; and whether each is run as a text."""
    for kind, node in _nodes(pgparse.parse_pgsql(function)):
        if kind == "PLpgSQL_stmt_dynexecute" or (
            kind == "PLpgSQL_stmt_return_query" and "dynquery" in node
        ):
            text = node.get("query") or node["dynquery"]
            yield f"SELECT {text['PLpgSQL_expr']['query']}", True
        elif kind == "PLpgSQL_expr":
            query = node["query"]
            mode = node.get("parseMode", 0)
            if mode == 3:  # an assignment
                yield f"SELECT {query.split(':=', 1)[-1]}", False
            else:
                yield (f"SELECT {query}" if mode == 2 else query), False


def faults(sql: str, catalog: Catalog) -> list[str]:
    """What a distributed database would make of a statement that is not to be."""
    found: list[str] = []
    for statement in pgparse.parse(sql):
        found += _faults(statement["stmt"], catalog)
    return found


def _faults(statement: Node, catalog: Catalog) -> Iterator[str]:
    everything = list(_nodes(statement))
    for kind, node in everything:
        if kind in {"SelectStmt", "UpdateStmt", "DeleteStmt", "InsertStmt"}:
            yield from _tenantless(kind, node, catalog)
        if kind in {"UpdateStmt", "DeleteStmt", "InsertStmt"}:
            yield from _unstable(kind, node, catalog)
        if kind == "InsertStmt" and "selectStmt" in node and _writes(node.get("withClause")):
            yield "WITH that writes, before INSERT"
        if kind == "InsertStmt" and _copied(node, catalog):
            yield f"COPY, which row-level security refuses: {node['relation']['relname']}"
        if kind == "InsertStmt" and _asks_another(node, catalog):
            yield f"INSERT of what a subquery decides: {node['relation']['relname']}"
        if kind in {"UpdateStmt", "DeleteStmt"} and _compares_rows(node):
            yield f"rows IN a subquery: {node['relation']['relname']}"
        if kind == "MergeStmt":
            yield "MERGE"
        if kind == "CommonTableExpr" and {"cycle_clause", "search_clause"} & node.keys():
            yield "CYCLE or SEARCH"
        name = node.get("name") if kind == "VariableSetStmt" else None
        if name not in {None, "TRANSACTION"} and not node.get("is_local"):
            yield f"SET of a session: {name}"
    called = {_name(node["funcname"]) for kind, node in everything if kind == "FuncCall"}
    tables = {node["relname"] for kind, node in everything if kind == "RangeVar"}
    columns = {_name(node["fields"])[-9:] for kind, node in everything if kind == "ColumnRef"}
    for name in sorted((called | tables) & SHELLS | {"reltuples"} & columns):
        yield f"knows only the coordinator: {name}"
    if "set_config" in called:
        yield "set_config"
    if "ts_stat" in called:
        yield "reads a table by a text: ts_stat"
    if tables & catalog.tables:
        for name in sorted(called & catalog.reading):
            yield f"function that reads tables, in a statement that does: {name}"


# ── the tenant ────────────────────────────────────────────────────────────────────────────────


def _tenantless(kind: str, node: Node, catalog: Catalog) -> Iterator[str]:
    """Tables of which the block does not say the tenant."""
    block = Block()
    if kind in {"UpdateStmt", "DeleteStmt"}:
        _read({"RangeVar": node["relation"]}, block, catalog)
    for source in [*node.get("fromClause", []), *node.get("usingClause", [])]:
        _read(source, block, catalog)
    block.conditions += _conjuncts(node.get("whereClause"))
    pairs: list[tuple[str, str]] = []
    for condition in block.conditions:
        sides = _equal(condition)
        if sides is None:
            continue
        one, other = (_tenant_of(side, block) for side in sides)
        if one and other:
            pairs.append((one, other))
        elif one and not _columns(sides[1]):
            block.bound.add(one)
        elif other and not _columns(sides[0]):
            block.bound.add(other)
    for _ in pairs:  # joins of one block pass it on
        for pair in pairs:
            if block.bound & set(pair):
                block.bound |= set(pair)
    for alias, table in block.tenants.items():
        if alias not in block.bound:
            yield f"no tenant in its block: {table}"
    if kind == "InsertStmt" and node["relation"]["relname"] in catalog.tables:
        yield from _inserted(node)


def _read(source: Node, block: Block, catalog: Catalog) -> None:
    if "JoinExpr" in source:
        join = source["JoinExpr"]
        _read(join["larg"], block, catalog)
        _read(join["rarg"], block, catalog)
        block.conditions += _conjuncts(join.get("quals"))
    elif "RangeVar" in source:
        table = source["RangeVar"]
        if table.get("schemaname") == "zerda" and table["relname"] in catalog.tables:
            alias = table.get("alias", {}).get("aliasname", table["relname"])
            block.tenants[alias] = table["relname"]


def _inserted(node: Node) -> Iterator[str]:
    table = node["relation"]["relname"]
    names = [column["ResTarget"]["name"] for column in node.get("cols", [])]
    if names and "tenant_id" not in names:
        yield f"no tenant is inserted: {table}"
    source = node["selectStmt"]["SelectStmt"]
    if names and "valuesLists" not in source:
        value = source["targetList"][names.index("tenant_id")]["ResTarget"]["val"]
        # of a table of the SELECT, which has been looked at, or what it was told
        if _columns(value) and "tenant_id" not in _columns(value)[0]:
            yield f"the tenant that is inserted comes from elsewhere: {table}"


def _copied(node: Node, catalog: Catalog) -> bool:
    """Whether rows come from no table of the tenant, and go in by COPY therefore."""
    source = node.get("selectStmt", {}).get("SelectStmt", {"valuesLists": []})
    read = {found["relname"] for kind, found in _nodes(source) if kind == "RangeVar"}
    return (
        "valuesLists" not in source
        and node["relation"]["relname"] in catalog.tables
        and not read & catalog.tables
        and not {"onConflictClause", "returningList"} & node.keys()
    )


def _asks_another(node: Node, catalog: Catalog) -> bool:
    """Whether a subquery reads a table beside those of the FROM: a join of unknown kind."""
    source = node.get("selectStmt", {}).get("SelectStmt", {})
    asked = [found for kind, found in _nodes(source) if kind == "SubLink"]
    return all(
        catalog.tables & {found["relname"] for kind, found in _nodes(part) if kind == "RangeVar"}
        for part in (source.get("fromClause", []), asked)
    )


def _compares_rows(node: Node) -> bool:
    return any(k == "SubLink" and "RowExpr" in s.get("testexpr", {}) for k, s in _nodes(node))


def _conjuncts(condition: Node) -> list[Node]:
    if not condition:
        return []
    if condition.get("BoolExpr", {}).get("boolop") == "AND_EXPR":
        return [part for arg in condition["BoolExpr"]["args"] for part in _conjuncts(arg)]
    return [condition]


def _equal(condition: Node) -> tuple[Node, Node] | None:
    expression = condition.get("A_Expr", {})
    if expression.get("kind") != "AEXPR_OP" or _name(expression["name"]) != "=":
        return None
    return expression["lexpr"], expression["rexpr"]


def _tenant_of(side: Node, block: Block) -> str | None:
    """The alias of this block whose tenant the side is."""
    while "CollateClause" in side or "TypeCast" in side:
        side = side.get("CollateClause", side.get("TypeCast"))["arg"]
    parts = _parts(side["ColumnRef"]["fields"]) if "ColumnRef" in side else []
    if not parts or parts[-1] != "tenant_id":
        return None
    if len(parts) == 1:
        return next(iter(block.tenants)) if len(block.tenants) == 1 else None
    return parts[-2] if parts[-2] in block.tenants else None


def _columns(node: Node) -> list[str]:
    """Columns in an expression, parameters and variables of functions aside."""
    names = [_name(found["fields"]) for kind, found in _nodes(node) if kind == "ColumnRef"]
    return [name for name in names if not re.match(r"[pv]_|r\.", name)]


# ── what is not immutable ─────────────────────────────────────────────────────────────────────


def _unstable(kind: str, node: Node, catalog: Catalog) -> Iterator[str]:
    conflict = node.get("onConflictClause", {})
    for part in ("targetList", "whereClause"):
        for _, name in _calls(conflict.get(part, []), catalog, "sv"):
            yield f"ON CONFLICT SET: {name}"
        if any(kind == "SubLink" for kind, _ in _nodes(conflict.get(part, []))):
            yield "ON CONFLICT SET: a subquery"
    for _, name in _calls(node.get("returningList", []), catalog, "sv"):
        yield f"RETURNING: {name}"
    if kind == "InsertStmt":
        return
    for _, name in _calls(node, catalog, "v"):
        yield f"volatile in {kind}: {name}"
    for call, name in _calls(node, catalog, "s"):
        if any(_columns(arg) for arg in call.get("args", [])):
            yield f"stable over a column: {name}"
    for outer, inner in _nodes(node):
        if outer in {"CoalesceExpr", "CaseExpr"}:
            for _, name in _calls(inner, catalog, "s"):
                yield f"stable in {outer}: {name}"
        if outer == "A_Expr" and _name(inner["name"]) in {"+", "-"} and _shifted(inner):
            yield "a time of a column plus or minus an interval"


def _calls(node: Node, catalog: Catalog, kinds: str) -> Iterator[tuple[Node, str]]:
    for kind, found in _nodes(node):
        if kind == "SQLValueFunction" and "s" in kinds:
            yield {}, found["op"]
        if kind == "FuncCall":
            name = _name(found["funcname"])
            # of a difference of times, so of an interval, whatever `extract` is of a time
            of_interval = name == "extract" and "A_Expr" in found["args"][-1]
            if not of_interval and catalog.volatility.get(name, "v") in kinds:
                yield found, name


def _shifted(expression: Node) -> bool:
    def is_interval(side: Node) -> bool:
        cast = side.get("TypeCast", {}).get("typeName", {"names": []})
        called = side.get("FuncCall", {}).get("funcname", [])
        return "interval" in _name(cast["names"]) or _name(called) == "make_interval"

    sides = [expression.get("lexpr", {}), expression["rexpr"]]
    return any(map(is_interval, sides)) and any(map(_columns, sides))


def _writes(clause: Node) -> bool:
    return any(k in {"InsertStmt", "UpdateStmt", "DeleteStmt"} for k, _ in _nodes(clause))


# ── the tree ──────────────────────────────────────────────────────────────────────────────────

_UNNAMED = {"larg": "SelectStmt", "rarg": "SelectStmt", "relation": "RangeVar"}
"""Fields that hold a node without its kind."""


def _nodes(tree: Node) -> Iterator[tuple[str, Node]]:
    """Every node with its kind, from the root."""
    if isinstance(tree, list):
        for item in tree:
            yield from _nodes(item)
    if isinstance(tree, dict):
        for key, value in tree.items():
            if isinstance(value, dict):
                kind = _UNNAMED.get(str(key), str(key))
                if kind[0].isupper() and not (key in {"larg", "rarg"} and len(value) == 1):
                    yield kind, value
            yield from _nodes(value)


def _parts(names: Node) -> list[str]:
    return [part["String"]["sval"] if "String" in part else "*" for part in names]


def _name(names: Node) -> str:
    parts = _parts(names)
    return ".".join(part for part in parts if part not in {"pg_catalog", "zerda"})
