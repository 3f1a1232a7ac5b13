"""Database roles that see one space: row-level security.

Every table of a store names its space in each row, so one policy per table and role, ``space = <number>``,
is enough: the number is a constant, no function runs per row, and the role cannot change it. The owner of the
tables, to whom no policy applies, and who is what servers connect as, decides what a role is bound to. A
bound role may run any SQL and open the store with `treering.open`, and reads and writes its space only.
`forget`, which keeps a record in ``meta`` until it is complete, is left to the owner.

Row-level security is off until the first role is bound. From then on, other roles that do not own the tables
see no rows, unless they have ``BYPASSRLS`` or are bound too. **Invariant:** every table of the schema is
covered but `SHARED`, which hold nothing of any space (`tests/engines/postgres/test_roles.py`).

What is not hidden: numbers of sequences grow with everybody's writes, and notifications (``LISTEN treering``)
carry the names of spaces that are written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg import sql

from treering.engines.sql.rows import space_number
from treering.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from psycopg import Connection

SHARED: Final = frozenset({"meta", "alembic_version"})
"""Tables without rows of a space: the store's id, format and dictionary, and the schema's version."""

_TABLES: Final = """\
SELECT c.relname, pg_get_userbyid(c.relowner), c.relrowsecurity FROM pg_catalog.pg_class AS c
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = current_schema()::regnamespace"""
_ROLE: Final = "SELECT rolsuper OR rolbypassrls FROM pg_catalog.pg_roles WHERE rolname = %s"
_POLICIES: Final = """\
SELECT tablename FROM pg_catalog.pg_policies
WHERE schemaname = current_schema() AND policyname = %s"""


def bind_role(connection: Connection[Any], role: str, space: str, *, writes: bool = True) -> None:
    """Let a role that exists see one space only, and write to it unless it only reads.

    Binding a role again replaces what it was bound to.

    Raises:
        NotFound: There is no such role.
        InvalidInput: No policy applies to the role, because it owns the tables or bypasses them.
    """
    number = space_number(space)
    with connection.transaction():
        tables = connection.execute(_TABLES).fetchall()
        _check_role(connection, role, {owner for _, owner, _ in tables})
        who = sql.Identifier(role)
        unbind_role(connection, role)
        rights = "SELECT, INSERT, UPDATE, DELETE" if writes else "SELECT"
        for name, _, is_enabled in sorted(tables):
            table = sql.Identifier(name)
            if name in SHARED:
                _run(connection, "GRANT SELECT ON {} TO {}", table, who)
                continue
            if not is_enabled:
                _run(connection, "ALTER TABLE {} ENABLE ROW LEVEL SECURITY", table)
            column = sql.Identifier("no" if name == "space" else "space")
            policy = "CREATE POLICY {} ON {} TO {} USING ({} = {})"
            _run(connection, policy, who, table, who, column, sql.Literal(number))
            _run(connection, f"GRANT {rights} ON {{}} TO {{}}", table, who)
        schema = sql.Identifier(*connection.execute("SELECT current_schema()").fetchone() or ("public",))
        _run(connection, "GRANT USAGE ON SCHEMA {} TO {}", schema, who)
        if writes:
            _run(connection, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {} TO {}", schema, who)


def unbind_role(connection: Connection[Any], role: str) -> bool:
    """Take from a role what `bind_role` gave it; return whether it was bound."""
    who = sql.Identifier(role)  # also the name of its policies
    with connection.transaction():
        found = connection.execute(_POLICIES, (role,)).fetchall()
        for (table,) in found:
            _run(connection, "DROP POLICY {} ON {}", who, sql.Identifier(table))
            _run(connection, "REVOKE ALL ON {} FROM {}", sql.Identifier(table), who)
    return bool(found)


def _check_role(connection: Connection[Any], role: str, owners: set[str]) -> None:
    found = connection.execute(_ROLE, (role,)).fetchone()
    if found is None:
        raise NotFound(f"role {role!r} not found; create it with: CREATE ROLE ... LOGIN PASSWORD ...")
    if found[0] or role in owners:
        raise InvalidInput(
            f"no policy applies to role {role!r}, which owns the tables, is a superuser or has BYPASSRLS; "
            "bind another role"
        )


def _run(connection: Connection[Any], statement: LiteralString, *names: sql.Composable) -> None:
    connection.execute(sql.SQL(statement).format(*names))
