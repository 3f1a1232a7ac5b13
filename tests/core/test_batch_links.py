"""A walk visits everything reachable once, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from treering.core.batch import Event, content_links, event_links, mark_reachable
from treering.core.content import Content, object_address, slot_address
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree, encode_tree

GRAPHS = st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4))


@given(GRAPHS, st.lists(st.integers(0, 12), max_size=4))
def test_everything_reachable_is_visited_once(graph, roots):
    seen, expanded = set(), []

    def is_new(address):
        if address in seen:
            return False
        seen.add(address)
        return True

    def links(address):
        expanded.append(address)
        return graph.get(address, [])

    mark_reachable(roots, is_new=is_new, links=links)
    expected, frontier = set(roots), list(roots)
    while frontier:
        for found in graph.get(frontier.pop(), []):
            if found not in expected:
                expected.add(found)
                frontier.append(found)
    assert seen == expected
    assert sorted(expanded) == sorted(expected)


def test_a_long_chain_needs_no_recursion():
    seen = set()

    def is_new(address):
        is_first = address not in seen
        seen.add(address)
        return is_first

    mark_reachable([0], is_new=is_new, links=lambda number: [number + 1] if number < 100_000 else [])
    assert len(seen) == 100_001


def test_an_event_links_its_body_and_its_links():
    body, link = slot_address("b", 0, 0), object_address("a" * 64)
    event = Event(id="e", kind="k", ts_us=0, scope="s", body=body, links=(link, body))
    assert list(event_links(event)) == [body, link, body]
    assert list(event_links(Event(id="e", kind="k", ts_us=0, scope="s"))) == []


def test_only_a_tree_links_other_content():
    files, folder = ["a" * 64, "b" * 64], "c" * 64
    tree = encode_tree(
        Tree(
            entries=(
                FileEntry(name="file", mode=0o644, size=2, content=tuple(files)),
                FolderEntry(name="folder", mode=0o755, tree=folder),
                LinkEntry(name="link", target="file"),
            )
        )
    )
    assert set(content_links(tree)) == {object_address(name) for name in [*files, folder]}
    assert list(content_links(Content("bytes", tree.data))) == []
