"""What the data of graph steps has in common: phrases that a new store keeps as one byte each.

A store keeps the phrases that it was created with, so changing this list affects new stores only.
"""

from __future__ import annotations

from typing import Final

PHRASES: Final = (
    '","lists":{"messages":["',
    ']},"metadata":{"source":"loop","step":',
    ',"parents":{}},"graph":["',
    '","writes":[["messages",0,"l",[["',
    '","path":"~__pregel_pull, ',
    '",""],"task":"',
)
