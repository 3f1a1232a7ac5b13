"""Compaction: a shorter view of a conversation, of which nothing is lost.

An agent that works for weeks has more history than its model can read. A **compaction** is a boundary in the
messages: a summary stands for the messages before it when the conversation is loaded as a compact view. The
messages themselves stay where they are, and a full load does not know that there are compactions.

Compactions are a list channel (`hooks.COMPACTIONS`) beside the messages, so each checkpoint says which ones
it has: a fork takes them along, a rewind goes back to those of its target, `uncompact` shortens the list.
Positions only mean something as long as the messages before them stay the same. Whatever saves fewer or other
messages therefore loses the compactions behind the first change, in the same commit (`valid_compactions`).

A view never separates the result of a tool from its call: providers refuse such a conversation. With a budget
of tokens, the oldest messages after the summary are left out until the rest fits. Tokens are counted with a
tokenizer if there is one, otherwise estimated, and the view says which.

**Invariant:** compactions change what a view shows, never what is stored of the messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import msgspec

from treering.core.clock import to_datetime, to_iso
from treering.core.encoding import encode
from treering.core.ids import new_id
from treering.errors import InvalidInput
from treering.runs.messages import Part, ReadMessage, message_text, read_message
from treering.runs.money import from_nanos, to_cost
from treering.runs.prices import CURRENCY, price_call
from treering.runs.span import usage_of

if TYPE_CHECKING:
    from decimal import Decimal

    from treering.core.batch import Usage

T = TypeVar("T")

View = Literal["full", "compact"]
Tokenizer = str | Callable[[str], int] | Any
"""The name of a model, a function that counts the tokens of a text, or an object with ``encode(text)``."""

_MESSAGE_TOKENS: Final = 4
"""What the frame of a message (its role, and where it begins and ends) adds to its text."""
_IMAGE_TOKENS: Final = 1600
_BYTES_PER_TOKEN: Final = 3
"""For the estimate; text in English has more, so that the estimate is rather too high than too low."""
_MAX_LEADING: Final = 16
_PAGE: Final = 200
_SUMMARY: Final = "Summary of the conversation so far:\n\n{}"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What stands for the messages before a boundary, and what it cost to make.

    ``text`` becomes a message of the user; ``messages`` are messages in the format of the conversation.
    ``tokens`` are those before and after, if whoever made it counted them; otherwise they are counted here.
    """

    text: str = ""
    messages: Sequence[Any] = ()
    model: str | None = None
    usage: Mapping[str, Any] | Usage | None = None
    cost: Decimal | float | str | None = None
    tokens: tuple[int | None, int | None] = (None, None)


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """A boundary in the messages of a thread: ``messages`` stand for those from ``keeps`` to ``upto``.

    The first ``keeps`` messages are instructions of the system, which a view always has. ``since`` is where
    the compaction before it ends, so the messages from there on are summarised here for the first time.
    ``tokens_before`` and ``tokens_after`` are those of the messages and of what stands for them.
    """

    id: str
    upto: int
    messages: list[Any]
    created_at_us: int
    keeps: int = 0
    since: int = 0
    source: str = "treering"
    """Who made it: treering, or the tool or framework that it was imported from."""
    tokens_before: int | None = None
    tokens_after: int | None = None
    is_exact: bool = False
    """Whether the tokens were counted with the tokenizer of a model; otherwise they are an estimate."""
    model: str | None = None
    usage: dict[str, int] = {}
    cost: Decimal | None = None
    currency: str | None = None

    @property
    def created_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.created_at_us)

    @property
    def text(self) -> str:
        """The summary as text."""
        return "\n\n".join(filter(None, (message_text(read_message(each)) for each in self.messages)))

    def apply(self, messages: Sequence[Any]) -> list[Any]:
        """Return the compact view of a whole conversation that has this boundary."""
        return [*messages[: self.keeps], *self.messages, *messages[self.upto :]]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, with the summary as ``text``."""
        fields = msgspec.structs.asdict(self)
        return {
            **fields,
            "created_at": to_iso(self.created_at_us),
            "text": self.text,
            "cost": None if self.cost is None else str(self.cost),
        }


class CompactView(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a model is given, and how they came about.

    ``left_out`` messages between the summary and the rest did not fit into the budget. ``tokens`` were
    counted by ``tokenizer``, if ``is_exact`` with that of a model; ``None`` if nobody asked for a number.
    """

    messages: list[Any]
    compaction: Compaction | None = None
    left_out: int = 0
    tokens: int | None = None
    tokenizer: str | None = None
    is_exact: bool = False


# Making one
def new_compaction(
    summary: Any,
    messages: Sequence[Any],
    earlier: Sequence[Compaction],
    *,
    keep_last: int | None,
    upto: int | None,
    given: Summary,
    now_us: int,
    tokenizer: Tokenizer = None,
) -> Compaction:
    """Return a boundary for a conversation that has those of ``earlier``.

    A ``summary`` that is a function is called with the messages that it is to stand for: the summary before
    it, then the messages since. ``given`` says what it cost, unless the summary says so itself.
    """
    before = earlier[-1] if earlier else None
    end = boundary(messages, keep_last=keep_last, upto=upto)
    since = 0 if before is None else before.upto
    keeps = leading_instructions(messages)
    if end < since:
        raise InvalidInput(
            f"the first {since} messages are compacted already and this boundary is at {end}; "
            "uncompact() first, or compact more"
        )
    if end <= keeps:
        raise InvalidInput(
            f"there is nothing to compact before message {end} of {len(messages)}: the first {keeps} are "
            "instructions, and a tool call stays with its results; keep fewer messages"
        )
    replaced = list(messages[keeps:end]) if before is None else [*before.messages, *messages[since:end]]
    made = _summary(_call(summary, replaced) if callable(summary) else summary)
    made = msgspec.structs.replace(
        made,
        model=made.model or given.model,
        usage=made.usage or given.usage,
        cost=given.cost if made.cost is None else made.cost,
    )
    return made_compaction(
        made, messages, keeps=keeps, since=since, end=end, now_us=now_us, tokenizer=tokenizer
    )


def compaction_of(
    made: Summary,
    messages: Sequence[Any],
    earlier: Sequence[Compaction],
    *,
    id: str,
    source: str,
    now_us: int,
    upto: int | None = None,
) -> Compaction | None:
    """Return the boundary that another tool drew through a conversation, for its first ``upto`` messages (or
    all); ``None`` if they are none.

    It gets the id that the tool gave it, so that an import can be repeated. The summary may say how many
    tokens there were before and after.
    """
    end = boundary(messages, keep_last=None, upto=len(messages) if upto is None else upto)
    keeps = leading_instructions(messages)
    if end <= keeps:
        return None
    since = min(earlier[-1].upto, end) if earlier else 0
    return made_compaction(
        made, messages, keeps=keeps, since=since, end=end, now_us=now_us, id=id, source=source
    )


def made_compaction(
    made: Summary,
    messages: Sequence[Any],
    *,
    keeps: int,
    since: int,
    end: int,
    now_us: int,
    tokenizer: Tokenizer = None,
    id: str | None = None,
    source: str = "treering",
) -> Compaction:
    """Return the boundary that lets a summary stand for the messages from ``keeps`` to ``end``."""
    stand_in = list(made.messages)
    if made.text and not stand_in:
        stand_in = [{"role": "user", "content": _SUMMARY.format(made.text)}]
    counter = TokenCounter(tokenizer)
    usage = usage_of(made.usage)
    cost = None if made.cost is None else to_cost(made.cost)
    currency = None if cost is None else CURRENCY
    if usage is not None and made.model is not None:
        cost, currency = price_call({}, made.model, usage, now_us, cost, currency)
    before, after = made.tokens
    return Compaction(
        id=id or new_id(),
        upto=end,
        messages=stand_in,
        created_at_us=now_us,
        keeps=keeps,
        since=since,
        source=source,
        tokens_before=counter.count(messages[keeps:end]) if before is None else before,
        tokens_after=counter.count(stand_in) if after is None else after,
        is_exact=counter.is_exact,
        model=made.model,
        usage={} if usage is None else _counts(usage),
        cost=None if cost is None else from_nanos(cost),
        currency=currency,
    )


def boundary(messages: Sequence[Any], *, keep_last: int | None, upto: int | None) -> int:
    """Return how many messages a compaction stands for, so that no tool call is cut off from its result."""
    count = len(messages)
    if keep_last is not None and upto is not None:
        raise InvalidInput("give keep_last= or upto=, not both")
    for name, given in (("keep_last", keep_last), ("upto", upto)):
        if given is not None and (type(given) is not int or given < 0):
            raise InvalidInput(f"{name} is {given!r}; give a number of messages, 0 or more")
    if upto is not None and upto > count:
        raise InvalidInput(f"upto is {upto}, but the thread has {count} messages")
    end = upto if upto is not None else max(count - (keep_last or 0), 0)
    read = list(map(read_message, messages))
    allowed = _allowed_cuts(read, is_whole=True)
    end = min(end, _first_unanswered(read))
    while not allowed[end]:
        end -= 1
    return end


def _first_unanswered(messages: Sequence[ReadMessage]) -> int:
    """Return where the message is whose tool calls are being made; the number of messages if none are."""
    answered: set[str | None] = set()
    for at in range(len(messages) - 1, -1, -1):
        parts = messages[at].parts
        answered.update(part.call_id for part in parts if part.kind == "tool_result")
        if messages[at].role != "tool":
            calls = [part for part in parts if part.kind == "tool_call"]
            return at if any(call.call_id not in answered for call in calls) else len(messages)
    return len(messages)


def leading_instructions(messages: Sequence[Any]) -> int:
    """Return how many messages of the system a conversation begins with."""
    count = 0
    for message in messages[:_MAX_LEADING]:
        if read_message(message).role != "system":
            break
        count += 1
    return count


def _call(summarise: Callable[[list[Any]], Any], messages: list[Any]) -> Any:
    from treering.sync_async import call  # imports asyncio, which most stores never need

    return call(summarise, messages)


def _summary(given: Any) -> Summary:
    if isinstance(given, Summary):
        made = given
    elif isinstance(given, str):
        made = Summary(text=given)
    elif isinstance(given, Mapping):
        made = Summary(messages=[given])
    elif isinstance(given, Sequence):
        made = Summary(messages=cast("Sequence[Any]", given))
    else:
        raise InvalidInput(
            f"the summary is a {type(given).__name__}; give text, a message, a list of messages or a Summary"
        )
    if not made.messages and not made.text.strip():
        raise InvalidInput("the summary is empty; give the text that stands for the messages")
    return made


def _counts(usage: Usage) -> dict[str, int]:
    return {name: count for name, count in msgspec.structs.asdict(usage).items() if count}


# Storing it
def stored_form(compaction: Compaction) -> dict[str, Any]:
    """Return a compaction as an item of its list, without what is unset."""
    unset = Compaction(id=compaction.id, upto=0, messages=[], created_at_us=0)
    fields = msgspec.structs.asdict(compaction)
    required = ("id", "upto", "messages", "created_at_us")
    return {
        name: value for name, value in fields.items() if name in required or value != getattr(unset, name)
    }


def from_stored(item: Any) -> Compaction:
    """Return the compaction that an item of the list describes; unknown fields are ignored."""
    known = Compaction.__struct_fields__
    return Compaction(**{name: value for name, value in item.items() if name in known})


def valid_compactions(items: Iterable[Any], kept: int) -> int:
    """Return how many of the compactions stand for messages among the first ``kept`` ones only."""
    count = 0
    for item in items:
        if item["upto"] > kept:
            break
        count += 1
    return count


def whole_conversation(
    items: Sequence[Any], stored: Sequence[Any], compaction: Compaction, same: Callable[[Any], object]
) -> Sequence[Any]:
    """Return the whole conversation if ``items`` are its compact view with changes at the end, else them.

    A program that loads the compact view and saves it back, with an answer behind it, would otherwise cut
    off what the summary stands for. ``same`` returns what equal messages have in common.
    """
    lead = compaction.keeps + len(compaction.messages)
    if len(items) < lead or [*map(same, items[:lead])] != [
        *map(same, stored[: compaction.keeps]),
        *map(same, compaction.messages),
    ]:
        return items
    old, new = [*map(same, stored)], [*map(same, items[lead:])]
    for start in range(compaction.upto, len(old)):  # a budget may have left out the first messages
        common = min(len(old) - start, len(new))
        if common and old[start : start + common] == new[:common]:
            return [*stored[:start], *items[lead:]]
    if len(old) > compaction.upto and new:
        raise InvalidInput(
            "the messages begin with the summary of a compaction, but those after it are not the end of this "
            "thread; append() new messages, or save the whole conversation: load(view='full')"
        )
    return [*stored, *items[lead:]]


# Counting tokens
class TokenCounter:
    """Counts the tokens of messages in any format, with the tokenizer of a model or by an estimate."""

    def __init__(self, tokenizer: Tokenizer = None) -> None:
        self._count, self.name = _text_counter(tokenizer)
        self.is_exact = self.name != "estimate"
        """Whether all counts so far are of text by a tokenizer; images are estimated."""

    def count(self, messages: Iterable[Any]) -> int:
        """Return the tokens of messages: their text, tool calls and results, and a frame for each."""
        return sum(map(self.of, messages))

    def of(self, message: Any) -> int:
        """Return the tokens of one message."""
        parts = read_message(message).parts
        return _MESSAGE_TOKENS + sum(map(self._part, parts))

    def _part(self, part: Part) -> int:
        if part.kind in ("image", "file"):
            self.is_exact = False
            return _IMAGE_TOKENS
        texts = [part.name or "", part.text, "" if part.value is None else _as_text(part.value)]
        own = sum(self._count(text) for text in texts if text)
        return own + sum(map(self._part, part.parts))


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return encode(value, keep_order=True).data.decode("utf-8", "replace")


def _text_counter(tokenizer: Tokenizer) -> tuple[Callable[[str], int], str]:
    if tokenizer is None:
        return _estimate, "estimate"
    if isinstance(tokenizer, str):
        encoding = _encoding_of(tokenizer)
        if encoding is None:
            return _estimate, "estimate"
        return (lambda text: len(encoding.encode(text, disallowed_special=()))), str(encoding.name)
    encode_text = getattr(tokenizer, "encode", None)
    name = getattr(tokenizer, "name", None) or getattr(tokenizer, "name_or_path", None)
    if callable(encode_text):
        named = name if isinstance(name, str) else type(tokenizer).__name__
        return (lambda text: len(cast("Any", encode_text(text)))), named
    if callable(tokenizer):
        counted = cast("Callable[[str], int]", tokenizer)
        return counted, getattr(tokenizer, "__name__", type(tokenizer).__name__)
    raise InvalidInput(
        f"tokenizer is a {type(tokenizer).__name__}; give the name of a model, a function that counts the "
        "tokens of a text, or an object with encode(text)"
    )


@lru_cache(maxsize=16)
def _encoding_of(model: str) -> Any:
    """Return the encoding of a model whose tokenizer is public and installed, else ``None``."""
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]

        return cast("Any", tiktoken).encoding_for_model(model)
    except Exception:  # noqa: BLE001 - not installed, an unknown model, or no network to fetch its table
        return None


def _estimate(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


# Looking through one
def compact_view(
    read: Callable[[int, int], list[Any]],
    count: int,
    compaction: Compaction | None,
    *,
    budget_tokens: int | None = None,
    tokenizer: Tokenizer = None,
) -> CompactView:
    """Return what a model is given of ``count`` messages, of which ``read`` returns any range.

    Without a compaction that is the whole conversation, or the end of it that fits into the budget. Raises
    `InvalidInput` if the budget is too small for the summary and the newest message.
    """
    if budget_tokens is not None and (type(budget_tokens) is not int or budget_tokens < 1):
        raise InvalidInput(f"budget_tokens is {budget_tokens!r}; give a number of tokens")
    counter = None if budget_tokens is None and tokenizer is None else TokenCounter(tokenizer)
    if compaction is None:
        start = leading_instructions(read(0, min(count, _MAX_LEADING)))
        lead = read(0, start)
    else:
        start = compaction.upto
        lead = [*read(0, compaction.keeps), *compaction.messages]
    if budget_tokens is None or counter is None:
        left_out, tail = 0, read(start, count)
    else:
        left_out, tail = _fitting(read, start, count, budget_tokens - counter.count(lead), counter)
        if left_out < 0:
            raise _too_small(budget_tokens, lead, read(count - 1, count) if count > start else [], counter)
    messages = [*lead, *tail]
    return CompactView(
        messages=messages,
        compaction=compaction,
        left_out=left_out,
        tokens=None if counter is None else counter.count(messages),
        tokenizer=None if counter is None else counter.name,
        is_exact=counter is not None and counter.is_exact,
    )


def _fitting(
    read: Callable[[int, int], list[Any]], start: int, stop: int, budget: int, counter: TokenCounter
) -> tuple[int, list[Any]]:
    """Return how many messages from ``start`` on do not fit, and the others; -1 if the newest does not."""
    if start == stop:
        return (0, []) if budget >= 0 else (-1, [])
    found: list[Any] = []
    first = stop
    while first > start and budget >= 0:
        page = read(max(first - _PAGE, start), first)
        for message in reversed(page):
            budget -= counter.of(message)
            if budget < 0:
                break
            found.append(message)
        first -= len(page)
    found.reverse()
    first = stop - len(found)
    allowed = _allowed_cuts(list(map(read_message, found)), is_whole=first == start)
    cut = next((each for each in range(len(found)) if allowed[each]), len(found))
    return (-1, []) if cut == len(found) else (first - start + cut, found[cut:])


def _allowed_cuts(messages: Sequence[ReadMessage], *, is_whole: bool) -> list[bool]:
    """Return for each position (and the end) whether the conversation may begin there.

    It may not begin between a call and its result. Unless these are all messages, a result without its call
    belongs to one before them.
    """
    count = len(messages)
    allowed = [True] * (count + 1)
    calls: dict[str, int] = {}
    for at, message in enumerate(messages):
        for part in message.parts:
            if part.kind == "tool_call" and part.call_id is not None:
                calls.setdefault(part.call_id, at)
        for part in message.parts:
            if part.kind != "tool_result":
                continue
            called = at - 1 if part.call_id is None else calls.get(part.call_id, at if is_whole else -1)
            for between in range(max(called + 1, 0), at + 1):
                allowed[between] = False
    if is_whole:
        allowed[0] = True
    return allowed


def _too_small(budget: int, lead: list[Any], newest: list[Any], counter: TokenCounter) -> InvalidInput:
    needs = f"the summary and instructions take {counter.count(lead)}" if lead else ""
    last = f"the newest message (with the call that it answers) needs {counter.count(newest)}"
    both = " and ".join(filter(None, (needs, last if newest else "")))
    return InvalidInput(f"budget_tokens={budget} is too small: {both}; raise it, or compact the thread")
