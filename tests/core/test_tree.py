"""A folder has one stored form; anything else is rejected with a reason."""

import random
from hashlib import sha256

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treering.core.content import Content
from treering.core.tree import (
    INLINE_BYTES,
    Change,
    FileEntry,
    FolderEntry,
    LinkEntry,
    Tree,
    decode_tree,
    diff,
    encode_tree,
    links_of,
)
from treering.errors import Corrupt, InvalidInput, NewerStore, TreeringError

HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
MODES = st.integers(0, 0o777)


def as_the_os_gives_it(raw):
    return raw.decode("utf-8", "surrogateescape")


NAMES = (
    (st.binary(min_size=1, max_size=255) | st.text(min_size=1, max_size=60).map(str.encode))
    .filter(lambda raw: raw not in (b".", b"..") and not {0, ord("/")} & set(raw))
    .map(as_the_os_gives_it)
)
TARGETS = st.binary(min_size=1, max_size=300).filter(lambda raw: 0 not in raw).map(as_the_os_gives_it)


def inline(name, data, mode=0o644):
    return FileEntry(name=name, mode=mode, size=len(data), data=data)


ENTRIES = (
    st.builds(
        FileEntry,
        name=NAMES,
        mode=MODES,
        size=st.integers(1, 2**63 - 1),
        content=st.lists(HASHES, min_size=1, max_size=4).map(tuple),
    )
    | st.builds(FileEntry, name=NAMES, mode=MODES, size=st.just(0), content=st.just(()))
    | st.builds(inline, NAMES, st.binary(min_size=1, max_size=INLINE_BYTES), MODES)
    | st.builds(FolderEntry, name=NAMES, mode=MODES, tree=HASHES)
    | st.builds(LinkEntry, name=NAMES, target=TARGETS)
)
ENTRY_LISTS = st.lists(ENTRIES, unique_by=lambda entry: entry.name, max_size=12)

HASH = sha256(b"").hexdigest()
RAW = bytes.fromhex(HASH)


def file(name, content=(HASH,), **more):
    return FileEntry(**{"name": name, "mode": 0o644, "size": len(content), "content": content, **more})


def stored(*entries, version=1):
    return Content("tree", msgspec.msgpack.encode([version, entries]))


@given(ENTRY_LISTS)
@example([file("[...slug]"), file("C:"), file("back\\slash"), file("\udcff\udcfe"), file("x" * 255)])
def test_a_folder_survives_a_round_trip(entries):
    tree = Tree(entries=tuple(entries))
    restored = decode_tree(encode_tree(tree))
    assert set(restored.entries) == set(entries)
    assert encode_tree(restored) == encode_tree(tree)


@given(ENTRY_LISTS, st.randoms(use_true_random=False))
def test_equal_folders_have_equal_names_in_any_order_of_reading(entries, rng):
    mixed = rng.sample(entries, len(entries))
    assert encode_tree(Tree(entries=tuple(mixed))).name == encode_tree(Tree(entries=tuple(entries))).name


@given(ENTRY_LISTS, ENTRY_LISTS)
def test_different_folders_have_different_names(one, other):
    same = set(one) == set(other)
    assert (encode_tree(Tree(entries=tuple(one))) == encode_tree(Tree(entries=tuple(other)))) == same


def test_the_stored_form_is_unchanged():
    # On disk in every store: a change here needs a new format version.
    tree = Tree(
        entries=(
            LinkEntry(name="z", target="../a"),
            FolderEntry(name="b", mode=0o755, tree=HASH),
            file("é", size=300),
            file("a", (), size=0, mode=0o600),
            inline("y", b"tiny"),
        )
    )
    content = encode_tree(tree)
    assert content.data == b"".join(
        [
            b"\x92\x01\x95",
            b"\x95\x00\xc4\x01a\xcd\x01\x80\x00\xc4\x00",
            b"\x94\x01\xc4\x01b\xcd\x01\xed\xc4\x20" + RAW,
            b"\x94\x03\xc4\x01y\xcd\x01\xa4\xc4\x04tiny",
            b"\x93\x02\xc4\x01z\xc4\x04../a",
            b"\x95\x00\xc4\x02\xc3\xa9\xcd\x01\xa4\xcd\x01\x2c\xc4\x20" + RAW,
        ]
    )
    assert [entry.name for entry in decode_tree(content).entries] == ["a", "b", "y", "z", "é"]
    assert encode_tree(Tree()).data == b"\x92\x01\x90"


def test_only_permission_bits_are_kept():
    tree = Tree(entries=(file("a", mode=0o104755), FolderEntry(name="b", mode=0o41777, tree=HASH)))
    assert [entry.mode for entry in decode_tree(encode_tree(tree)).entries] == [0o755, 0o777]


BAD_NAMES = ["", ".", "..", "a/b", "/", "../x", "a\0", "x" * 256, "é" * 128]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("make", [file, lambda name: LinkEntry(name=name, target="x")], ids=["file", "link"])
def test_an_impossible_file_name_is_not_stored(make, name):
    with pytest.raises(InvalidInput, match="has a name"):
        encode_tree(Tree(entries=(make(name),)))


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(
    "rest", [(0, 0o644, 1, RAW), (1, 0o755, RAW), (2, b"x")], ids=["file", "folder", "link"]
)
def test_an_impossible_file_name_is_not_read(name, rest):
    with pytest.raises(Corrupt, match=r"entry '.* has a name"):
        decode_tree(stored((rest[0], name.encode(), *rest[1:])))


@pytest.mark.parametrize(
    "entry, problem",
    [
        (file("a", ("00",)), "not an object name"),
        (file("a", (HASH.upper(),)), "not an object name"),
        (file("a", (" ".join([HASH[:32], HASH[32:]]),)), "not an object name"),
        (file("a", ("z" * 64,)), "not an object name"),
        (file("a", (), size=1), "size of 1 bytes in 0 objects"),
        (file("a", size=0), "size of 0 bytes in 1 objects"),
        (file("a", size=-1), "size of -1"),
        (file("a", size=2**63), "size of 9223372036854775808"),
        (inline("a", b""), "keeps 0 bytes"),
        (inline("a", bytes(INLINE_BYTES + 1)), "keeps 513 bytes"),
        (FileEntry(name="a", mode=0, size=2, data=b"x"), "another size than its data"),
        (FileEntry(name="a", mode=0, size=1, data=b"x", content=(HASH,)), "has objects"),
        (FolderEntry(name="a", mode=0, tree=HASH[:62]), "not an object name"),
        (LinkEntry(name="a", target=""), "empty target"),
        (LinkEntry(name="a", target="b\0c"), "NUL"),
        (file("\ud800"), "surrogate"),
        (LinkEntry(name="a", target="\ud800"), "surrogate"),
    ],
)
def test_an_invalid_entry_is_not_stored(entry, problem):
    with pytest.raises(InvalidInput, match=problem):
        encode_tree(Tree(entries=(entry,)))


def test_names_in_a_folder_are_unique():
    with pytest.raises(InvalidInput, match="'a' occurs twice"):
        encode_tree(Tree(entries=(file("a"), LinkEntry(name="a", target="b"))))


FILE_A, FILE_B = (0, b"a", 0o644, 1, RAW), (0, b"b", 0o644, 1, RAW)


@pytest.mark.parametrize(
    "content, problem",
    [
        (stored(FILE_A, FILE_A), "entry 'a' occurs twice"),
        (stored(FILE_B, FILE_A), "entry 'a' comes after 'b'"),
        (stored((0, b"a", 0o4755, 1, RAW)), "entry 'a' has mode 0o4755"),
        (stored((1, b"a", -1, RAW)), "entry 'a' has mode"),
        (stored((0, b"a", 0o644, 1, RAW[:31])), "entry 'a' has content that is not"),
        (stored((0, b"a", 0o644, 1, b"")), "entry 'a' has a size of 1 bytes in 0 objects"),
        (stored((0, b"a", 0o644, -1, RAW)), "entry 'a' has a size of -1"),
        (stored((1, b"a", 0o755, RAW + RAW)), "entry 'a' has a tree that is not"),
        (stored((2, b"a", b"")), "entry 'a' has an empty target"),
        (stored((2, b"a", b"x\0")), "entry 'a' has an empty target or one with NUL"),
        (stored((3, b"a", b"x")), "does not parse"),
        (stored((3, b"a", 0o644, b"")), "entry 'a' keeps 0 bytes"),
        (stored((3, b"a", 0o644, bytes(513))), "entry 'a' keeps 513 bytes"),
        (stored((3, b"a", 0o4755, b"x")), "entry 'a' has mode 0o4755"),
        (stored((3, b"a/b", 0o644, b"x")), "a name that no file can have"),
        (stored((4, b"a", 0o644, b"x")), "does not parse"),
        (stored((0, "a", 0o644, 1, RAW)), "tree [0-9a-f]{64} "),
        (stored((0, b"a", "0644", 1, RAW)), "does not parse"),
        (stored((0, b"a", 0o644, 1)), "does not parse"),
        (stored((0, b"a", 0o644, 1, RAW, b"extra")), "tree [0-9a-f]{64} "),
        (stored(version=0), "canonical form"),
        (stored(version=-1), "canonical form"),
        (Content("tree", b""), "does not parse"),
        (Content("tree", b"\x92\x01"), "does not parse"),
        (Content("tree", b"\x92\x01\x90\x90"), "does not parse"),
        (Content("tree", b"\x92\xcc\x01\x90"), "canonical form"),  # 1 in two bytes
        (Content("tree", b"\x93\x01\x90\x90"), "does not parse"),
        (Content("tree", b"\x92\x01\xdd\xff\xff\xff\xff"), "does not parse"),  # four thousand million entries
        (Content("tree", b"\x92\x01" + b"\x91" * 100_000 + b"\x90"), "does not parse"),
    ],
)
def test_what_encode_tree_never_writes_is_corrupt(content, problem):
    with pytest.raises(Corrupt, match=problem):
        decode_tree(content)
    with pytest.raises(Corrupt):
        links_of(content)


def test_the_error_about_a_newer_tree_asks_for_an_upgrade():
    with pytest.raises(NewerStore, match="format 2"):
        decode_tree(Content("tree", msgspec.msgpack.encode([2, {"anything": 1}])))


@given(st.binary(max_size=100) | st.tuples(ENTRY_LISTS, st.integers()).map(lambda drawn: damaged(*drawn)))
def test_only_the_stored_form_can_be_read(data):
    try:
        tree = decode_tree(Content("tree", data))
    except TreeringError:
        return
    assert encode_tree(tree).data == data


def damaged(entries, seed):
    data = bytearray(encode_tree(Tree(entries=tuple(entries))).data)
    rng = random.Random(seed)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


@given(ENTRY_LISTS)
def test_the_links_of_a_tree_are_its_contents_and_folders(entries):
    links = links_of(encode_tree(Tree(entries=tuple(entries))))
    expected = set()
    for entry in entries:
        if isinstance(entry, FileEntry):
            expected.update(entry.content)
        elif isinstance(entry, FolderEntry):
            expected.add(entry.tree)
    assert set(links) == expected
    assert len(links) == len(expected)


def test_other_content_has_no_links_and_is_no_tree():
    assert links_of(Content("bytes", b"\x92\x01\x90")) == ()
    with pytest.raises(InvalidInput, match="not a folder"):
        decode_tree(Content("json", b"{}"))


@given(ENTRY_LISTS, ENTRY_LISTS)
def test_a_diff_turns_one_folder_into_the_other(one, other):
    changes = diff(Tree(entries=tuple(one)), Tree(entries=tuple(other)))
    folder = {entry.name: entry for entry in one}
    for change in changes:
        assert folder.pop(change.name, None) == change.before
        assert change.before != change.after
        if change.after is not None:
            folder[change.name] = change.after
    assert folder == {entry.name: entry for entry in other}


def test_a_diff_names_what_was_added_changed_and_removed():
    old, new = file("changed"), file("changed", mode=0o755)
    before = Tree(entries=(old, file("gone"), file("same")))
    after = Tree(entries=(file("added"), file("same"), new))
    assert diff(before, after) == (
        Change(name="added", before=None, after=file("added")),
        Change(name="changed", before=old, after=new),
        Change(name="gone", before=file("gone"), after=None),
    )
