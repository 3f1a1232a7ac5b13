"""Prices: exact to the nano-unit for every provider, class of tokens, tier and date; unknown is not free."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.batch import Usage
from treering.core.clock import ManualClock, day_of, from_datetime
from treering.core.encoding import decode_json
from treering.core.query import EventQuery
from treering.errors import InvalidInput
from treering.runs.prices import Exchange, PriceTable, RateCard, TokenRate, exchange, price_call, prices
from treering.store import Store


def us(*moment: int) -> int:
    return from_datetime(datetime(*moment, tzinfo=UTC))


NOON = us(2026, 10, 20, 12)

GOLDEN = [
    # What the providers' price lists say: dollars a million tokens are thousands of nano-dollars a token.
    ("gpt-5", NOON, Usage(input=412, output=96), 412 * 1_250 + 96 * 10_000),
    ("gpt-5", NOON, Usage(input=100, cache_read=900, output=10), 100 * 1_250 + 900 * 125 + 10 * 10_000),
    ("gpt-5", NOON, Usage(input=1, output=100, reasoning=80), 1_250 + 100 * 10_000),
    ("openai/gpt-5", NOON, Usage(input=8), 10_000),
    ("openai:gpt-5", NOON, Usage(input=8), 10_000),
    ("gpt-4", NOON, Usage(input=100, output=50), 100 * 30_000 + 50 * 60_000),
    (
        "claude-opus-4-5-20251101",
        NOON,
        Usage(input=10, cache_read=1_000, cache_write=200, cache_write_1h=30, output=7),
        10 * 5_000 + 1_000 * 500 + 200 * 6_250 + 30 * 10_000 + 7 * 25_000,
    ),
    # Past 200,000 tokens of input, however they came, everything costs more.
    ("gemini-2.5-pro", NOON, Usage(input=200_000, output=10), 200_000 * 1_250 + 10 * 10_000),
    ("gemini-2.5-pro", NOON, Usage(input=200_001, output=10), 200_001 * 2_500 + 10 * 15_000),
    (
        "gemini-2.5-pro",
        NOON,
        Usage(input=1, cache_read=200_000, output=10),
        2_500 + 200_000 * 250 + 10 * 15_000,
    ),
    # Tokens of no known class cost what the input does.
    ("gpt-4", NOON, Usage(input=100, output=50, other=10), 110 * 30_000 + 50 * 60_000),
    # A tenth of a cent a million: nothing is lost to rounding on the way, and one rounding is half to even.
    ("deepseek-chat", us(2026, 3, 2, 12), Usage(input=3, cache_read=1), 3 * 270 + 70),
    ("deepseek-chat", us(2026, 3, 2, 20), Usage(input=3, cache_read=1), 3 * 135 + 35),
]


@pytest.mark.parametrize("model, ts_us, usage, nanos", GOLDEN)
def test_what_the_price_lists_say(model, ts_us, usage, nanos):
    assert prices.price(model, usage, ts_us).nanos == nanos


USAGES = [
    Usage(input=1, output=1),
    Usage(input=12_345, cache_read=67_890, cache_write=2_345, output=789, reasoning=78),
    Usage(input=150_001, cache_read=130_001, cache_write=1_001, cache_write_1h=333, output=4_321),
]


def test_every_model_costs_what_the_table_s_own_arithmetic_says():
    snapshot, compared = get_snapshot(), 0
    for provider in snapshot.providers:
        for model in provider.models:
            for moment in (datetime(2024, 2, 3, 4, tzinfo=UTC), datetime(2026, 10, 1, 18, tzinfo=UTC)):
                priced: ModelPrice = model.get_prices(moment)
                if priced.input_mtok is None or priced.output_mtok is None:
                    continue
                table = PriceTable()
                table._found[model.id, provider.id] = (provider, model)
                for usage in USAGES:
                    theirs = priced.calc_price(
                        genai_prices.Usage(
                            input_tokens=usage.total - usage.output,
                            cache_read_tokens=usage.cache_read,
                            cache_write_tokens=usage.cache_write + usage.cache_write_1h,
                            cache_write_1h_tokens=usage.cache_write_1h,
                            output_tokens=usage.output,
                            output_reasoning_tokens=usage.reasoning,
                        )
                    )["total_price"]
                    ours = table.price(model.id, usage, from_datetime(moment), provider=provider.id)
                    exact = (theirs * 10**9).to_integral_value(ROUND_HALF_EVEN)
                    assert ours.nanos == exact, (provider.id, model.id, moment, usage)
                    compared += 1
    assert compared > 5_000


@given(
    st.builds(Usage, **{name: st.integers(0, 300_000) for name in ("input", "cache_read", "output")}),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
)
def test_a_cost_is_rounded_once(usage, low, high):
    rate = TokenRate(low, ((200_000, high),))
    card = RateCard(name="x", input=rate, cache_read=rate, output=rate, reasoning=rate)
    each = high if usage.input + usage.cache_read > 200_000 else low
    exact = Decimal(each) * usage.total / 10**6
    assert card.nanos(usage) == exact.to_integral_value(ROUND_HALF_EVEN)


def test_no_price_is_no_cost():
    assert prices.price("my-own-llama", Usage(input=1), NOON) is None
    assert RateCard(name="x", input=TokenRate(1)).nanos(Usage(input=1, output=1)) is None
    assert RateCard(name="x", input=TokenRate(0)).nanos(Usage(input=1)) == 0
    data = {}
    assert price_call(data, "my-own-llama", Usage(input=1), NOON, None, None) == (None, None)
    assert price_call(data, "gpt-5", Usage(), NOON, None, None) == (None, None)
    assert data == {}


def test_the_service_tier_and_the_provider_choose_the_price():
    standard = prices.price("gpt-5", Usage(input=1_000), NOON)
    flex = prices.price("gpt-5", Usage(input=1_000), NOON, context={"service_tier": "flex"})
    assert (standard.nanos, flex.nanos) == (1_250_000, 625_000)
    azure = prices.price("gpt-5", Usage(input=1_000), NOON, provider="azure")
    assert azure.price.startswith("azure/")


@pytest.fixture
def clocked():
    clock = ManualClock(NOON)
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=clock)
        yield store, clock
        store.close()


def rows(store, run):
    return store.engine.scan(store.space, EventQuery(run=run.id, order="time")).records


def test_the_recorder_computes_missing_costs(clocked):
    store, _ = clocked
    with store.run(agent="a") as run:
        run.message("assistant", "x", model="gpt-5", usage={"input": 412, "output": 96})
        with run.span("call", kind="llm", model="gpt-5", metadata={"service_tier": "flex"}) as span:
            span.use({"input": 1_000})
        run.message("assistant", "y", model="gpt-5", usage={"input": 8}, cost="0.5", currency="EUR")
        run.message("assistant", "z", model="my-own-llama", usage={"input": 7})
        run.message("user", "no model", usage={"input": 7})
    store.flush()
    result = {
        (record.event.kind, record.event.body is not None, record.event.cost_nanos, record.event.currency)
        for record in rows(store, run)
        if record.event.usage is not None
    }
    assert result == {
        ("message", True, 1_475_000, "USD"),
        ("span.llm", False, 625_000, "USD"),
        ("message", True, 500_000_000, "EUR"),
        ("message", True, None, None),
    }
    data = [decode_json(record.event.data) for record in rows(store, run) if record.event.data]
    assert {"priced_by": "openai/gpt-5"} in data
    reported = next(each for each in data if "computed_cost" in each)
    assert reported["computed_cost"] == {"nanos": 10_000, "currency": "USD", "price": "openai/gpt-5"}
    total = store.cost.of_run(run.id).total
    assert total.nanos == {"USD": 2_100_000, "EUR": 500_000_000}
    assert (total.unpriced_tokens, total.unpriced_events) == (14, 2)


def test_amounts_are_converted_at_the_rate_of_their_day(clocked):
    store, clock = clocked
    day = day_of(NOON)
    with store.run(agent="a") as run:
        run.message("assistant", "x", usage={"input": 1}, cost=10, currency="USD")
        clock.advance(seconds=86_400)
        run.message("assistant", "x", usage={"input": 1}, cost=10, currency="USD")
        run.message("assistant", "x", usage={"input": 1}, cost=3, currency="EUR", agent="b")
        run.message("assistant", "x", usage={"input": 1}, cost=1, currency="XXX", agent="c")
        run.message("assistant", "x", usage={"input": 9}, agent="free")
    store.flush()
    report = store.cost.in_("EUR").of_run(run.id)
    first, second = exchange.rate("USD", day), exchange.rate("USD", day + 1)
    assert first.rate != second.rate
    expected = first.convert(10_000_000_000) + second.convert(10_000_000_000)
    parts = {part.key: part for part in report.parts}
    assert parts["a"].nanos == {"EUR": expected}
    assert parts["a"].rates == (first, second)
    assert [rate.date for rate in parts["a"].rates] == ["2026-10-20", "2026-10-21"]
    assert (parts["b"].nanos, parts["b"].rates) == ({"EUR": 3_000_000_000}, ())
    assert (parts["c"].nanos, parts["c"].unconverted) == ({}, {"XXX": 1_000_000_000})
    assert parts["c"].amount("EUR") is None
    assert parts["free"].is_unpriced
    assert parts["free"].amount("EUR") is None
    assert report.total.nanos == {"EUR": expected + 3_000_000_000}
    assert store.cost.in_("EUR").of_run("nothing").total.amount("EUR") == 0
    by_day = store.cost.in_("EUR").of_days()
    assert {part.key: part.nanos for part in by_day.parts}[day] == {"EUR": first.convert(10_000_000_000)}
    with pytest.raises(InvalidInput, match="currency"):
        store.cost.in_("euro")


def test_a_day_without_a_rate_has_that_of_the_day_before():
    friday, sunday = day_of(us(2026, 3, 6)), day_of(us(2026, 3, 8))
    rates = Exchange()
    assert rates.rate("USD", sunday) == rates.rate("USD", friday)
    assert rates.rate("USD", sunday).date == "2026-03-06"
    assert rates.rate("USD", day_of(us(1998, 1, 1))) is None
    assert rates.rate("NOK", day_of(us(2024, 1, 3)), into="SEK").date == "2024-01-03"
    future = rates.rate("USD", day_of(us(2126, 1, 1)))
    assert future.date < "2126-01-01"
    assert rates.rate("EUR", friday).rate == 1
    # What the European Central Bank published for that day.
    assert 1 / rates.rate("USD", day_of(us(2014, 3, 28))).rate == pytest.approx(Decimal("1.3759"))


WITHOUT = """
import sys
sys.modules["genai_prices"] = sys.modules["currency_converter"] = None
import treering
from treering.errors import MissingExtra
with treering.open("memory:") as store:
    with store.run(agent="a") as run:
        run.message("assistant", "x", model="gpt-5", usage={"input": 3})
        run.message("assistant", "x", usage={"input": 3}, cost=1)
    store.flush()
    total = store.cost.of_run(run.id).total
    assert (total.unpriced_tokens, total.nanos) == (3, {"USD": 10**9}), total
    assert store.cost.in_("USD").of_run(run.id).total.nanos == {"USD": 10**9}
    try:
        store.cost.in_("EUR").of_run(run.id)
    except MissingExtra as error:
        assert "treering[prices]" in str(error)
    else:
        raise AssertionError
"""


def test_without_the_extra_everything_is_unpriced():
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_a_cached_rate_card_is_that_of_its_minute():
    table = PriceTable()
    edge = us(2026, 3, 2, 16, 30)  # DeepSeek's cheaper hours begin
    asked = [table.card("deepseek-chat", ts_us) for ts_us in (edge, edge - 1, edge + 59_999_999, edge - 1)]
    assert asked[0] == asked[2] != asked[1] == asked[3]
    assert asked[:2] == [PriceTable().card("deepseek-chat", ts_us) for ts_us in (edge, edge - 1)]


def test_audio_has_prices_of_its_own():
    usage = Usage(input=900, cache_read=100, output=50)
    spoken = {"audio_input": 400, "audio_cache_read": 100, "text_input": 600, "text_output": 50}
    found = prices.price("gemini-2.5-flash", usage, NOON, modalities=spoken)
    assert found is not None
    assert found.nanos == 600 * 300 + 300 * 1_000 + 100 * 100 + 50 * 2_500
    text = prices.price("gemini-2.5-flash", usage, NOON)
    assert text is not None
    assert text.nanos == 900 * 300 + 100 * 30 + 50 * 2_500
