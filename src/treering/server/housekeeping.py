"""How the process of a server treats memory: what is large goes back at once, what stays is not looked at.

Requests bring bodies of megabytes. glibc would keep the space of such a body for the next one, in the middle
of smaller things; from a fixed size on it asks the system for pages of their own and gives them back. And the
modules that were loaded stay for good, so the collector of cycles shall not walk over them; what spans are
made of has no cycles, so it shall look less often as well.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

_MMAP_THRESHOLD: Final = -3
"""The number of this setting in glibc's `mallopt`."""
_LARGE_BYTES: Final = 128 * 1024
_YOUNG: Final = 20_000
"""New objects after which the collector looks at them (Python's own: 700)."""


def settle_in() -> None:
    """Do this once, when everything is loaded."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
