"""Effects: the side effects of tools, each of which happens once."""

from treering.effects.effects import (
    Attempt,
    Effect,
    EffectRunning,
    Effects,
    Intent,
    Outcome,
    Replay,
)

__all__ = ["Attempt", "Effect", "EffectRunning", "Effects", "Intent", "Outcome", "Replay"]
