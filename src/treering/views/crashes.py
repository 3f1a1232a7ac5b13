"""Runs whose process died: who is asked, and how it is written down.

A recorder holds a lease for as long as its process lives. A run that says that it runs, and whose recorder's
lease is free, has crashed. `Rounds` goes over all runs of a space, whatever their namespace, a few at a time
and again from the start, so that each is asked after some day at a cost that does not grow with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from treering.core.draft import Draft
from treering.errors import RefMoved
from treering.views.recording.recorder import lease_name
from treering.views.recording.runs import CRASHED, RUNNING, RUNS, RunInfo, run_info, write_state
from treering.views.thread_keys import thread_key

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref

_PROBE: Final = "probe"
_PROBE_SECONDS: Final = 5.0
_PAGE: Final = 500


class Pulse:
    """Whether recorders live; each is asked once, so it is for one look."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._alive: dict[str, bool] = {}

    def told(self, info: RunInfo) -> RunInfo:
        """A run as it stands: one that still says that it runs is asked after."""
        if info.status != RUNNING or info.recorder is None or not self._engine.caps.claim:
            return info
        if info.recorder not in self._alive:
            self._alive[info.recorder] = self._is_alive(info.recorder)
        return info if self._alive[info.recorder] else structs.replace(info, status=CRASHED)

    def _is_alive(self, recorder: str) -> bool:
        # All who ask are one holder: two who ask at once must not take each other for the recorder.
        lease = self._engine.claim(self._space, lease_name(recorder), holder=_PROBE, seconds=_PROBE_SECONDS)
        if lease is None:
            return True
        self._engine.release(lease)
        return False


class Rounds:
    """One who goes over the runs of a space."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._after: str | None = None

    def go_on(self, count: int) -> list[RunInfo]:
        """Ask after the next so many runs, in the order of their ids; gives those that are marked now."""
        marked: list[RunInfo] = []
        pulse = Pulse(self._engine, self._space)
        while count > 0:
            page = self._engine.scan_refs(self._space, RUNS, after=self._after, limit=min(count, _PAGE))
            if not page:
                self._after = None
                break
            self._after = page[-1].name
            count -= len(page)
            found = (mark(self._engine, self._space, ref, pulse, self._clock) for ref in page)
            marked += [each for each in found if each is not None]
        return marked


def mark(engine: Engine, space: str, ref: Ref, pulse: Pulse, clock: Clock) -> RunInfo | None:
    """Write down that a run crashed, if it did and nobody has; gives it back then."""
    info = pulse.told(run_info(ref))
    if info.status != CRASHED or info.ended_at_us is not None:
        return None
    over = structs.replace(info, ended_at_us=clock.now_us())
    draft = Draft(space)
    write_state(draft, over, thread_key=thread_key(over.thread, over.namespace), expect=ref.version)
    try:
        engine.commit(draft.batch())
    except RefMoved:
        return None  # someone else was quicker
    return over
