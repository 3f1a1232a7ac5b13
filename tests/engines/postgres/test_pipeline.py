"""Statements for PostgreSQL: numbered parameters and multi-row inserts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.engines.postgres.connection import chunk_sizes
from treering.engines.postgres.pipeline import MAX_PARAMETERS, numbered
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
    assert for_rows("INSERT INTO t (a) VALUES ((? + 1) % 2)", 2, distinct=True) == (
        "INSERT INTO t (a) VALUES ((? + 1) % 2), ((? + 1) % 2)"
    )
    assert for_rows(sql + once, 2, distinct=False) == f"{sql}, (?, ?){once}"


def test_an_upsert_takes_distinct_rows_only():
    sql = "INSERT INTO t (a) VALUES (?)"
    update = " ON CONFLICT (a) DO UPDATE SET a = 1"
    assert for_rows(sql + update, 2, distinct=False) is None
    assert for_rows(sql + update, 2, distinct=True) == f"{sql}, (?){update}"


@pytest.mark.parametrize(
    "sql",
    ["UPDATE t SET a = ? WHERE b = ?", "INSERT INTO t (a) SELECT ?"],
)
def test_other_statements_do_not_take_many_rows(sql):
    assert for_rows(sql, 2, distinct=True) is None


@given(st.integers(0, 3000), st.integers(1, 40))
def test_rows_are_divided_into_chunks_of_few_sizes(rows, columns):
    sizes = list(chunk_sizes(rows, columns))
    assert sum(sizes) == rows
    assert len(set(sizes)) <= 4
    assert all(size * columns <= MAX_PARAMETERS for size in sizes)
