"""The blob store suite: what every blob store must do, as tests to inherit.

To join, subclass it and provide the fixture `blobs`::

    class TestMyBlobs(BlobsSuite):
        @pytest.fixture
        def blobs(self, tmp_path):
            return MyBlobs(tmp_path)

`blobs` returns an empty store. A store whose `conditional` is False can pass too: the tests of conditional
writes are skipped, and `test_conditions_hold_or_are_rejected` checks that it rejects them instead of ignoring
the condition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Barrier, Event
from typing import ClassVar, TypeVar

import pytest

from treering.core.storage import BlobInfo, Blobs, ETag
from treering.errors import Conflict, InvalidInput, NotFound, Unsupported

MIB = 1 << 20
RACERS = 16

ODD_NAMES = (
    "with space",
    "ünïcödé",
    "日本語/ファイル",
    "😀",
    "e\u0301 combining",
    "percent%20%2F%",
    "a#b?c&d=e+f",
    "*[x]{y}~",
    "quotes'\"`",
    "colon:pipe|<angle>",
    ".hidden",
    "...",
    "-dash",
    "trailing.",
    "x" * 255,
    "/".join(["deep"] * 40),
)

BAD_NAMES = (
    "",
    "/absolute",
    "trailing/",
    "double//slash",
    ".",
    "..",
    "up/../over",
    "here/./there",
    "nul\0byte",
    "new\nline",
    "back\\slash",
    "lone\ud800surrogate",
    "x" * 256,
    "/".join(["long" * 20] * 20),
    ".drafts/mine",
)

T = TypeVar("T")


class BlobsSuite:
    """Override the fixture `blobs`."""

    rounds: ClassVar[int] = 5
    """How often a race is repeated; some servers take seconds for one."""

    @pytest.fixture
    def blobs(self) -> Blobs:
        """An empty store."""
        raise NotImplementedError("override the fixture blobs in your test class")

    @pytest.fixture
    def conditional(self, blobs: Blobs) -> Blobs:
        """The same store, if it supports conditional writes."""
        if not blobs.conditional:
            pytest.skip("this store does not support conditional writes")
        return blobs

    @pytest.mark.parametrize("size", [0, 1, 4096, MIB + 1, 10 * MIB, 34 * MIB])
    def test_get_returns_what_was_put(self, blobs: Blobs, size: int) -> None:
        data = _bytes(size)
        blobs.put("packs/ab/one", data)
        assert blobs.get("packs/ab/one") == data
        held = blobs.read("packs/ab/one")
        assert held is not None
        assert held.data == data

    @pytest.mark.parametrize("form", [bytearray, memoryview])
    def test_anything_like_bytes_can_be_put(self, blobs: Blobs, form: Callable[[bytes], bytearray]) -> None:
        blobs.put("one", form(b"some bytes"))
        assert blobs.get("one") == b"some bytes"

    @pytest.mark.parametrize("size", [0, 1, MIB // 2, 12 * MIB])
    def test_pieces_are_concatenated(self, blobs: Blobs, size: int) -> None:
        pieces = (b"head", _bytes(size), b"", _bytes(size)[::-1], *[b"x"] * 1500, _bytes(size))
        blobs.put("one", pieces)
        assert blobs.get("one") == b"".join(pieces)

    @pytest.mark.parametrize("size", [0, 5, 20 * MIB + 7, 34 * MIB + 7])
    def test_a_file_can_be_put(self, blobs: Blobs, tmp_path: Path, size: int) -> None:
        file = tmp_path / "source"
        file.write_bytes(_bytes(size))
        blobs.put("from/file", file)
        assert sha256(blobs.get("from/file")).digest() == sha256(file.read_bytes()).digest()

    def test_a_missing_file_is_invalid_input(self, blobs: Blobs, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="missing-source"):
            blobs.put("one", tmp_path / "missing-source")
        assert blobs.stat("one") is None

    def test_put_replaces_an_existing_blob(self, blobs: Blobs) -> None:
        blobs.put("one", b"longer than the second")
        blobs.put("one", b"second")
        assert blobs.get("one") == b"second"
        assert [info.size for info in blobs.list()] == [6]

    def test_a_range_behaves_like_a_slice(self, blobs: Blobs) -> None:
        data = _bytes(100)
        blobs.put("one", data)
        for start in (0, 1, 50, 99, 100, 101, 5000):
            for stop in (None, 0, 1, 50, 99, 100, 101, 5000):
                assert blobs.get("one", start=start, stop=stop) == data[start:stop], (start, stop)

    def test_a_range_of_an_empty_blob_is_empty(self, blobs: Blobs) -> None:
        blobs.put("none", b"")
        assert blobs.get("none", start=0, stop=10) == b""
        assert blobs.get("none", start=3) == b""

    def test_a_range_cannot_be_negative(self, blobs: Blobs) -> None:
        blobs.put("one", b"some bytes")
        with pytest.raises(InvalidInput):
            blobs.get("one", start=-3)
        with pytest.raises(InvalidInput):
            blobs.get("one", stop=-3)

    def test_missing_and_empty_blobs_are_distinguished(self, blobs: Blobs) -> None:
        blobs.put("here", b"")
        assert blobs.stat("gone") is None
        assert blobs.read("gone") is None
        assert blobs.stat("here/not") is None
        for start, stop in ((0, None), (0, 1), (5, 5), (7, None)):
            with pytest.raises(NotFound, match="gone"):
                blobs.get("gone", start=start, stop=stop)

    def test_stat_returns_size_and_time(self, blobs: Blobs) -> None:
        blobs.put("folder/one", b"12345")
        info = blobs.stat("folder/one")
        assert info is not None
        assert (info.name, info.size) == ("folder/one", 5)
        assert info.modified_us > 1_600_000_000_000_000
        assert blobs.list("folder") == [info]

    def test_a_folder_is_not_a_blob(self, blobs: Blobs) -> None:
        blobs.put("folder/one", b"1")
        assert blobs.stat("folder") is None
        assert blobs.read("folder") is None
        blobs.delete(["folder"])
        assert blobs.get("folder/one") == b"1"

    def test_readers_never_see_a_partial_write(self, blobs: Blobs) -> None:
        blobs.put("one", b"0" * MIB)
        done = Event()

        def read() -> set[int]:
            lengths: set[int] = set()
            while not done.is_set():
                data = blobs.get("one")
                assert data == data[:1] * len(data)
                lengths.add(len(data))
            return lengths

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(4)]
            try:
                for turn in range(20):
                    blobs.put("one", str(turn % 10).encode() * MIB)
            finally:
                done.set()
            assert {length for reader in readers for length in reader.result()} == {MIB}

    def test_many_threads_read_at_once(self, blobs: Blobs) -> None:
        data = _bytes(MIB)
        blobs.put("one", data)

        def piece(start: int) -> bool:
            return blobs.get("one", start=start, stop=start + 1000) == data[start : start + 1000]

        with ThreadPoolExecutor(RACERS) as pool:
            assert all(pool.map(piece, range(0, MIB, 8192)))

    def test_unusual_names_are_kept_exactly(self, blobs: Blobs) -> None:
        for name in ODD_NAMES:
            blobs.put(name, name.encode())
        assert sorted(info.name for info in blobs.list()) == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            assert blobs.get(name) == name.encode()
        blobs.delete(ODD_NAMES)
        assert blobs.list() == []

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_names_that_some_store_would_change_are_rejected(self, blobs: Blobs, name: str) -> None:
        calls: Sequence[Callable[[], object]] = (
            lambda: blobs.put(name, b""),
            lambda: blobs.put(name, b"", if_absent=True),
            lambda: blobs.put_if(name, b"", expect=None),
            lambda: blobs.get(name),
            lambda: blobs.read(name),
            lambda: blobs.stat(name),
            lambda: blobs.delete([name]),
        )
        for call in calls:
            with pytest.raises(InvalidInput):
                call()

    def test_names_within_a_folder_are_sorted(self, blobs: Blobs) -> None:
        names = ["A", "Z", "_", "a", "a-b", "a.b", "a0", "aa", "b", "z", "é", "日", "😀"]
        self._put_all(blobs, [f"folder/{name}" for name in random.Random(1).sample(names, len(names))])
        assert [info.name for info in blobs.list("folder")] == [f"folder/{name}" for name in names]

    def test_a_folder_lists_only_what_is_below_it(self, blobs: Blobs) -> None:
        self._put_all(blobs, ["a/1", "a/b/2", "a/b/c/3", "ab/4", "a-b/5", "6"])
        assert sorted(info.name for info in blobs.list("a")) == ["a/1", "a/b/2", "a/b/c/3"]
        assert blobs.list("a/") == blobs.list("a")
        assert len(blobs.list()) == 6
        assert blobs.list("nowhere") == []
        assert blobs.list("a/1") == []

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    def test_pages_hold_every_name_once(self, blobs: Blobs, limit: int) -> None:
        # Folders whose names are prefixes of each other: stores sort them differently.
        names = [
            f"{top}/{leaf}" for top in ("ws", "ws-2", "ws.old", "ws0", "w", "W") for leaf in ("x", "y/z")
        ]
        self._put_all(blobs, names)
        listed = [info.name for info in _all_pages(blobs, limit)]
        assert sorted(listed) == sorted(names)
        assert listed == [info.name for info in blobs.list()]

    def test_a_listing_can_exceed_a_thousand_names(self, blobs: Blobs) -> None:
        names = [f"many/{number:05}" for number in range(1203)]
        self._put_all(blobs, names)
        assert [info.name for info in _all_pages(blobs, 1000)] == names
        assert len(blobs.list("many", limit=5000)) == 1203
        blobs.delete(names)
        assert blobs.list("many") == []

    def test_paging_survives_writes_and_deletes(self, blobs: Blobs) -> None:
        stay = [f"s/{number:02}" for number in range(0, 40, 2)]
        leave = [f"s/{number:02}" for number in range(1, 40, 4)]
        self._put_all(blobs, [*stay, *leave])
        listed: list[str] = []
        for turn in count():
            page = blobs.list("s", after=listed[-1] if listed else None, limit=3)
            listed += (info.name for info in page)
            if len(page) < 3:
                break
            blobs.put(f"s/{turn * 3 % 40:02}-new", b"")
            if leave:
                blobs.delete([leave.pop()])
        assert len(listed) == len(set(listed))
        assert [name for name in listed if name in set(stay)] == stay

    def test_deleting_twice_is_no_error(self, blobs: Blobs) -> None:
        self._put_all(blobs, ["a/1", "a/2", "b"])
        blobs.delete(["a/1", "b", "never/was"])
        blobs.delete(["a/1", "b"])
        blobs.delete([])
        assert [info.name for info in blobs.list()] == ["a/2"]
        assert blobs.read("b") is None
        blobs.put("b", b"again")
        assert blobs.get("b") == b"again"

    def test_conditions_hold_or_are_rejected(self, blobs: Blobs) -> None:
        blobs.put("one", b"first")
        error = Conflict if blobs.conditional else Unsupported
        for attempt in (
            lambda: blobs.put("one", b"second", if_absent=True),
            lambda: blobs.put_if("one", b"second", expect=None),
            lambda: blobs.put_if("one", b"second", expect=ETag('"0123456789abcdef0123456789abcdef"')),
        ):
            with pytest.raises(error):
                attempt()
        assert blobs.get("one") == b"first"

    @pytest.mark.parametrize("size", [0, 10, 20 * MIB])
    def test_if_absent_creates(self, conditional: Blobs, tmp_path: Path, size: int) -> None:
        file = tmp_path / "source"
        file.write_bytes(_bytes(size))
        conditional.put("new/one", file, if_absent=True)
        with pytest.raises(Conflict):
            conditional.put("new/one", b"other", if_absent=True)
        assert conditional.get("new/one") == _bytes(size)

    def test_one_of_many_creators_wins(self, conditional: Blobs) -> None:
        def create(racer: int) -> bool:
            return _succeeds(lambda: conditional.put("race/one", f"racer {racer}".encode(), if_absent=True))

        for turn in range(self.rounds):
            conditional.delete(["race/one"])
            won = _race(create)
            assert won.count(True) == 1, (turn, won)
            assert conditional.get("race/one") == f"racer {won.index(True)}".encode()

    def test_an_etag_changes_with_each_write(self, conditional: Blobs) -> None:
        first = conditional.put_if("refs/main", b"1", expect=None)
        second = conditional.put_if("refs/main", b"2", expect=first)
        with pytest.raises(Conflict):
            conditional.put_if("refs/main", b"3", expect=first)
        held = conditional.read("refs/main")
        assert held is not None
        assert (held.data, held.etag) == (b"2", second)
        conditional.put("refs/main", b"from outside")
        with pytest.raises(Conflict):
            conditional.put_if("refs/main", b"3", expect=second)

    def test_the_etag_of_a_deleted_blob_is_stale(self, conditional: Blobs) -> None:
        etag = conditional.put_if("refs/main", b"1", expect=None)
        conditional.delete(["refs/main"])
        with pytest.raises(Conflict):
            conditional.put_if("refs/main", b"2", expect=etag)
        assert conditional.read("refs/main") is None

    def test_one_of_many_swaps_wins(self, conditional: Blobs) -> None:
        etag = conditional.put_if("refs/main", b"start", expect=None)

        def swap(racer: int) -> bool:
            return _succeeds(lambda: conditional.put_if("refs/main", f"{turn} {racer}".encode(), expect=etag))

        for turn in range(self.rounds):
            won = _race(swap)
            assert won.count(True) == 1, (turn, won)
            held = conditional.read("refs/main")
            assert held is not None
            assert held.data == f"{turn} {won.index(True)}".encode()
            etag = held.etag

    def test_no_update_is_lost(self, conditional: Blobs) -> None:
        conditional.put("refs/count", b"0")

        def add_one() -> None:
            held = conditional.read("refs/count")
            assert held is not None
            conditional.put_if("refs/count", str(int(held.data) + 1).encode(), expect=held.etag)

        def add_ten(_racer: int) -> None:
            for _ in range(10):
                while not _succeeds(add_one):
                    pass

        _race(add_ten, racers=4)
        assert conditional.get("refs/count") == b"40"

    def _put_all(self, blobs: Blobs, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(RACERS) as pool:
            for written in [pool.submit(blobs.put, name, b"") for name in names]:
                written.result()


def _bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _all_pages(blobs: Blobs, limit: int) -> list[BlobInfo]:
    listed: list[BlobInfo] = []
    while True:
        page = blobs.list(after=listed[-1].name if listed else None, limit=limit)
        listed += page
        if len(page) < limit:
            return listed


def _race(step: Callable[[int], T], *, racers: int = RACERS) -> list[T]:
    start = Barrier(racers)

    def run(racer: int) -> T:
        start.wait(timeout=30)
        return step(racer)

    with ThreadPoolExecutor(racers) as pool:
        return list(pool.map(run, range(racers)))


def _succeeds(write: Callable[[], object]) -> bool:
    try:
        write()
    except Conflict:
        return False
    return True
