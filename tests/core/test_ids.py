"""Ids increase, forked processes do not repeat them, and invalid ids are rejected with a reason."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from treering.core.clock import ManualClock
from treering.core.ids import (
    IdSource,
    check_id,
    check_space,
    file_name,
    new_id,
    only_match,
    short_id,
    short_ids,
    time_of,
)
from treering.errors import InvalidInput

ORDINARY = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,119}", fullmatch=True)
TIMES_US = st.integers(min_value=0, max_value=(1 << 47) * 1000)


class JumpyClock:
    """A clock that returns prepared times, in any order."""

    def __init__(self, times_us):
        self._times_us = iter(times_us)

    def now_us(self):
        return next(self._times_us)


@given(st.lists(TIMES_US, min_size=2, max_size=50), st.randoms(use_true_random=False))
def test_ids_of_one_source_always_increase_whatever_the_clock_does(times_us, random):
    source = IdSource(JumpyClock(times_us), random.randbytes)
    ids = [source.next() for _ in times_us]
    assert ids == sorted(set(ids))


@given(st.lists(TIMES_US, min_size=1, max_size=20, unique=True))
def test_an_id_contains_its_time_in_milliseconds(times_us):
    source = IdSource(JumpyClock(sorted(times_us)))
    for time_us in sorted(times_us):
        made, made_us = source.next_with_time()
        assert time_of(made) == made_us == time_us // 1000 * 1000


def test_an_id_is_26_characters_of_lowercase_crockford_base32():
    nothing = IdSource(ManualClock(1_000), lambda size: b"\0" * size)
    everything = IdSource(ManualClock(1_000), lambda size: b"\xff" * size)
    assert nothing.next() == "0" * 9 + "1" + "0000" + "0" * 12
    assert everything.next() == "0" * 9 + "1" + "fzzz" + "z" * 12


def test_the_counter_of_a_millisecond_precedes_its_random_bits():
    source = IdSource(ManualClock(1_000), lambda size: (b"\x00\x03\xff" + b"\xff" * 8)[:10] * (size // 10))
    ids = [source.next() for _ in range(3)]
    assert [each[10:14] for each in ids] == ["001z", "0020", "0021"]
    assert {each[14:] for each in ids} == {"z" * 12}


def test_a_millisecond_without_room_for_more_ids_is_followed_by_the_next():
    source = IdSource(ManualClock(1_000), lambda size: b"\xff" * size)
    ids = [source.next() for _ in range(600_000)]
    assert ids == sorted(set(ids))
    assert {time_of(each) for each in (ids[0], ids[-1])} == {1_000, 2_000}


@given(st.integers(1, 300), st.randoms(use_true_random=False))
def test_the_short_forms_of_a_millisecond_are_all_different(count, random):
    source = IdSource(ManualClock(1_000), random.randbytes)
    ids = [f"ckpt_{source.next()}" for _ in range(count)]
    short = [short_id(each) for each in ids]
    assert len(set(short)) == count
    assert {len(each) for each in short} == {len("ckpt_") + 14}
    assert [only_match(ids, each, "checkpoint") for each in short] == ids


def test_ids_that_people_chose_are_not_shortened():
    for text in ("nightly", "run_2026-11-16", "a" * 40, "ckpt_", "01m7rctr3013r"):
        assert short_id(text) == text
    assert short_id("0123456789abcdef" * 4) == "0123456789ab"


@given(st.lists(st.text("ab_", min_size=1), max_size=20) | st.lists(st.text("01", min_size=26, max_size=26)))
def test_short_ids_are_unique_beginnings(ids):
    short = short_ids(ids)
    assert set(short) == set(ids)
    for each, cut in short.items():
        assert each.startswith(cut)
        assert only_match(ids, cut, "id") == each


def test_an_ambiguous_beginning_lists_the_candidates():
    ids = [f"ckpt_01m7rctr3{n:03}" + "x" * 14 for n in range(8)]
    with pytest.raises(InvalidInput) as raised:
        only_match(ids, "ckpt_01m7", "checkpoint")
    assert str(raised.value) == (
        "checkpoint 'ckpt_01m7' is ambiguous: ckpt_01m7rctr3000xx, ckpt_01m7rctr3001xx, ckpt_01m7rctr3002xx, "
        "ckpt_01m7rctr3003xx, ckpt_01m7rctr3004xx, ...; give more characters"
    )
    assert only_match(ids, "ckpt_02", "checkpoint") is None
    assert only_match([*ids, "ckpt_01m7"], "ckpt_01m7", "checkpoint") == "ckpt_01m7"


def test_threads_never_get_the_same_id():
    source = IdSource(ManualClock())
    with ThreadPoolExecutor(8) as pool:
        batches = pool.map(lambda _: [source.next() for _ in range(2_000)], range(8))
        batches = list(batches)
    assert all(batch == sorted(batch) for batch in batches)
    assert len({made for batch in batches for made in batch}) == 16_000


def test_a_forked_child_repeats_nothing_and_does_not_inherit_a_held_lock():
    # In a separate process, because this one may have threads. The clock is frozen: the worst case.
    script = """
import os
from treering.core.clock import ManualClock
from treering.core.ids import IdSource
clock = ManualClock()
source = IdSource(clock)
before = source.next()
source._lock.acquire()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, " ".join(source.next() for _ in range(100)).encode())
    os._exit(0)
source._lock.release()
os.wait()
child = os.read(reader, 65536).decode().split()
parent = [source.next() for _ in range(100)]
clock.advance(seconds=0.001)
parent += [source.next() for _ in range(100)]
assert len(set(child) | set(parent)) == 300, "repeated"
assert min(child) > before and child == sorted(child), "not greater"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_the_shared_source_returns_increasing_ids():
    assert new_id() < new_id()


@pytest.mark.parametrize("text", ["", "abc", "z" * 26, "0" * 25 + "u", "0" * 25 + "A", "0" * 27, "é" * 26])
def test_time_of_rejects_foreign_ids(text):
    with pytest.raises(InvalidInput, match="not generated by treering"):
        time_of(text)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=512))
@example("users/4711/🦜")
@example("👩\u200d👩\u200d👧")  # joined by characters that are not printable on their own
@example("../../etc/passwd")
@example("a" * 512)
def test_any_readable_text_can_be_an_id(text):
    assume(not text.isspace())
    assert check_id(text, "thread id") == text


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "is empty"),
        ("a" * 513, "has 513 characters, the limit is 512"),
        ("a" * 10_000, "has 10000 characters"),
        (" \u2003 ", "only white space"),
        ("a\0b", r"control character \(U\+0000 at position 1\)"),
        ("a\x7f", r"control character \(U\+007F at position 1\)"),
        ("a\x85", r"control character \(U\+0085 at position 1\)"),
        ("line\nbreak", "control character"),
        ("\ud800", "lone surrogate"),
        (7, "has type int; pass a str"),
        (None, "has type NoneType"),
        (b"abc", "has type bytes"),
    ],
)
def test_an_invalid_id_is_rejected_with_its_kind_and_reason(text, problem):
    with pytest.raises(InvalidInput, match=problem) as raised:
        check_id(text, "thread id")
    assert str(raised.value).startswith("thread id ")
    assert len(str(raised.value)) < 250
    assert str(raised.value).isascii()


def test_a_str_subclass_becomes_a_plain_str():
    class Name(str):
        __slots__ = ()

    assert type(check_id(Name("abc"), "ref")) is str


@given(ORDINARY)
def test_ordinary_names_are_valid_spaces(text):
    assert check_space(text) == text


@pytest.mark.parametrize("text", ["", ".hidden", "a/b", "a b", "é", "a\n", "a" * 121, "~a", None, 3])
def test_an_invalid_space_is_rejected(text):
    with pytest.raises(InvalidInput, match=r"^invalid space "):
        check_space(text)


@given(ORDINARY)
@example("con1")
@example("console.log")
def test_an_ordinary_id_is_its_own_file_name(text):
    assume(not text.endswith("."))
    assume(text.split(".")[0].lower() not in {"con", "prn", "aux", "nul"})
    assume(text.split(".")[0][:3].lower() not in {"com", "lpt"})
    assert file_name(text) == text


@given(st.text(max_size=600))
@example("..")
@example("a/../../b")
@example("x" * 10_000)
@example("nul.txt")
@example("COM1")
@example("a.")
@example("\ud800")
def test_a_file_name_is_always_safe_to_create(text):
    name = file_name(text)
    assert name == text or "~" in name
    assert 0 < len(name.encode()) <= 200
    assert not set(name) & set('/\\:*?"<>|\0')
    assert name.isascii()
    assert name.isprintable()
    assert not name.startswith((".", "~"))
    assert not name.endswith((".", " "))
    assert name.split(".")[0].lower() not in {"con", "prn", "aux", "nul", "com1", "lpt9"}


@given(st.lists(st.one_of(st.text(max_size=20), ORDINARY), unique=True, max_size=30))
@example(["a/b", "a-b", "a b", "a\0b", "a.", "a", "A~"])
def test_two_ids_never_share_a_file_name(texts):
    assert len({file_name(text) for text in texts}) == len(texts)


@given(st.text(max_size=50))
def test_no_id_equals_the_file_name_of_another(text):
    name = file_name(text)
    assert name == text or file_name(name) != name
