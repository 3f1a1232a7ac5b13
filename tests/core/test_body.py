"""A body returns its contents in order, or raises that it is damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core.content import KINDS, Content
from treering.core.frame import pack_body, unpack_body
from treering.errors import Corrupt

CONTENTS = st.lists(st.builds(Content, st.sampled_from(KINDS), st.binary(max_size=50)), max_size=20)


@given(CONTENTS)
def test_a_packed_body_unpacks(contents):
    assert unpack_body(pack_body(contents), "here") == contents


@given(CONTENTS, st.data())
def test_a_truncated_or_extended_body_is_detected(contents, draw):
    packed = pack_body(contents)
    cut = packed[: draw.draw(st.integers(0, len(packed) - 1))]
    for damaged in (cut, packed + b"x"):
        with pytest.raises(Corrupt, match="here"):
            unpack_body(damaged, "here")


@given(st.binary(max_size=60))
def test_random_bytes_are_a_body_only_if_they_pack_to_the_same_bytes(noise):
    try:
        contents = unpack_body(noise, "here")
    except Corrupt:
        return
    assert pack_body(contents) == noise


def test_an_unknown_kind_is_detected():
    packed = bytearray(pack_body([Content("text", b"x")]))
    packed[4] = len(KINDS)
    with pytest.raises(Corrupt, match="here"):
        unpack_body(bytes(packed), "here")


def test_an_impossible_count_is_detected_without_allocating_memory():
    with pytest.raises(Corrupt, match="here"):
        unpack_body(b"\xff\xff\xff\xff", "here")
