"""What everything of one run has in common, and the gate that its calls of models and tools pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.views.recording.recorder import NoteTaker


class Gate(Protocol):
    """What a call of a model or a tool has to pass before it begins."""

    def admit(self, origin: Origin, agent: str | None) -> None:
        """Raise if an agent must not make a call in this run."""
        ...


class Origin:
    """What everything of one run has in common."""

    __slots__ = ("clock", "gate", "recorder", "run", "scope", "thread")

    def __init__(
        self,
        recorder: NoteTaker,
        clock: Clock,
        *,
        run: str,
        scope: str,
        thread: str | None,
        gate: Gate | None = None,
    ) -> None:
        self.recorder = recorder
        self.clock = clock
        self.gate = gate
        self.run = run
        self.scope = scope
        self.thread = thread
