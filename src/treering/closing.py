"""Closing: what is used in a ``with`` statement, plain or async, and closed at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Leaving the ``with`` statement closes; the two forms differ only in who waits."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what was opened. May be called twice."""

    @abstractmethod
    async def aclose(self) -> None:
        """As `close`, for async code."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
