"""Statements of the PostgreSQL engine: numbered parameters, many rows, and which rows go together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.engines.postgres.connection import sizes_of
from treering.engines.postgres.pipeline import MAX_PARAMETERS, bundled, numbered
from treering.engines.sql.session import for_rows


def test_parameters_are_numbered_in_order():
    assert (
        numbered("SELECT a FROM t WHERE b = ? AND c IN (?,?)")
        == b"SELECT a FROM t WHERE b = $1 AND c IN ($2,$3)"
    )


def test_question_marks_in_quotes_are_left_alone():
    assert numbered("SELECT '?', \"a?\", ? FROM t") == b"SELECT '?', \"a?\", $1 FROM t"


def test_an_insert_takes_many_rows():
    sql = "INSERT INTO t (a, b) VALUES (?, ?)"
    assert for_rows(sql, 2, distinct=False) == f"{sql}, (?, ?)"
    once = " ON CONFLICT (a) DO NOTHING"
    assert for_rows(sql + once, 2, distinct=False) == f"{sql}, (?, ?){once}"


def test_an_update_on_conflict_takes_distinct_rows_only():
    sql = "INSERT INTO t (a) VALUES (?)"
    update = " ON CONFLICT (a) DO UPDATE SET a = 1"
    assert for_rows(sql + update, 2, distinct=False) is None
    assert for_rows(sql + update, 2, distinct=True) == f"{sql}, (?){update}"


@pytest.mark.parametrize(
    "sql",
    ["UPDATE t SET a = ? WHERE b = ?", "INSERT INTO t (a) SELECT ?", "INSERT INTO t (a) VALUES (? + 1)"],
)
def test_what_cannot_take_many_rows_is_told_apart(sql):
    assert for_rows(sql, 2, distinct=True) is None


@given(st.integers(0, 3000), st.integers(1, 40))
def test_rows_are_divided_without_rest_into_fewsizes_of(rows, columns):
    sizes = list(sizes_of(rows, columns))
    assert sum(sizes) == rows
    assert len(set(sizes)) <= 4
    assert all(size * columns <= MAX_PARAMETERS for size in sizes)


GUARD = (
    "WITH moved AS (UPDATE s SET a = ?, b = ? WHERE no = ? AND a = ? AND b = ? RETURNING no) "
    "SELECT 1 / count(*) FROM moved"
)
FIRST = "INSERT INTO f (a, s) VALUES (?, ?), (?, ?)"
INSERT = "INSERT INTO t (a) VALUES (?) "
UPDATE = "UPDATE u SET a = ? WHERE b = ?"


def test_statements_behind_a_condition_become_one():
    assert bundled((GUARD, FIRST, INSERT, INSERT, UPDATE)) == (
        "WITH moved AS (UPDATE s SET a = $1 / (CASE WHEN a = $4 AND b = $5 THEN 1 ELSE 0 END), b = $2 "
        "WHERE no = $3 RETURNING no), c1 AS (INSERT INTO t (a) VALUES ($10) ), "
        "c2 AS (INSERT INTO t (a) VALUES ($11) ), c3 AS (UPDATE u SET a = $12 WHERE b = $13) "
        "INSERT INTO f (a, s) VALUES ($6, (SELECT no FROM moved)), ($8, $9)"
    )


@pytest.mark.parametrize(
    "statements",
    [
        (INSERT, UPDATE),
        (FIRST, UPDATE),
        (GUARD,),
        (GUARD, INSERT),
        (GUARD, UPDATE),
        (GUARD, FIRST, UPDATE, UPDATE),
        (GUARD, FIRST, "INSERT INTO u (a) VALUES (?)", UPDATE),
        (GUARD, FIRST, INSERT, "DELETE FROM u WHERE a = ?"),
    ],
)
def test_what_has_to_be_done_one_after_the_other_stays_apart(statements):
    assert bundled(statements) is None
