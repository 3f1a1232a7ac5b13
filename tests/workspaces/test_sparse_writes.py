"""A file that is written with holes has the same bytes, and no block of zeros on the disk."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treering.workspaces.restore_files import write_with_holes

_RUNS = st.lists(
    st.tuples(st.sampled_from([b"\0", b"x"]), st.integers(1, 20_000) | st.sampled_from([4096, 8192])),
    max_size=8,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_RUNS, st.lists(st.integers(1, 50_000), max_size=4))
def test_holes_change_no_byte_and_take_no_block(
    tmp_path: Path, runs: list[tuple[bytes, int]], cuts: list[int]
) -> None:
    data = b"".join(byte * size for byte, size in runs)
    path = tmp_path / "file"
    with path.open("wb") as file:
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for start, stop in pairwise(edges):
            write_with_holes(file.fileno(), data[start:stop])
        os.ftruncate(file.fileno(), len(data))
    assert path.read_bytes() == data
    blocks = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    # A run of less than a block at the edge of a piece is not known to go on in the next one.
    assert path.stat().st_blocks <= 8 * (sum(any(block) for block in blocks) + len(edges))
