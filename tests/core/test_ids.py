"""Ids grow, forks do not repeat them, and what cannot be an id is refused with a reason."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from treering.core.clock import ManualClock
from treering.core.ids import IdSource, check_id, check_space, file_name, new_id, time_of
from treering.errors import InvalidInput

ORDINARY = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,119}", fullmatch=True)
TIMES_US = st.integers(min_value=0, max_value=(1 << 47) * 1000)


class JumpyClock:
    """Gives one prepared time after the other, in any order."""

    def __init__(self, times_us):
        self._times_us = iter(times_us)

    def now_us(self):
        return next(self._times_us)


@given(st.lists(TIMES_US, min_size=2, max_size=50), st.randoms(use_true_random=False))
def test_ids_of_one_source_always_grow_whatever_the_clock_does(times_us, random):
    source = IdSource(JumpyClock(times_us), random.randbytes)
    ids = [source.next() for _ in times_us]
    assert ids == sorted(set(ids))


@given(st.lists(TIMES_US, min_size=1, max_size=20, unique=True))
def test_an_id_tells_when_it_was_made_to_the_millisecond(times_us):
    source = IdSource(JumpyClock(sorted(times_us)))
    for time_us in sorted(times_us):
        made, made_us = source.next_with_time()
        assert time_of(made) == made_us == time_us // 1000 * 1000


def test_an_id_is_26_characters_of_lowercase_crockford_base32():
    assert IdSource(ManualClock(0), lambda size: b"\0" * size).next() == "0" * 25 + "1"
    assert IdSource(ManualClock(1_000), lambda size: b"\0" * size).next() == "0" * 9 + "1" + "0" * 16
    assert IdSource(ManualClock(1_000), lambda size: b"\xff" * size).next() == "0" * 9 + "1" + "f" + "z" * 15


def test_counting_up_carries_past_the_low_bits():
    source = IdSource(ManualClock(1_000), lambda size: (bytes(7) + b"\x0f\xff\xfe") * (size // 10))
    assert [source.next()[10:] for _ in range(3)] == [
        "0" * 12 + "zzzy",
        "0" * 12 + "zzzz",
        "0" * 11 + "10000",
    ]


def test_the_largest_draw_can_still_be_counted_up():
    source = IdSource(ManualClock(1_000), lambda size: b"\xff" * size)
    assert source.next() < source.next() < source.next()


def test_threads_never_get_the_same_id():
    source = IdSource(ManualClock())
    with ThreadPoolExecutor(8) as pool:
        batches = pool.map(lambda _: [source.next() for _ in range(2_000)], range(8))
        batches = list(batches)
    assert all(batch == sorted(batch) for batch in batches)
    assert len({made for batch in batches for made in batch}) == 16_000


def test_a_forked_child_repeats_nothing_and_does_not_inherit_a_held_lock():
    # In a process of its own, because this one may have threads. The clock stands still: the worst case.
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


def test_the_shared_source_gives_growing_ids():
    assert new_id() < new_id()


@pytest.mark.parametrize("text", ["", "abc", "z" * 26, "0" * 25 + "u", "0" * 25 + "A", "0" * 27, "é" * 26])
def test_time_of_refuses_what_treering_did_not_make(text):
    with pytest.raises(InvalidInput, match="not an id that treering made"):
        time_of(text)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=512))
@example("users/4711/🦜")
@example("👩\u200d👩\u200d👧")  # joined by characters that are not printable by themselves
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
        (7, "is of type int; pass a str"),
        (None, "is of type NoneType"),
        (b"abc", "is of type bytes"),
    ],
)
def test_a_bad_id_is_refused_with_its_kind_and_reason(text, problem):
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
def test_ordinary_names_can_name_a_space(text):
    assert check_space(text) == text


@pytest.mark.parametrize("text", ["", ".hidden", "a/b", "a b", "é", "a\n", "a" * 121, "~a", None, 3])
def test_a_bad_space_is_refused(text):
    with pytest.raises(InvalidInput, match=r"^space "):
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
def test_no_id_can_pretend_to_be_the_file_name_of_another(text):
    name = file_name(text)
    assert name == text or file_name(name) != name
