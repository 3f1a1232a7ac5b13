"""Effects: the side effects of tools, each of which happens once."""

from treering.effects.effects import (
    Attempt,
    Effect,
    EffectFailed,
    EffectRunning,
    Effects,
    EffectUnknown,
    Intent,
    Outcome,
    Replay,
)

__all__ = [
    "Attempt",
    "Effect",
    "EffectFailed",
    "EffectRunning",
    "EffectUnknown",
    "Effects",
    "Intent",
    "Outcome",
    "Replay",
]
