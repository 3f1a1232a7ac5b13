"""Cut points depend on the content only; they are part of the stored format."""

import mmap
import random
from bisect import bisect
from hashlib import sha256, shake_256
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treering.core import chunking
from treering.core.chunking import WHOLE_BYTES, chunks, cut_in_python, stream_chunks

KIB, MIB = 1024, 1024 * 1024


def random_bytes(size, seed=0):
    return random.Random(seed).randbytes(size)


def pieces(data):
    return [data[span.start : span.stop] for span in chunks(data)]


def kinds_of_data():
    """A few MiB of noise, few symbols, long repeats and zeros, in any mixture."""
    part = st.tuples(
        st.sampled_from(["noise", "few", "repeat", "zeros"]), st.integers(0, 2 * MIB), st.integers(0, 2**32)
    )
    return st.lists(part, max_size=3).map(lambda parts: b"".join(make(*each) for each in parts))


def make(kind, size, seed):
    if kind == "noise":
        return random_bytes(size, seed)
    if kind == "few":
        return random_bytes(size, seed).translate(bytes(byte & 3 for byte in range(256)))
    if kind == "repeat":
        return (random_bytes(seed % 5000 + 1, seed) * (size // (seed % 5000 + 1) + 1))[:size]
    return bytes(size)


@pytest.mark.parametrize(
    "make_data, count, digest",
    [
        (
            lambda: shake_256(b"treering").digest(20 * MIB),
            63,
            "ad8307ddd4c270a05b1090054a4836612df73d46c38d25d441207b8ffc198a90",
        ),
        (
            lambda: bytes(5 * MIB + 1),
            6,
            "731bbc32146f4ba6304ba2e529d854d78d586723d533eef228a80f9b3c227436",
        ),
        (
            lambda: b"".join(b"line %d\n" % number for number in range(500_000)),
            18,
            "e2b4d0b0c57b1f77f6467e3952c94e58d0119be4ff45f3425eeb611d242a6a86",
        ),
    ],
    ids=["noise", "zeros", "lines"],
)
def test_the_cut_points_of_known_data_never_change(make_data, count, digest):
    cuts = [span.stop for span in chunks(make_data())]
    assert len(cuts) == count
    assert sha256(repr(cuts).encode()).hexdigest() == digest


@settings(max_examples=60)
@given(kinds_of_data())
@example(b"")
@example(b"x")
@example(random_bytes(WHOLE_BYTES))
@example(random_bytes(WHOLE_BYTES + 1))
def test_chunks_cover_the_data_and_keep_their_size_limits(data):
    spans = list(chunks(data))
    assert [span.start for span in spans] == [0, *(span.stop for span in spans)][: len(spans)]
    assert b"".join(pieces(data)) == data
    if len(data) > WHOLE_BYTES:
        assert all(64 * KIB <= span.stop - span.start <= MIB for span in spans[:-1])
        assert 0 < spans[-1].stop - spans[-1].start <= MIB
    else:
        assert len(spans) == (1 if data else 0)


@settings(max_examples=15)
@given(kinds_of_data())
@example(random_bytes(3 * MIB + 1, 7))
@example(random_bytes(256 * KIB, 8))
@example(random_bytes(256 * KIB - 1, 8))
@example(random_bytes(64 * KIB + 1, 8))
def test_the_python_cutter_cuts_where_the_compiled_one_does(data):
    pytest.importorskip("pyfastcdc")
    native = chunking._cutter()
    assert native is not cut_in_python
    assert list(cut_in_python(memoryview(data))) == list(native(memoryview(data)))


@settings(max_examples=40)
@given(kinds_of_data(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_stream_is_cut_like_the_whole_however_it_is_split(data, repeats, rng):
    data += data * repeats
    at = 0

    def read(buffer):
        nonlocal at
        piece = data[at : at + rng.randint(1, len(buffer))]
        buffer[: len(piece)] = piece
        at += len(piece)
        return len(piece)

    assert list(stream_chunks(read)) == pieces(data)


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("size", [WHOLE_BYTES, 4 * MIB, 8 * MIB])
def test_a_stream_that_ends_at_a_buffer_boundary_is_cut_like_the_whole(size, extra):
    data = random_bytes(size + extra, 3)
    at = 0

    def read(buffer):
        nonlocal at
        piece = data[at : at + len(buffer)]
        buffer[: len(piece)] = piece
        at += len(piece)
        return len(piece)

    assert list(stream_chunks(read)) == pieces(data)


class SparseStream:
    """A sparse stream: data and holes."""

    def __init__(self, layout):
        self.data = b"".join(
            random_bytes(size, at) if at % 2 else bytes(size) for at, size in enumerate(layout)
        )
        self.ends = list(accumulate(layout))
        self.at = self.read_bytes = 0

    def read(self, buffer):
        piece = self.data[self.at : self.at + len(buffer)]
        buffer[: len(piece)] = piece
        self.at += len(piece)
        self.read_bytes += len(piece)
        return len(piece)

    def ahead(self):
        number = bisect(self.ends, self.at)
        return 0 if number % 2 or number == len(self.ends) else self.ends[number] - self.at

    def skip(self, size):
        assert 0 < size <= self.ahead()
        self.at += size


@settings(max_examples=25)
@given(st.lists(st.integers(1, 7 * MIB), max_size=4))
def test_skipped_holes_are_cut_like_zeros(layout):
    stream = SparseStream(layout)
    assert list(stream_chunks(stream.read, stream)) == pieces(stream.data)


def test_a_long_hole_is_mostly_skipped_and_its_chunks_are_equal():
    stream = SparseStream([50 * MIB, MIB, 50 * MIB])
    assert len({id(chunk) for chunk in list(stream_chunks(stream.read, stream))}) < 30
    assert stream.read_bytes < 12 * MIB


def test_a_stream_is_not_read_far_ahead():
    given_out = 0

    def read(buffer):
        nonlocal given_out
        given_out += len(buffer)
        buffer[:] = random_bytes(len(buffer), given_out)
        return len(buffer)

    endless = stream_chunks(read)
    consumed = 0
    for _ in range(60):
        consumed += len(next(endless))
        assert given_out - consumed <= 4 * MIB


@pytest.mark.parametrize("seed", range(5))
def test_one_changed_byte_changes_about_one_chunk(seed):
    data = random_bytes(20 * MIB, seed)
    at = random.Random(seed).randrange(len(data))
    changed = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
    new = set(pieces(changed)) - set(pieces(data))
    assert 1 <= len(new) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_a_shifted_tail_keeps_its_chunks(seed):
    data = random_bytes(20 * MIB, seed)
    shifted = data[: 5 * MIB] + b"a few more bytes" + data[5 * MIB :]
    before, after = pieces(data), pieces(shifted)
    assert len(set(after) - set(before)) <= 6
    assert after[-20:] == before[-20:]


def test_the_average_chunk_size_is_about_that_of_the_format():
    sizes = [len(piece) for piece in pieces(random_bytes(64 * MIB, 2))]
    assert 256 * KIB <= sum(sizes) / len(sizes) <= 384 * KIB


def test_a_mapped_file_can_be_closed_after_chunking(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(random_bytes(3 * MIB, 4))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert list(chunks(mapped)) == list(chunks(memoryview(path.read_bytes())))
        mapped.close()
