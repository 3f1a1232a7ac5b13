"""A range of a forked list is located in the lists that own its items."""

from hypothesis import given
from hypothesis import strategies as st

from treering.core.records import ListInfo, ListRange, branch_point, locate


@st.composite
def lineages(draw):
    """A chain of lists, newest first, each forked anywhere from its parent, and the owner of each item."""
    infos, owners = [], []
    for depth in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(owners)))
        own = draw(st.integers(0, 4))
        name = f"l{depth}"
        infos.append(
            ListInfo(
                list=name,
                scope="s",
                parent=f"l{depth - 1}" if depth else None,
                start=start,
                length=start + own,
                depth=depth,
            )
        )
        owners = owners[:start] + [name] * own
    return infos[::-1], owners


@given(lineages(), st.integers(0, 30), st.integers(0, 30))
def test_a_range_is_located_item_by_item(lineage, start, stop):
    infos, owners = lineage
    runs = locate(infos, start, stop)
    located = [(position, run.list) for run in runs for position in range(run.start, run.stop)]
    assert located == list(enumerate(owners))[start:stop]
    assert all(run.start < run.stop for run in runs)


def test_a_missing_list_has_no_range():
    assert locate([], 0, 10) == []


def test_the_past_of_a_fork_is_read_from_its_parent():
    root = ListInfo(list="l", scope="s", parent=None, start=0, length=5, depth=0)
    fork = ListInfo(list="f", scope="s", parent="l", start=3, length=6, depth=1)
    assert locate([fork, root], 1, 99) == [
        ListRange(list="l", start=1, stop=3),
        ListRange(list="f", start=3, stop=6),
    ]


@given(lineages(), st.data())
def test_a_branch_starts_from_the_list_that_owns_the_item_before_it(lineage, data):
    infos, owners = lineage
    at = data.draw(st.integers(0, len(owners)))
    point = branch_point(infos, at)
    assert at <= point.length or at == 0
    if at:
        assert point.list == owners[at - 1]
    else:
        assert point.parent is None
