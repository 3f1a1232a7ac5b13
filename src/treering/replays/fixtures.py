"""Recorded tests: a run as a file that is kept beside the code, reviewed with it, and replayed by tests.

    treering test add last --name refund          # writes tests/recordings/refund.jsonl

The file has everything that a replay needs, so that no store is needed. Its first line says what was run;
then follow the files, messages and memories that the run began with, and a line for each step: the request,
the answer, and which files it changed. A request repeats the whole conversation, so its lists and long texts
continue those of an earlier step: ``"after": {"messages": [3, 5]}`` says that the first five messages are
those of step 3, and what follows is new.

**Invariant:** what is written holds no secret that `treering.secret_scan` finds, and no path of the machine:
the folder that the agent worked in is ``/treering/workspace``. What a test asks is cleaned in the same way
before it is compared (`Cleaner`), so both are equal although neither is as it was.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.clock import from_datetime, to_datetime, to_iso
from treering.core.encoding import decode_json, encode, encode_json
from treering.errors import Conflict, InvalidInput, NotFound, TreeringError
from treering.replays import wire
from treering.replays.capture import START
from treering.replays.comparison import conversation, reply_of
from treering.replays.replay import EXACT, Tolerance, load_exchanges
from treering.runs.exchanges import CallError, Exchange, Piece, read_draws
from treering.runs.messages import message_text, read_message
from treering.secret_scan import FoundSecret, SecretScrubber, refuse_secrets, scan_secrets

if TYPE_CHECKING:
    from treering.runs.run import RunInfo
    from treering.store import Store

WORKSPACE: Final = "/treering/workspace"
"""What a recording calls the folder that its agent works in."""
HOME: Final = "/treering/home"
"""What it calls the home of a recorded command."""
FOLDER: Final = "recordings"
"""The folder of recordings, in that of the tests."""
SUFFIX: Final = ".jsonl"
_KIND: Final = "recorded test"
_VERSION: Final = 1
_FILE_MODE: Final = 0o644
_LONG_TEXT: Final = 256
_EARLIER: Final = 8
_SHOWN: Final = 160
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SKIPPED: Final = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist"})


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file, link or empty folder of a recording."""

    text: str | None = None
    base64: str | None = None
    link: str | None = None
    is_folder: bool = False
    mode: str = ""
    """In octal, if it is not the usual one."""

    @classmethod
    def of(cls, data: bytes, mode: int) -> StoredFile:
        """Return a file with some content, as text if it is one."""
        octal = "" if mode == _FILE_MODE else f"{mode:o}"
        try:
            return cls(text=data.decode(), mode=octal)
        except UnicodeDecodeError:
            return cls(base64=b64encode(data).decode(), mode=octal)

    def write(self, path: Path, *, moved: Mapping[str, str]) -> None:
        """Make a path what this says."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.is_file():
            path.unlink()
        if self.is_folder:
            path.mkdir(exist_ok=True)
        elif self.link is not None:
            path.symlink_to(self.link)
        else:
            text = None if self.text is None else wire.replacer(moved)(self.text)
            path.write_bytes(b64decode(self.base64 or "") if text is None else text.encode())
        if self.mode:
            path.chmod(int(self.mode, 8))


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """A document that the agent knew when the run began."""

    namespace: str
    id: str
    content: str
    metadata: dict[str, Any] = {}


class RecordedTest(msgspec.Struct, frozen=True, kw_only=True):
    """A recording, as it is in its file."""

    name: str
    run: str
    agent: str | None
    recorded_at_us: int
    entry: str | None
    arguments: Any
    steps: tuple[Exchange, ...]
    changes: dict[int, dict[str, StoredFile | None]]
    """The files that each step changed or (``None``) removed."""
    files: dict[str, StoredFile] | None
    """The files that the run began with; ``None`` if it had no folder."""
    cwd: str | None = None
    """Where in its folder the agent ran, if it did."""
    relative: str | None = None
    """The name that its folder had from where the agent ran, if that was above it."""
    thread: tuple[str, str] | None = None
    """Namespace and id of the thread."""
    messages: list[Any] = []
    """Those of the thread when the run began."""
    state: dict[str, Any] = {}
    memory: tuple[Memory, ...] = ()
    draws: dict[str, list[Any]] = {}
    """What the clock, randomness and ids gave after the last step."""
    tolerance: Tolerance = EXACT
    final: str = ""
    path: Path | None = None
    size: int = 0
    secrets: tuple[str, ...] = ()
    """The rules that found the secrets which were taken out when it was written."""

    @property
    def recorded_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.recorded_at_us)

    @property
    def tools(self) -> list[str]:
        """The names of the tools that were called, in order."""
        return [each.name for each in self.steps if each.kind == "tool"]

    @property
    def models(self) -> list[str]:
        """The models that were asked."""
        return list(dict.fromkeys(each.model for each in self.steps if each.model))


class Cleaner:
    """Takes secrets and the machine's own paths out of values."""

    def __init__(self, moved: Mapping[str, str]) -> None:
        self._replace = wire.replacer(moved)
        self.scrubber = SecretScrubber()

    def text(self, text: str) -> str:
        """Return a text as it is in a recording."""
        data = self._replace(text).encode("utf-8", "surrogatepass")
        return self.scrubber.scrub(data).decode("utf-8", "surrogatepass")

    def value(self, value: Any) -> Any:
        """Return a value as it is in a recording; a name beside a secret may be what tells it."""
        value = wire.translate(value, self._replace)
        data = encode_json(value)
        scrubbed = self.scrubber.scrub(data)
        return value if scrubbed == data else decode_json(scrubbed)

    def answer(self, exchange: Exchange) -> Any:
        """Return the answer of a call as it is in a recording."""
        if isinstance(exchange.answer, str) and exchange.kind == "http":
            return wire.translate_answer(exchange.answer, self.text)
        return self.value(exchange.answer)

    def exchange(self, exchange: Exchange, *, at_us: int) -> Exchange:
        """Return a call as it is in a recording."""
        answer, error = self.answer(exchange), exchange.error
        request = {name: each for name, each in exchange.request.items() if name != "headers"}
        return Exchange(
            kind=exchange.kind,
            name=exchange.name,
            request=self.value(request),
            answer=answer,
            status=exchange.status,
            headers=exchange.headers,
            pieces=exchange.pieces if answer == exchange.answer else (),
            error=None if error is None else CallError(error.type, self.text(error.message)),
            started_at_us=at_us,
            model=exchange.model,
            is_cut=exchange.is_cut,
            draws=self.value(exchange.draws),
            id=str(exchange.step),
            step=exchange.step,
        )

    def file(self, file: StoredFile) -> StoredFile:
        """Return a file as it is in a recording."""
        return file if file.text is None else msgspec.structs.replace(file, text=self.text(file.text))


# From a store


def record_test(
    store: Store,
    run: str,
    name: str,
    *,
    memory: Sequence[str] = (),
    tolerance: Tolerance = EXACT,
    entry: str | None = None,
) -> RecordedTest:
    """Return a run of a store as a recorded test; `write_test` writes it.

    Args:
        memory: namespaces of memory whose documents, as of the beginning of the run, belong to it.
        tolerance: what may differ between a call and its recording.
        entry: what the test runs, if the run was recorded without it.
    """
    _checked_name(name)
    store.flush()
    info = store.runs.load(run)
    exchanges = load_exchanges(store, info.id)
    start = _start_of(info)
    places = {"workspace": WORKSPACE, "relative": WORKSPACE, "home": HOME}
    moved = {start[key]: place for key, place in places.items() if start.get(key)}
    cleaner = Cleaner(moved)
    files, changes = _files_of(store, info, exchanges)
    messages, state = _thread_of(store, info)
    documents = tuple(_memory_of(store, memory, info.started_at_us))

    def build() -> RecordedTest:
        at_us = info.started_at_us
        rest = read_draws(store.engine, store.space, info.id)
        return RecordedTest(
            name=name,
            run=info.id,
            agent=info.agent,
            recorded_at_us=at_us,
            entry=_portable_entry(entry or start.get("entry")),
            arguments=cleaner.value(start.get("arguments", [])),
            steps=tuple(cleaner.exchange(each, at_us=at_us) for each in exchanges),
            changes={
                step: {path: each and cleaner.file(each) for path, each in found.items()}
                for step, found in changes.items()
            },
            files=None if files is None else {path: cleaner.file(each) for path, each in files.items()},
            cwd=start.get("cwd"),
            relative=start.get("relative"),
            thread=None if info.thread is None else (info.namespace, info.thread),
            messages=cleaner.value(messages),
            state=cleaner.value(state),
            memory=tuple(
                msgspec.structs.replace(
                    each, content=cleaner.text(each.content), metadata=cleaner.value(each.metadata)
                )
                for each in documents
            ),
            draws={key: values for each in rest for key, values in cleaner.value(each).items()},
            tolerance=tolerance,
            final=_final(exchanges, cleaner),
            secrets=tuple(cleaner.scrubber.rules.values()),
        )

    build()  # finds the secrets; a name beside one may tell it in one place, and be missing in another
    return build()


def _start_of(info: RunInfo) -> dict[str, Any]:
    return cast("dict[str, Any]", info.meta.get(START) or {})


def _final(exchanges: Sequence[Exchange], cleaner: Cleaner) -> str:
    messages = conversation(exchanges)
    return cleaner.text(message_text(messages[-1])) if messages else ""


def _portable_entry(entry: str | None) -> str | None:
    """Return an entry as another machine finds it; ``None`` if it cannot."""
    if entry is None or not Path(entry).is_absolute():
        return entry
    here = Path.cwd()
    return str(Path(entry).relative_to(here)) if Path(entry).is_relative_to(here) else None


def _files_of(
    store: Store, info: RunInfo, exchanges: Sequence[Exchange]
) -> tuple[dict[str, StoredFile] | None, dict[int, dict[str, StoredFile | None]]]:
    """Return the files that a run began with, and what each step changed."""
    start = _start_of(info).get("snapshot")
    if start is None:
        return None, {}
    changes: dict[int, dict[str, StoredFile | None]] = {}
    done = sorted(
        (each for each in exchanges if each.snapshot is not None),
        key=lambda each: each.started_at_us + each.duration_us,
    )
    before = start
    for each in done:
        found = _changes(store, before, each.snapshot)
        if found:
            changes[each.step] = found
        before = each.snapshot
    return {path: file for path, file in _changes(store, None, start).items() if file is not None}, changes


def _changes(store: Store, before: str | None, after: str | None) -> dict[str, StoredFile | None]:
    found: dict[str, StoredFile | None] = {}
    for change in store.workspace.changes(before, after, text=False):
        entry = change.after
        if entry is None or after is None:
            found[change.path] = None
        elif entry.kind == "folder":
            found[change.path] = StoredFile(is_folder=True)
        elif entry.kind == "link":
            found[change.path] = StoredFile(link=entry.target)
        else:
            found[change.path] = StoredFile.of(store.workspace.cat(after, change.path), entry.mode)
    return found


def _thread_of(store: Store, info: RunInfo) -> tuple[list[Any], dict[str, Any]]:
    checkpoint = _start_of(info).get("checkpoint")
    if info.thread is None or checkpoint is None:
        return [], {}
    found = store.thread(info.thread, info.namespace).at(checkpoint)
    return list(found.messages), dict(found.state or {})


def _memory_of(store: Store, namespaces: Sequence[str], at_us: int) -> Iterator[Memory]:
    from treering.replays.fork import memory_as_of

    for namespace in namespaces:
        found = memory_as_of(store, namespace, at_us)
        if not found:
            raise NotFound(
                f"memory namespace {namespace!r} had no documents when the run began; list them with: "
                "treering memory list"
            )
        for document in found.values():
            metadata = {key: each for key, each in document.metadata.items() if not key.endswith("_at")}
            yield Memory(namespace=namespace, id=document.id, content=document.content, metadata=metadata)


def empty_test(name: str) -> RecordedTest:
    """Return a recorded test without steps, for an agent that is to be recorded for the first time."""
    return RecordedTest(
        name=_checked_name(name),
        run="",
        agent=None,
        recorded_at_us=0,
        entry=None,
        arguments=[],
        steps=(),
        changes={},
        files={},
    )


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"name {name!r} is invalid; use letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return name


# The file


def write_test(test: RecordedTest, folder: Path, *, replace: bool = False) -> RecordedTest:
    """Write a recorded test into a folder; return it with its path and size.

    Raises:
        Conflict: There is one of this name already, and ``replace`` is not set.
        SecretsFound: A secret would be left in it. Nothing was written.
    """
    path = folder / f"{test.name}{SUFFIX}"
    if path.exists() and not replace:
        raise Conflict(f"{path} exists; choose another --name, or replace it with --force")
    data = b"".join(encode(line, keep_order=True).data + b"\n" for line in _lines(test))
    left = (
        FoundSecret(path=path.name, rule=each.rule, line=each.line, hint=each.hint)
        for each in scan_secrets(data)
    )
    refuse_secrets(left, what=f"{path} was not written")
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{test.name}{SUFFIX}.new"
    draft.write_bytes(data)
    draft.replace(path)
    return msgspec.structs.replace(test, path=path, size=len(data))


def _lines(test: RecordedTest) -> Iterator[dict[str, Any]]:
    yield _without_empty(
        {
            "treering": _KIND,
            "version": _VERSION,
            "name": test.name,
            "agent": test.agent,
            "run": test.run,
            "recorded_at": to_iso(test.recorded_at_us),
            "entry": test.entry,
            "arguments": test.arguments,
            "thread": None if test.thread is None else list(test.thread),
            "has_files": test.files is not None,
            "cwd": test.cwd,
            "relative": test.relative,
            "ignore": list(test.tolerance.ignore),
            "mask": list(test.tolerance.mask),
            "models": test.models,
            "tools": test.tools,
            "final": test.final,
            "state": test.state,
            "draws": test.draws,
        }
    )
    for path, file in (test.files or {}).items():
        yield {"file": path, **msgspec.to_builtins(file)}
    for message in test.messages:
        yield {"message": message}
    for each in test.memory:
        yield {
            "memory": each.id,
            "namespace": each.namespace,
            "content": each.content,
            "metadata": each.metadata,
        }
    earlier: dict[str, list[tuple[int, Any]]] = {}
    for each in test.steps:
        yield _step_to_json(each, test.changes.get(each.step, {}), earlier)


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in fields.items() if each not in (None, [], {}, "", False)}


def _step_to_json(
    exchange: Exchange,
    changes: Mapping[str, StoredFile | None],
    earlier: dict[str, list[tuple[int, Any]]],
) -> dict[str, Any]:
    request, after = _shortened(exchange, earlier)
    line = _without_empty(
        {
            "step": exchange.step,
            "kind": exchange.kind,
            "name": exchange.name,
            "model": exchange.model,
            "reply": _reply_text(exchange),
            "after": after,
        }
    )
    line["request"] = request
    line |= _without_empty(
        {
            "status": exchange.status,
            "headers": exchange.headers,
            "error": None if exchange.error is None else msgspec.to_builtins(exchange.error),
            "cut": exchange.is_cut,
            "pieces": [each.length for each in exchange.pieces],
            "draws": exchange.draws,
            "files": {
                path: None if each is None else msgspec.to_builtins(each) for path, each in changes.items()
            },
        }
    )
    if exchange.answer is not None:
        line["answer"] = exchange.answer
    return line


def _reply_text(exchange: Exchange) -> str:
    """Say for a reader of the file what a model answered."""
    if exchange.kind == "tool" or exchange.error is not None:
        return ""
    reply = reply_of(exchange)
    items = cast("list[Any]", reply) if isinstance(reply, list) else [reply]
    text = " ".join(" ".join(message_text(read_message(each)).split()) for each in items if each is not None)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _holder(request: dict[str, Any]) -> dict[str, Any]:
    body = request.get("body")
    return cast("dict[str, Any]", body) if isinstance(body, dict) else request


def _shortened(
    exchange: Exchange, earlier: dict[str, list[tuple[int, Any]]]
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Return a request without what earlier ones have, and where that is: step, and number of items."""
    if exchange.kind == "tool":
        return exchange.request, {}
    holder = _holder(exchange.request)
    rest: dict[str, Any] = dict(holder)
    after: dict[str, list[int]] = {}
    for key, value in holder.items():
        if not isinstance(value, list) and not (isinstance(value, str) and len(value) >= _LONG_TEXT):
            continue
        given = cast("list[Any] | str", value)
        known = earlier.setdefault(key, [])
        step, common = _longest(known, given)
        if common:
            after[key] = [step, common]
            rest[key] = given[common:] if isinstance(given, list) else ""
        known.insert(0, (exchange.step, given))
        del known[_EARLIER:]
    return (rest if holder is exchange.request else {**exchange.request, "body": rest}), after


def _longest(known: Sequence[tuple[int, Any]], value: Any) -> tuple[int, int]:
    best = (0, 0)
    for step, other in known:
        if isinstance(value, str) or isinstance(other, str):
            common = int(value == other)
        else:
            common = next(
                (at for at, (one, two) in enumerate(zip(value, other, strict=False)) if one != two),
                min(len(value), len(other)),
            )
        if common > best[1]:
            best = (step, common)
    return best


def read_test(path: Path) -> RecordedTest:
    """Read a recorded test.

    Raises:
        NotFound: There is no such file.
        InvalidInput: It is no recorded test, or a line of it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(
            f"{path} does not exist; make it with: treering test add RUN --name {path.stem}"
        ) from None
    lines: list[dict[str, Any]] = []
    advice = "restore it from version control, or record it again"
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            lines += [decode_json(line)] if line.strip() else []
        except TreeringError as error:
            raise InvalidInput(f"line {number} of {path} is no JSON: {error}; {advice}") from error
    try:
        return _test_of(lines, path, len(data))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"{path} is damaged ({type(error).__name__}: {error}); {advice}") from error


def _test_of(lines: Sequence[Mapping[str, Any]], path: Path, size: int) -> RecordedTest:
    if not lines or lines[0].get("treering") != _KIND:
        raise InvalidInput(f"{path} is no recorded test; its first line is not one's")
    head = lines[0]
    if head["version"] > _VERSION:
        raise InvalidInput(
            f"{path} has version {head['version']}, and this treering reads {_VERSION}; upgrade treering"
        )
    at_us = from_datetime(datetime.fromisoformat(head["recorded_at"]))
    steps: dict[int, Exchange] = {}
    changes: dict[int, dict[str, StoredFile | None]] = {}
    for line in lines[1:]:
        if "step" in line:
            exchange = _step_of(line, steps, at_us)
            steps[exchange.step] = exchange
            changes[exchange.step] = {
                name: None if each is None else msgspec.convert(each, StoredFile)
                for name, each in line.get("files", {}).items()
            }
    return RecordedTest(
        name=head["name"],
        run=head["run"],
        agent=head.get("agent"),
        recorded_at_us=at_us,
        entry=head.get("entry"),
        arguments=head.get("arguments", []),
        steps=tuple(steps.values()),
        changes=changes,
        files={each["file"]: _file_of(each) for each in lines if "file" in each}
        if head.get("has_files")
        else None,
        cwd=head.get("cwd"),
        relative=head.get("relative"),
        thread=cast("Any", tuple(head["thread"])) if "thread" in head else None,
        messages=[each["message"] for each in lines if "message" in each],
        state=head.get("state", {}),
        memory=tuple(
            Memory(
                namespace=each["namespace"],
                id=each["memory"],
                content=each["content"],
                metadata=each["metadata"],
            )
            for each in lines
            if "memory" in each
        ),
        draws=head.get("draws", {}),
        tolerance=Tolerance(ignore=tuple(head.get("ignore", ())), mask=tuple(head.get("mask", ()))),
        final=head.get("final", ""),
        path=path,
        size=size,
    )


def _file_of(line: Mapping[str, Any]) -> StoredFile:
    return msgspec.convert({name: each for name, each in line.items() if name != "file"}, StoredFile)


def _step_of(line: Mapping[str, Any], steps: Mapping[int, Exchange], at_us: int) -> Exchange:
    request: dict[str, Any] = line["request"]
    holder = _holder(request)
    for key, (step, common) in line.get("after", {}).items():
        before = _holder(steps[step].request)[key]
        holder[key] = before if isinstance(before, str) else [*before[:common], *holder[key]]
    error = line.get("error")
    return Exchange(
        kind=line["kind"],
        name=line["name"],
        request=request,
        answer=line.get("answer"),
        status=line.get("status"),
        headers=line.get("headers", {}),
        pieces=tuple(Piece(0, length) for length in line.get("pieces", ())),
        error=None if error is None else CallError(**error),
        started_at_us=at_us,
        model=line.get("model"),
        is_cut=line.get("cut", False),
        draws=line.get("draws", {}),
        id=str(line["step"]),
        step=line["step"],
    )


# Finding them


def default_folder(start: Path | None = None) -> Path:
    """Return where a new recording goes: ``recordings``, in the folder ``tests`` if there is one."""
    here = Path.cwd() if start is None else start
    return here / "tests" / FOLDER if (here / "tests").is_dir() else here / FOLDER


def find_test(name: str, *, start: Path, stop: Path) -> Path:
    """Return the file of a recording: in ``recordings`` of a folder, or of one above it, up to ``stop``.

    That of the folder itself is returned if there is none.
    """
    for folder in (start, *start.parents):
        path = folder / FOLDER / f"{name}{SUFFIX}"
        if path.is_file():
            return path
        if folder == stop:
            break
    return start / FOLDER / f"{name}{SUFFIX}"


def list_tests(root: Path) -> Iterator[Path]:
    """Yield the recordings below a folder, by path."""
    for above, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if each not in _SKIPPED and not each.startswith("."))
        if Path(above).name != FOLDER:
            continue
        for name in sorted(names):
            path = Path(above) / name
            if name.endswith(SUFFIX) and not name.startswith(".") and _is_test(path):
                yield path


def _is_test(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).startswith(b'{"treering":"%s"' % _KIND.encode())
