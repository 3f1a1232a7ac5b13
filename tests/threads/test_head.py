"""Fingerprints: equal values have equal ones, and whatever is stored differently has another."""

from __future__ import annotations

import copy
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core.encoding import encode
from treering.threads.head import fingerprint

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=3)
    | st.decimals(allow_nan=False, places=2)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2) | st.integers(-2, 2) | st.booleans(), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(VALUES, VALUES)
def test_it_differs_exactly_where_the_stored_form_differs(one, other):
    same = encode(one, keep_order=True) == encode(other, keep_order=True)
    assert (fingerprint(one) == fingerprint(other)) == same


@given(VALUES)
def test_a_copy_has_the_same(value):
    assert fingerprint(copy.deepcopy(value)) == fingerprint(value)


@pytest.mark.parametrize(
    "one, other",
    [
        (1, True),
        (1, 1.0),
        (-1, -2),
        (0.0, -0.0),
        (0, False),
        (None, "None"),
        ({1: "a"}, {True: "a"}),
        ([1], (1,)),
        (["a", "b"], ["ab"]),
        ({"a": ["b"]}, {"a": {"b": None}}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (2**61 - 1, 0),
        (Decimal("1.0"), Decimal("1.00")),
        ("1", 1),
        ([], {}),
        ({"a": "b"}, {"b": "a"}),
    ],
)
def test_what_python_takes_for_equal_is_told_apart(one, other):
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint([{"x": one}]) != fingerprint([{"x": other}])
