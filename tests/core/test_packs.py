"""A pack contains its index, and never returns a byte that was not put in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core import packs
from treering.core.content import KINDS, Content
from treering.core.packs import (
    GROUP_SIZE,
    HEAD,
    PackWriter,
    filter_pack,
    group_by_frame,
    read_entry,
    read_frame,
    read_pack,
)
from treering.errors import Corrupt, InvalidInput

SALT = bytes(range(16))
WHERE = "test"

contents = st.builds(Content, st.sampled_from(KINDS), st.binary(max_size=2000))
large = st.builds(
    lambda seed, size: Content("bytes", (seed * (size // len(seed) + 1))[:size]),
    st.binary(min_size=1, max_size=300),
    st.integers(GROUP_SIZE - 2, GROUP_SIZE + 2000),
)
batches = st.lists(contents | large, max_size=40, unique_by=lambda content: content.name)


def pack_of(*some: Content, salt: bytes = SALT) -> packs.Pack:
    writer = PackWriter(salt=salt)
    for content in some:
        writer.add(content)
    return writer.finish()


def unpacked(data: bytes) -> dict[str, Content]:
    found = {}
    for (offset, length), entries in group_by_frame(read_pack(data, pack=WHERE)).items():
        for entry, content in zip(
            entries, read_frame(data[offset : offset + length], entries, pack=WHERE), strict=True
        ):
            found[entry.name] = content
    return found


@given(batches)
def test_a_pack_returns_its_objects_unchanged(some):
    pack = pack_of(*some)
    assert unpacked(pack.data) == {content.name: content for content in some}
    assert pack.name == sha256(pack.data).hexdigest()


@given(batches)
def test_the_index_in_the_file_equals_the_entries_of_the_writer(some):
    pack = pack_of(*some)
    assert read_pack(pack.data, pack=WHERE) == pack.entries
    start, stop = packs.index_span(pack.data[-packs.TRAILER_SIZE :], size=pack.size, pack=WHERE)
    assert packs.read_index(pack.data[start:stop], start=start, pack=WHERE) == pack.entries


@given(batches, st.data())
def test_one_object_is_read_from_its_frame_alone(some, data):
    pack = pack_of(*some)
    if pack.entries:
        entry = data.draw(st.sampled_from(pack.entries))
        frame = pack.data[entry.offset : entry.offset + entry.length]
        assert read_entry(frame, entry, pack=WHERE).name == entry.name


@given(st.lists(contents, min_size=1, max_size=20, unique_by=lambda content: content.name), st.data())
def test_any_flipped_bit_is_found(some, data):
    pack = pack_of(*some)
    at = data.draw(st.integers(0, pack.size * 8 - 1))
    broken = bytearray(pack.data)
    broken[at // 8] ^= 1 << at % 8
    with pytest.raises(Corrupt, match=WHERE):
        unpacked(bytes(broken))


@given(st.lists(contents, min_size=1, max_size=20), st.data())
def test_a_truncated_pack_is_found(some, data):
    pack = pack_of(*some)
    length = data.draw(st.integers(0, pack.size - 1))
    with pytest.raises(Corrupt):
        read_pack(pack.data[:length], pack=WHERE)
    with pytest.raises(Corrupt):
        read_pack(pack.data[: pack.size - length - 1] + pack.data[pack.size - length :], pack=WHERE)


@given(batches, st.data())
def test_a_trimmed_pack_contains_kept_objects_and_no_trace_of_the_rest(some, data):
    pack = pack_of(*some)
    keep = data.draw(st.sets(st.sampled_from([content.name for content in some]))) if some else set()
    rest = filter_pack(pack.data, keep, pack=WHERE, salt=bytes(16))
    kept = {content.name: content for content in some if content.name in keep}
    assert ({} if rest is None else unpacked(rest.data)) == kept


def test_a_dropped_secret_is_in_no_byte_of_the_trimmed_pack():
    secret = Content("bytes", b"canary-7f3a " * 3)
    others = [Content("bytes", b"neighbour %d " % number * 3) for number in range(20)]
    pack = pack_of(*others[:10], secret, *others[10:])
    rest = filter_pack(pack.data, {content.name for content in others}, pack=WHERE, salt=bytes(16))
    assert rest is not None
    assert b"canary-7f3a" not in b"".join(content.data for content in unpacked(rest.data).values())
    assert bytes.fromhex(secret.name) not in rest.data


def test_frames_that_are_kept_whole_are_copied_unchanged():
    some = [Content("bytes", b"%06d" % number * 5000) for number in range(20)]
    pack = pack_of(*some)
    rest = filter_pack(pack.data, {content.name for content in some[1:]}, pack=WHERE, salt=SALT)
    assert rest is not None
    last = pack.entries[-1]
    assert pack.data[last.offset : last.offset + last.length] in rest.data


def test_small_objects_share_a_frame_and_large_ones_have_their_own():
    small = [Content("bytes", b"%05d" % number * 1000) for number in range(100)]
    big = Content("bytes", b"x" * GROUP_SIZE)
    frames = group_by_frame(pack_of(*small[:50], big, *small[50:]).entries)
    holders = [entries for entries in frames.values() if any(entry.name == big.name for entry in entries)]
    assert [len(entries) for entries in holders] == [1]
    assert len(frames) == 1 + -(-100 * 5000 // GROUP_SIZE)


def test_objects_in_one_frame_compress_better_than_alone():
    small = [
        Content("text", b"def handler_%d(request): return respond(request, status=200)\n" % number)
        for number in range(2000)
    ]
    alone = sum(pack_of(content).entries[0].length for content in small)
    frames = group_by_frame(pack_of(*small).entries)
    assert sum(length for _, length in frames) < alone / 2


def test_frames_are_contiguous():
    entries = pack_of(*(Content("bytes", b"%d" % number * 9000) for number in range(60))).entries
    spans = list(group_by_frame(entries))
    assert spans[0][0] == len(HEAD)
    assert all(here + length == there for (here, length), (there, _) in pairwise(spans))


def test_equal_objects_in_two_packs_give_two_pack_names():
    content = Content("json", b"{}")
    assert pack_of(content).name != pack_of(content, salt=bytes(16)).name


def test_compressing_in_threads_changes_nothing():
    some = [Content("bytes", b"%d" % number * 4000) for number in range(300)]
    with ThreadPoolExecutor(3) as pool:
        writer = PackWriter(salt=SALT, executor=pool)
        for content in some:
            writer.add(content)
        assert writer.finish() == pack_of(*some)


def test_a_writer_is_full_by_bytes_or_by_count(monkeypatch):
    writer = PackWriter(salt=SALT, limit=1000)
    assert writer.empty
    writer.add(Content("bytes", b"x" * 900))
    assert not writer.full
    writer.add(Content("bytes", b"y" * 200))
    assert writer.full
    monkeypatch.setattr(packs, "PACK_OBJECTS", 2)
    writer = PackWriter(salt=SALT)
    writer.add(Content("bytes", b""))
    assert not writer.full
    writer.add(Content("text", b""))
    assert writer.full


def test_the_error_names_object_and_pack():
    content = Content("bytes", b"something")
    pack = pack_of(content)
    (entry,) = pack.entries
    other = packs.seal(b"else.....")
    with pytest.raises(Corrupt, match=rf"object {content.name} in pack packs/ab"):
        read_entry(other, entry, pack="packs/ab")


def test_an_object_too_large_for_a_frame_is_rejected(monkeypatch):
    monkeypatch.setattr(packs, "MAX_PAYLOAD", GROUP_SIZE)
    with pytest.raises(InvalidInput, match="chunks"):
        PackWriter(salt=SALT).add(Content("bytes", bytes(GROUP_SIZE + 1)))
