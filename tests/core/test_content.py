"""Content has one name and one address, and comes out of its frame exactly as it went in, or as damaged."""

import threading
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core import content as content_module
from treering.core.content import (
    HEADER_SIZE,
    KINDS,
    Content,
    ListAddress,
    ObjectAddress,
    SlotAddress,
    is_object_name,
    list_address,
    object_address,
    pack_body,
    parse_address,
    seal,
    slot_address,
    unpack_body,
    unseal,
    unseal_all,
)
from treering.errors import Corrupt, InvalidInput

NAMES = st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)
IDS = st.text(min_size=1, max_size=20).filter(str.isprintable)


@given(NAMES)
def test_an_object_address_reads_back(name):
    assert parse_address(object_address(name)) == ObjectAddress(name)


@given(IDS, st.integers(0, 65_535), st.integers(0, 10**6))
def test_a_slot_address_reads_back_for_any_batch_id(batch, part, index):
    assert parse_address(slot_address(batch, part, index)) == SlotAddress(batch, part, index)


@given(IDS)
def test_a_list_address_reads_back(list_id):
    assert parse_address(list_address(list_id)) == ListAddress(list_id)


ALMOST = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="ols:.0159ag\u0661", max_size=12),
    st.builds(
        "s:{}:{}.{}".format,
        IDS,
        st.text(alphabet="0129\u0663x", max_size=3),
        st.text(alphabet="012", max_size=3),
    ),
    st.builds("o:{}".format, st.text(alphabet="0aAgG\u0661", min_size=63, max_size=65)),
)


@given(ALMOST)
def test_every_text_is_rejected_or_the_only_spelling_of_an_address(text):
    try:
        place = parse_address(text)
    except InvalidInput as error:
        assert "not an address" in str(error)  # noqa: PT017 - either outcome is fine, but never a third
        return
    match place:
        case ObjectAddress(name):
            assert object_address(name) == text
            assert bytes.fromhex(name).hex() == name
        case SlotAddress(batch, part, index):
            assert slot_address(batch, part, index) == text
        case ListAddress(list_id):
            assert list_address(list_id) == text


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            "o",
            "o:",
            "l:",
            "s:",
            "s::0.0",
            "s:b:0",
            "s:b:0.",
            "s:b:.0",
            "s:b:01.0",
            "s:b:-1.0",
            "s:b:0.0 ",
        ],
        *["s:b:\u0663.0", "s:b:123456.0", "s:b:0.1234567890"],
        *["O:" + "a" * 64, "o:" + "A" * 64, "o:" + "a" * 63, "o:" + "a" * 65, "o:" + "a" * 64 + "\n"],
    ],
)
def test_an_invalid_address_is_rejected(text):
    with pytest.raises(InvalidInput):
        parse_address(text)


def test_the_name_of_an_object_is_the_hash_of_its_content():
    assert is_object_name(Content("bytes", b"").name)
    assert not is_object_name("sha256")


DATA = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda part, times: part * times, st.binary(max_size=20), st.integers(0, 500)),
)


@given(DATA, st.integers(0, 5000))
def test_a_sealed_frame_unseals(data, compress_from):
    assert unseal(seal(data, compress_from=compress_from), "here") == data
    assert unseal(seal(memoryview(data), compress_from=compress_from), "here") == data


@given(DATA, st.integers(0, 12_000), st.integers(0, 5000))
def test_a_frame_can_be_read_partially(data, upto, compress_from):
    sealed = seal(data, compress_from=compress_from)
    assert unseal(sealed, "here", upto=upto)[:upto] == data[:upto]
    assert unseal(memoryview(sealed), "here", upto=upto)[:upto] == data[:upto]


@given(DATA, st.data())
def test_any_flipped_bit_is_detected(data, draw):
    sealed = bytearray(seal(data, compress_from=64))
    position = draw.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[position // 8] ^= 1 << position % 8
    with pytest.raises(Corrupt, match="here"):
        unseal(bytes(sealed), "here")


def cut(frames: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    return [frame[:HEADER_SIZE] for frame in frames], [frame[HEADER_SIZE:] for frame in frames]


MANY = st.lists(st.tuples(DATA, st.integers(0, 500)), max_size=8)


@given(MANY)
def test_unsealing_many_equals_unsealing_each(many):
    frames = [seal(data, compress_from=compress_from) for data, compress_from in many]
    assert unseal_all(*cut(frames), "here") == [data for data, _ in many]


@given(MANY.filter(bool), st.data())
def test_a_flipped_bit_in_any_of_many_is_detected(many, draw):
    frames = [bytearray(seal(data, compress_from=compress_from)) for data, compress_from in many]
    sealed = frames[draw.draw(st.integers(0, len(frames) - 1))]
    position = draw.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[position // 8] ^= 1 << position % 8
    with pytest.raises(Corrupt, match="here"):
        unseal_all(*cut(list(map(bytes, frames))), "here")


@given(MANY.filter(bool), st.data())
def test_a_truncated_frame_among_many_is_detected(many, draw):
    frames = [seal(data, compress_from=compress_from) for data, compress_from in many]
    index = draw.draw(st.integers(0, len(frames) - 1))
    frames[index] = frames[index][: draw.draw(st.integers(0, len(frames[index]) - 1))]
    with pytest.raises(Corrupt, match="here"):
        unseal_all(*cut(frames), "here")


@given(DATA, DATA)
def test_swapped_headers_are_detected(one, other):
    headers, payloads = cut([seal(one), seal(other)])
    if headers[0] != headers[1]:
        with pytest.raises(Corrupt, match="here"):
            unseal_all(headers[::-1], payloads, "here")


@given(DATA)
def test_the_checksum_of_named_data_is_not_checked(data):
    sealed = bytearray(seal(data, compress_from=64))
    sealed[HEADER_SIZE - 1] ^= 1
    assert unseal(bytes(sealed), "here", has_name=True) == data


@given(DATA, st.integers(0, 7) | st.integers(16, 31))
def test_a_damaged_header_is_not_mistaken_for_a_newer_version(data, position):
    sealed = bytearray(seal(data, compress_from=64))
    sealed[position // 8] ^= 1 << position % 8
    with pytest.raises(Corrupt, match="here: checksum"):
        unseal(bytes(sealed), "here", has_name=True)


@given(DATA, st.data())
def test_a_truncated_frame_is_detected(data, draw):
    sealed = seal(data, compress_from=64)
    with pytest.raises(Corrupt, match="here"):
        unseal(sealed[: draw.draw(st.integers(0, len(sealed) - 1))], "here")


@given(st.binary(max_size=64))
def test_random_bytes_are_no_frame(noise):
    with pytest.raises(Corrupt):
        unseal(noise, "here")


def test_compression_is_used_where_it_pays():
    assert len(seal(b"a" * 10_000)) < 100
    assert len(seal(b"a" * 100)) == HEADER_SIZE + 100
    noise = bytes(range(256))
    assert len(seal(noise, compress_from=0)) == HEADER_SIZE + len(noise)


def test_a_frame_that_decompresses_beyond_the_limit_is_rejected():
    sealed = seal(bytes(100_000))
    assert len(unseal(sealed, "here", limit=100_000)) == 100_000
    with pytest.raises(Corrupt, match="limit is 99999"):
        unseal(sealed, "here", limit=99_999)


@pytest.mark.parametrize(
    "payload",
    [
        content_module.zstd.compress(b"small") + content_module.zstd.compress(bytes(1_000_000)),
        content_module.zstd.compress(b"small") + b"tail",
        content_module.zstd.compress(b"small" * 100)[:-1],
        b"",
        b"no zstd at all",
    ],
    ids=["a second frame", "a tail", "cut", "nothing", "something else"],
)
def test_a_payload_that_is_not_one_complete_zstd_frame_is_rejected(payload):
    """Even if its checksum is correct: such a frame was not written by treering."""
    forged = (
        content_module._ZSTD_HEAD
        + content_module._CRC.pack(crc32(payload, content_module._ZSTD_HEAD_CRC))
        + payload
    )
    with pytest.raises(Corrupt, match="here"):
        unseal(forged, "here", limit=1000)


@pytest.mark.parametrize("head", [(2, 0, 0), (1, 7, 0), (1, 0, 3)], ids=["version", "codec", "key"])
def test_the_error_about_a_newer_frame_says_to_upgrade(head):
    packed = content_module._HEAD.pack(*head)
    forged = packed + content_module._CRC.pack(crc32(b"data", crc32(packed))) + b"data"
    with pytest.raises(Corrupt, match="upgrade"):
        unseal(forged, "here")


def test_threads_do_not_share_a_compressor():
    data = [bytes([number]) * 50_000 for number in range(8)]
    sealed: dict[int, list[bytes]] = {}

    def work(number):
        sealed[number] = [seal(data[number]) for _ in range(50)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, frames in sealed.items():
        assert {unseal(each, "here") for each in frames} == {data[number]}


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
