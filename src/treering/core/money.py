"""Money: integer nano-units of a currency, so that sums are exact; other numbers only at the edge."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from treering.core.batch import NUMBER_BITS
from treering.errors import InvalidInput

NANOS: Final = 1_000_000_000
_DIGITS: Final = 24
"""No amount has more before its point: it is a mistake, and might take minutes to write out."""

_CURRENCY: Final = re.compile(r"[A-Z]{3}")


def to_nanos(amount: Decimal | float | str) -> int:
    """An amount in nano-units; a float counts as the decimal that Python shows for it.

    What does not come out even is rounded to the nearest nano-unit (half to even).
    """
    try:
        exact = amount if isinstance(amount, Decimal) else Decimal(str(amount))
        if exact.adjusted() > _DIGITS:
            raise OverflowError
        nanos = int((exact * NANOS).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        raise InvalidInput(f"{amount!r} is no amount of money; use a number or a Decimal") from None
    return nanos


def to_cost(amount: Decimal | float | str) -> int:
    """An amount in nano-units that one event can hold."""
    nanos = to_nanos(amount)
    if abs(nanos) >> NUMBER_BITS:
        most = (1 << NUMBER_BITS) // NANOS
        raise InvalidInput(f"{amount!r} is more than one event can cost ({most:,}); give what this call cost")
    return nanos


def from_nanos(nanos: int) -> Decimal:
    """The amount behind nano-units, exactly."""
    return Decimal(nanos).scaleb(-9)


def check_currency(code: str) -> str:
    """Return an ISO 4217 code, as it is stored."""
    if _CURRENCY.fullmatch(code) is None:
        raise InvalidInput(f"{code!r} is no currency; use the three capitals of ISO 4217, such as EUR")
    return code
