"""Compare reruns with the run that they were made from: first divergence, messages, files, cost and time.

Calls are compared by what they mean: the roles and parts of the messages, the names and arguments of tool
calls, the texts of answers. Ids that a provider makes up, and the order of parallel calls, make no
difference. **Invariant:** everything is computed from what is stored, so a comparison can be made again at
any time, and the original is compared by the same rules as its reruns.

Tokens, cost and time are those from the step on at which the reruns went on for real, since nobody paid for
the steps before it a second time.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.batch import Usage
from treering.core.encoding import encode_json
from treering.errors import InvalidInput, NotFound
from treering.replays import wire
from treering.replays.capture import COMMAND, END, START
from treering.runs.exchanges import Exchange, read_exchanges
from treering.runs.messages import Part, ReadMessage, message_text, read_message
from treering.runs.money import from_nanos
from treering.runs.prices import prices
from treering.runs.span import usage_of

if TYPE_CHECKING:
    from treering.runs.run import RunInfo
    from treering.store import Store

RERUN: Final = "rerun"
"""In a rerun's metadata: of which run, from which step, as which variant."""
TAG: Final = "rerun:"
"""A rerun has this tag, with the id of its original."""
PROGRAM_NOISE: Final = r"(?<=Chunk ID: )\w+|(?<=Wall time: )[\d.]+(?= seconds)"
"""What Codex writes about each command that it has run."""


class Variant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rerun changes: model, system prompt, parameters of requests."""

    model: str | None = None
    prompt: str | None = None
    parameters: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """A short name for it."""
        parts = [self.model] if self.model else []
        if self.prompt is not None:
            words = " ".join(self.prompt.split())
            parts.append(f"prompt {words[:24]!r}")
        parts += [f"{name}={msgspec.json.encode(value).decode()}" for name, value in self.parameters.items()]
        return ", ".join(parts) or "unchanged"


class RerunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata of a rerun says: its original, the first real step, and what it changed."""

    of: str
    group: str
    from_step: int
    variant: Variant = Variant()
    repetition: int = 1
    folder: str | None = None
    verify: VerifyResult | None = None
    verify_original: VerifyResult | None = None
    """What the same command says about the files of the original."""


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a command said about the files of a run."""

    command: str
    exit_code: int
    output: str
    """The end of what it printed."""

    @property
    def is_ok(self) -> bool:
        """Whether it succeeded."""
        return self.exit_code == 0


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of the original that a run did not make."""

    step: int
    """One more than the original has, or that of the run, if the run made all of them and others."""
    what: str
    """``asked``: it asked for something else; ``answered``: it got another answer; ``ended``: it ended."""
    name: str
    original: str
    """What the original asked or was answered there, shortened."""
    here: str


class FileDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A file that differs from the one that the original left."""

    path: str
    change: str
    text: str | None = None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The original, or one rerun, in figures. Tokens, cost and time are those from ``from_step`` on."""

    run: str
    thread: str | None
    variant: str
    repetition: int
    status: str
    error: str | None
    steps: int
    departure: Departure | None
    messages: int
    common_messages: int
    """How many of them, from the beginning, are the same as in the original."""
    files: tuple[FileDifference, ...]
    verify: VerifyResult | None
    usage: Usage
    tokens: int
    cost: float | None
    """US dollars; ``None`` if a model has no known price."""
    took_us: int
    final: str
    """The last answer of its model."""
    folder: str | None = None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over the repetitions of a variant."""

    mean: float
    deviation: float
    """Standard deviation; 0 for a single value."""
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Return the spread of some values; ``None`` if there are none."""
        found = list(values)
        if not found:
            return None
        deviation = statistics.stdev(found) if len(found) > 1 else 0.0
        return cls(mean=statistics.fmean(found), deviation=deviation, least=min(found), most=max(found))


class VariantSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All repetitions of a variant."""

    variant: str
    runs: int
    ok: int
    """How many ended well."""
    verified: int | None
    """How many passed verification; ``None`` if there was none."""
    first_departure: int | None
    """The earliest step at which one departed from the original."""
    tokens: Spread | None
    cost: Spread | None
    seconds: Spread | None
    messages: Spread | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its reruns."""

    run: str
    group: str
    from_step: int
    original: Compared
    reruns: tuple[Compared, ...]
    variants: tuple[VariantSummary, ...]


# Reading


def rerun_info(info: RunInfo) -> RerunInfo | None:
    """Return what a run says about being a rerun; ``None`` if it is none."""
    found = info.meta.get(RERUN)
    return None if found is None else msgspec.convert(found, RerunInfo)


def list_reruns(store: Store, run_id: str) -> list[tuple[RunInfo, RerunInfo]]:
    """Return the reruns of a run, newest first."""
    original = store.runs.load(run_id)
    runs = store.runs.in_namespace(original.namespace).each(tag=TAG + original.id)
    return [(each, found) for each in runs if (found := rerun_info(each)) is not None]


def compare_reruns(store: Store, run_id: str, *, group: str | None = None) -> Comparison:
    """Compare a run with its reruns: those of one ``group`` (one call of `rerun`), or the newest group.

    Raises:
        NotFound: It has no reruns.
    """
    original = store.runs.load(run_id)
    found = list_reruns(store, original.id)
    if not found:
        raise NotFound(f"run {original.id!r} has no reruns; make one with: treering rerun {original.id}")
    chosen = group or found[0][1].group
    wanted = [each for each in found if each[1].group == chosen]
    if not wanted:
        raise NotFound(
            f"run {original.id!r} has no group of reruns {chosen!r}; "
            f"it has: {', '.join(sorted({each.group for _, each in found}))}"
        )
    wanted.sort(key=lambda each: (each[0].started_at_us, each[0].id))
    from_step = wanted[0][1].from_step
    exchanges = read_exchanges(store.engine, store.space, original.id)
    first = _describe(
        store, original, exchanges, exchanges, from_step=from_step, original=original, found=None
    )
    reruns = [
        _describe(
            store,
            info,
            read_exchanges(store.engine, store.space, info.id),
            exchanges,
            from_step=from_step,
            original=original,
            found=about,
        )
        for info, about in wanted
    ]
    first = msgspec.structs.replace(first, verify=wanted[0][1].verify_original)
    return Comparison(
        run=original.id,
        group=chosen,
        from_step=from_step,
        original=first,
        reruns=tuple(reruns),
        variants=tuple(_summaries(reruns)),
    )


def _describe(
    store: Store,
    info: RunInfo,
    exchanges: Sequence[Exchange],
    recorded: Sequence[Exchange],
    *,
    from_step: int,
    original: RunInfo,
    found: RerunInfo | None,
) -> Compared:
    replace = _comparable(original)
    if replace is not None:
        recorded, exchanges = (
            [wire.rewrite_exchange(each, replace) for each in some] for some in (recorded, exchanges)
        )
    later = [
        each for each in exchanges if (each.step >= from_step if found is None else not each.is_replayed)
    ]
    usage, cost = usage_and_cost(later)
    began_us = later[0].started_at_us if later else None
    ended_us = info.meta.get(END, {}).get("at_us") or info.ended_at_us
    error = info.meta.get("error")
    messages, before = conversation(exchanges), conversation(recorded)
    common = 0
    moved = {} if found is None else _moved_folders(original, info)
    for one, other in zip(messages, before, strict=False):
        if _as_original(encode_json(meaning_of_message(one)), moved) != encode_json(
            meaning_of_message(other)
        ):
            break
        common += 1
    return Compared(
        run=info.id,
        thread=info.thread,
        variant="original" if found is None else found.variant.label,
        repetition=1 if found is None else found.repetition,
        status=info.status,
        error=None if error is None else f"{error.get('type', '')}: {error.get('message', '')}",
        steps=len(exchanges),
        departure=None
        if found is None
        else departure_of(recorded, exchanges, found.variant, moved, from_step=from_step),
        messages=len(messages),
        common_messages=common,
        files=() if found is None else tuple(_file_differences(store, original, info)),
        verify=None if found is None else found.verify,
        usage=usage,
        tokens=usage.total,
        cost=cost,
        took_us=0 if began_us is None or ended_us is None else max(ended_us - began_us, 0),
        final=message_text(messages[-1]) if messages else "",
        folder=None if found is None else found.folder,
    )


def _file_differences(store: Store, original: RunInfo, info: RunInfo) -> Iterable[FileDifference]:
    before, after = (end_snapshot(each) for each in (original, info))
    if before is None and after is None:
        return ()
    changes = store.workspace.diff(before, after)
    return [FileDifference(path=each.path, change=each.change, text=each.text) for each in changes]


def end_snapshot(info: RunInfo) -> str | None:
    """Return the files that a run left, if it was recorded with a folder."""
    return info.meta.get(END, {}).get("snapshot") or info.meta.get(START, {}).get("snapshot")


def _summaries(reruns: Sequence[Compared]) -> Iterable[VariantSummary]:
    by_variant: dict[str, list[Compared]] = {}
    for each in reruns:
        by_variant.setdefault(each.variant, []).append(each)
    for variant, members in by_variant.items():
        verified = [each.verify for each in members if each.verify is not None]
        departures = [each.departure.step for each in members if each.departure is not None]
        yield VariantSummary(
            variant=variant,
            runs=len(members),
            ok=sum(each.status == "ok" for each in members),
            verified=sum(each.is_ok for each in verified) if verified else None,
            first_departure=min(departures, default=None),
            tokens=Spread.of(each.tokens for each in members),
            cost=Spread.of(each.cost for each in members if each.cost is not None),
            seconds=Spread.of(each.took_us / 1e6 for each in members),
            messages=Spread.of(each.messages for each in members),
        )


# What calls mean


def usage_and_cost(exchanges: Iterable[Exchange]) -> tuple[Usage, float | None]:
    """Return the tokens of some calls, and what they cost in US dollars; ``None`` if a price is unknown."""
    total: dict[str, int] = {}
    nanos, is_priced = 0, True
    for each in exchanges:
        usage, model = _usage(each)
        if usage is None or not usage.total:
            continue
        for name in usage.__struct_fields__:
            total[name] = total.get(name, 0) + getattr(usage, name)
        priced = None if model is None else prices.price(model, usage, each.started_at_us)
        if priced is None:
            is_priced = False
        else:
            nanos += priced.nanos
    return Usage(**total), float(from_nanos(nanos)) if is_priced else None


def _usage(exchange: Exchange) -> tuple[Usage | None, str | None]:
    given: Any = None
    model = exchange.model
    if exchange.kind == "http":
        reply = wire.read_reply(exchange.path, exchange.answer)
        if reply is not None:
            given, model = reply.usage, reply.model or model
    elif exchange.kind == "model":
        message = reply_of(exchange)
        if isinstance(message, Mapping):
            fields = cast("Mapping[str, Any]", message)
            given, model = fields.get("usage"), fields.get("model") or model
    try:
        return usage_of(given), model
    except InvalidInput:
        return None, model


def reply_of(exchange: Exchange) -> Any:
    """Return what a model said, as a message or a list of messages; ``None`` if that is not understood."""
    if exchange.kind == "http":
        reply = wire.read_reply(exchange.path, exchange.answer)
        return None if reply is None else reply.message
    answer: Any = exchange.answer
    if isinstance(answer, Mapping) and "pieces" in answer and "role" not in answer:
        pieces = cast("list[Any]", answer["pieces"])
        if all(isinstance(each, str) for each in pieces):
            return {"role": "assistant", "content": "".join(pieces)}
        return pieces[-1] if pieces else None
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    return cast("Any", answer)


def messages_of(exchange: Exchange) -> list[Any]:
    """Return the messages that a model was given."""
    if exchange.kind == "http":
        return wire.messages_of(exchange.path, exchange.body)
    given: Any = exchange.request.get("messages")
    return cast("list[Any]", given) if isinstance(given, list) else []


def conversation(exchanges: Sequence[Exchange]) -> list[ReadMessage]:
    """Return the messages of a run: what its model was last given, and what it answered."""
    last = next((each for each in reversed(exchanges) if _is_asked_model(each)), None)
    if last is None:
        return []
    reply = reply_of(last)
    answered: list[Any] = cast("list[Any]", reply) if isinstance(reply, list) else [reply]
    return [read_message(each) for each in (*messages_of(last), *answered) if each is not None]


def _is_asked_model(exchange: Exchange) -> bool:
    return exchange.kind == "model" or (exchange.kind == "http" and wire.format_of(exchange.path) is not None)


def meaning_of_message(message: ReadMessage) -> Any:
    """Return what of a message counts: its role and parts, without ids."""
    role = "assistant" if message.role in ("assistant", "model", "ai") else message.role
    return [role, [_meaning_of_part(each) for each in message.parts]]


def _meaning_of_part(part: Part) -> Any:
    given: Any = part.value
    if part.kind == "data" and isinstance(given, Mapping):
        fields = cast("Mapping[str, Any]", given)
        value = {name: each for name, each in fields.items() if name != "id"}
        return [part.kind, value]
    return [
        part.kind,
        part.text,
        part.name,
        part.value,
        part.is_error,
        [_meaning_of_part(e) for e in part.parts],
    ]


def asked_of(exchange: Exchange, variant: Variant | None = None) -> bytes:
    """Return what a call asks for, without ids, and without what a variant replaces."""
    if exchange.kind == "tool":
        return encode_json(["tool", exchange.name, exchange.request.get("arguments")])
    if not _is_asked_model(exchange):
        return encode_json([exchange.kind, exchange.name, exchange.body])
    messages = [meaning_of_message(read_message(each)) for each in messages_of(exchange)]
    if variant is not None and variant.prompt is not None:
        messages = [each for each in messages if each[0] not in ("system", "developer")]
    body: Any = exchange.body if exchange.kind == "http" else exchange.request
    tools: Any = cast("Mapping[str, Any]", body).get("tools") if isinstance(body, Mapping) else None
    return encode_json(["model", messages, tools])


def answered_of(exchange: Exchange) -> bytes:
    """Return what a call was answered, without ids."""
    if exchange.error is not None:
        return encode_json(["error", exchange.error.type, exchange.error.message])
    if _is_asked_model(exchange) and (reply := reply_of(exchange)) is not None:
        items = cast("list[Any]", reply) if isinstance(reply, list) else [reply]
        return encode_json([meaning_of_message(read_message(each)) for each in items])
    return encode_json([exchange.status, exchange.answer])


def departure_of(
    recorded: Sequence[Exchange],
    exchanges: Sequence[Exchange],
    variant: Variant | None = None,
    moved: Mapping[str, str] | None = None,
    *,
    from_step: int = 1,
) -> Departure | None:
    """Return where a run first differs from the original; ``None`` if it never does.

    That is the first step of the original which is not among the run's: asked for and answered the same. So
    parallel calls may come in any order. ``moved`` are the folders of the run, and those of the original in
    their place; ``from_step`` is where it went on for real.
    """
    moved = moved or {}
    unused: dict[bytes, list[Exchange]] = {}
    for each in recorded:
        unused.setdefault(asked_of(each, variant), []).append(each)
    others: list[tuple[Exchange, bytes]] = []
    for each in exchanges:
        asked, answer = _as_original(asked_of(each, variant), moved), _as_original(answered_of(each), moved)
        same = unused.get(asked, [])
        found = next((one for one in same if answered_of(one) == answer), None)
        if found is None:
            others.append((each, asked))
        else:
            same.remove(found)
    left = min((one for some in unused.values() for one in some), key=lambda one: one.step, default=None)
    if left is None and not others:
        return None
    if left is None:
        more = others[0][0]
        return Departure(
            step=max(more.step, from_step),
            what="asked",
            name=more.name,
            original="",
            here=shown_request(more),
        )
    asked_for = asked_of(left, variant)
    answered = next((each for each, asked in others if asked == asked_for), None)
    if answered is not None:
        return Departure(
            step=left.step,
            what="answered",
            name=left.name,
            original=shown_answer(left),
            here=shown_answer(answered),
        )
    if others:
        here = next((each for each, _ in others if each.kind == left.kind), others[0][0])
        return Departure(
            step=left.step,
            what="asked",
            name=here.name,
            original=shown_request(left),
            here=shown_request(here),
        )
    return Departure(step=left.step, what="ended", name=left.name, original=shown_request(left), here="")


def _comparable(original: RunInfo) -> Callable[[str], str] | None:
    """Return what makes texts comparable: relative names are made whole, a program's noise is taken out."""
    if original.meta.get(START, {}).get("entry") == COMMAND:
        return lambda text: re.sub(PROGRAM_NOISE, "…", text)
    names = relative_names(original)
    return wire.replacer(names) if names else None


def relative_names(original: RunInfo) -> dict[str, str]:
    """Return the name of a run's folder from where its agent ran, if that was above it, and the whole one."""
    start: dict[str, str] = original.meta.get(START, {})
    return {start["relative"]: start["workspace"]} if "relative" in start else {}


def _moved_folders(original: RunInfo, info: RunInfo) -> dict[str, str]:
    before: dict[str, str] = original.meta.get(START, {})
    after: dict[str, str] = info.meta.get(START, {})
    return {after[name]: before[name] for name in ("workspace", "home") if name in before and name in after}


def _as_original(encoded: bytes, moved: Mapping[str, str]) -> bytes:
    return wire.replacer(moved)(encoded.decode()).encode() if moved else encoded


def shown_request(exchange: Exchange) -> str:
    """Return what was asked on one line: the call of a tool, or the last message to a model."""
    if exchange.kind == "tool":
        return _short(f"{exchange.name}({encode_json(exchange.request.get('arguments')).decode()})")
    messages = messages_of(exchange)
    return _short(message_text(read_message(messages[-1]))) if messages else _short(exchange.name)


def shown_answer(exchange: Exchange) -> str:
    """Return what was answered on one line."""
    if exchange.error is not None:
        return _short(f"{exchange.error.type}: {exchange.error.message}")
    reply = reply_of(exchange) if _is_asked_model(exchange) else None
    if reply is None:
        return _short(exchange.text)
    items = cast("list[Any]", reply) if isinstance(reply, list) else [reply]
    return _short(" ".join(message_text(read_message(each)) for each in items))


def _short(text: str, limit: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
