"""Composed integer keys: a commit's bodies and a list's items each lie in one range of a primary key."""

from __future__ import annotations

from typing import Final

BODY_PART_BITS: Final = 16
"""A commit has at most 65,536 bodies (erasure scopes)."""

ITEM_POSITION_BITS: Final = 32
"""A list has at most 4 billion items, and there can be 2 billion lists."""

ITEM_POSITION_MASK: Final = (1 << ITEM_POSITION_BITS) - 1


def body_key(commit_no: int, part: int) -> int:
    """The key of a commit's ``part``-th body."""
    return commit_no << BODY_PART_BITS | part


def item_key(list_no: int, position: int) -> int:
    """The key of the item at ``position`` of a list."""
    return list_no << ITEM_POSITION_BITS | position
