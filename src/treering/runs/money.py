"""Money as integer nano-units of a currency, so that sums are exact. Decimals appear only at the edge."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from treering.core.batch import NUMBER_BITS
from treering.errors import InvalidInput

NANOS: Final = 1_000_000_000
_DIGITS: Final = 24
"""The maximum number of digits before the decimal point; larger amounts are errors and slow to print."""

_CURRENCY: Final = re.compile(r"[A-Z]{3}")


def to_nanos(amount: Decimal | float | str) -> int:
    """Convert an amount to nano-units, rounding half to even. A float counts as its shortest decimal."""
    try:
        exact = amount if isinstance(amount, Decimal) else Decimal(str(amount))
        if exact.adjusted() > _DIGITS:
            raise OverflowError
        nanos = int((exact * NANOS).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        raise InvalidInput(f"{amount!r} is not an amount of money; use a number or a Decimal") from None
    return nanos


def to_cost(amount: Decimal | float | str) -> int:
    """Convert an amount to nano-units that a single event can hold."""
    nanos = to_nanos(amount)
    if abs(nanos) >> NUMBER_BITS:
        most = (1 << NUMBER_BITS) // NANOS
        raise InvalidInput(
            f"{amount!r} is above the limit of {most:,} for one event; pass the cost of this call"
        )
    return nanos


def from_nanos(nanos: int) -> Decimal:
    """Convert nano-units to an exact amount."""
    return Decimal(nanos).scaleb(-9)


def check_currency(code: str) -> str:
    """Return an ISO 4217 code if it is valid."""
    if _CURRENCY.fullmatch(code) is None:
        raise InvalidInput(f"{code!r} is not a currency; use three capital letters (ISO 4217), such as EUR")
    return code
