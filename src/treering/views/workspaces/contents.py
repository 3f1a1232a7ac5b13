"""What snapshots need of a store: content in, content out, by name. Every engine has these three."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from treering.core.address import Address
from treering.core.content import Content


class Contents(Protocol):
    """The three verbs, as `treering.core.engine.Engine` explains them."""

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that will require them; their names, in order."""
        ...

    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Which of these objects are not stored."""
        ...

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Verified content, in the order asked for."""
        ...


@runtime_checkable
class Far(Protocol):
    """Contents that take a while to come, so it is worth saying early what will be wanted."""

    def expect(self, names: Sequence[str]) -> None:
        """Begin to fetch these objects, if they are there; nothing is promised."""
        ...
