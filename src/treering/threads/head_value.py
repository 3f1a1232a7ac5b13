"""What the head of a thread says: where it is, and what a list of threads shows without reading further.

Retention finds the checkpoint that a head holds by the key ``checkpoint``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from treering.errors import Corrupt

if TYPE_CHECKING:
    from treering.core.records import Ref
    from treering.threads.checkpoint_record import CheckpointRecord


class HeadValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a head ref, as JSON."""

    checkpoint: str
    first_us: int
    """When the thread was first saved."""
    step: int
    thread: str
    namespace: str = ""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(HeadValue).decode


def head_value(checkpoint: CheckpointRecord, first_us: int, *, thread: str, namespace: str) -> bytes:
    """The value of a thread's head at this checkpoint: one of its own, or of a thread that it grew out of."""
    return _encode(HeadValue(checkpoint.id, first_us, checkpoint.step, thread, namespace))


def read_head(ref: Ref) -> HeadValue:
    """What a head says; `Corrupt` if that cannot be read."""
    try:
        return _decode(ref.value)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"the head {ref.name!r} cannot be read ({error}); run `treering verify`, restore from a backup"
        ) from None
