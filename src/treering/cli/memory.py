"""Commands for memory: ``treering memory save``, ``get``, ``list``, ``search`` and the rest.

``--of`` names whose memory it is: an agent's, a user's, a project's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treering.cli.console import clean, counts, rows, say, show
from treering.cli.options import (
    JsonOption,
    StorePlace,
    takes_store,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.memory.documents import MemoryDocument
    from treering.memory.memory import Memory
    from treering.memory.word_vectors import StaticEmbedder
    from treering.store import Store

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The document's id, such as alice/tone.")]
OfOption = Annotated[
    str, typer.Option("--of", metavar="NAME", help="Whose memory: an agent's, user's or project's name.")
]
TagOption = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="May be repeated.")]
VersionOption = Annotated[int | None, typer.Option("--version", metavar="N", help="An older version.")]


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    group = typer.Typer(no_args_is_help=True, help="What agents remember.", rich_markup_mode=None)
    for command in (save, get, search, embed, history, diff, restore, delete, forget, context, sync, protect):
        group.command()(command)
    group.command("list")(list_documents)
    app.add_typer(group, name="memory")


@takes_store
def save(
    id: IdArgument,
    content: Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads it from stdin.")],
    *,
    of: OfOption = "",
    tag: TagOption = None,
    auto_load: Annotated[bool, typer.Option("--auto-load", help="Load it into every context.")] = False,
    expires_at: Annotated[str | None, typer.Option(metavar="TIME", help="ISO 8601.")] = None,
    if_version: Annotated[int | None, typer.Option(metavar="N", help="Only if it is at N (0: new).")] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Keep a document; the version before stays in its history."""
    from treering.memory.documents import as_time

    text = sys.stdin.read() if content == "-" else content
    with place.open() as opened:
        document = _of(opened, of).save(
            id,
            text,
            tags=tag or (),
            auto_load=auto_load,
            expires_at=None if expires_at is None else as_time(expires_at, "--expires-at"),
            if_version=if_version,
        )
    show(_told(document), [f"{clean(id)} is at version {document.version}"], as_json=as_json)


@takes_store
def get(
    id: IdArgument,
    *,
    of: OfOption = "",
    version: VersionOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Print a document."""
    from treering.errors import NotFound

    with place.existing() as opened:
        document = _of(opened, of).get(id, version=version, include_expired=True)
    if document is None:
        at = "" if version is None else f" at version {version}"
        raise NotFound(f"there is no memory {id!r}{at}; see treering memory list")
    show(_told(document), [clean(document.content)], as_json=as_json)


@takes_store
def list_documents(
    *,
    of: OfOption = "",
    tag: TagOption = None,
    match: Annotated[Literal["any", "all"], typer.Option(help="Any of the tags, or all.")] = "any",
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Ids that start so.")] = "",
    expired: Annotated[bool, typer.Option("--expired", help="Also those whose time is over.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Which documents there are."""
    with place.existing() as opened:
        memory = _of(opened, of)
        documents = memory.query(tags=tag or (), match=match, prefix=prefix, include_expired=expired)
        elsewhere = [] if documents or of else [name for name in memory.namespaces() if name]
    if elsewhere:
        say(f"note: nothing here; these have memories: {clean(', '.join(elsewhere[:20]))} (see --of)")
    show([_told(each) for each in documents], _table(documents), as_json=as_json)


@takes_store
def search(
    text: Annotated[str, typer.Argument(metavar="WORDS", help="What to look for.")],
    *,
    of: OfOption = "",
    everywhere: Annotated[bool, typer.Option("--everywhere", help="In everyone's memory.")] = False,
    meaning: Annotated[
        bool, typer.Option("--meaning", help="By meaning as well; needs the extra embeddings, and embed.")
    ] = False,
    tag: TagOption = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many.")] = 10,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Find documents by their words, best first."""
    embedder = _embedder() if meaning else None
    with place.existing() as opened:
        found = _of(opened, of).search(
            text, tags=tag or (), limit=limit, everywhere=everywhere, embedder=embedder
        )
    if not found.ranked:
        say(f"note: not ranked: {found.note}")
    elif found.note:
        say(f"note: {found.note}")
    told = {
        "ranked": found.ranked,
        "note": found.note,
        "hits": [{"score": hit.score, "of": hit.namespace} | _told(hit.document) for hit in found],
    }
    lines = [
        f"{hit.score:8.3f}  {clean(f'{hit.namespace}: ' if hit.namespace and everywhere else '')}"
        f"{clean(hit.document.id)}  {_line(hit.document.content)}"
        for hit in found
    ]
    show(told, lines, as_json=as_json)


@takes_store
def embed(
    *,
    of: OfOption = "",
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Give vectors to documents, for search --meaning."""
    embedder = _embedder()
    with place.existing() as opened:
        count = _of(opened, of).with_embedder(embedder).embed()
    show({"embedded": count}, [f"{count:,} documents got a vector"], as_json=as_json)


@takes_store
def history(
    id: IdArgument,
    *,
    of: OfOption = "",
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Every version of a document, newest first."""
    from treering.cli.render import when
    from treering.errors import NotFound

    with place.existing() as opened:
        versions = list(_of(opened, of).history(id))
    if not versions:
        raise NotFound(f"there is no memory {id!r}; see treering memory list")
    told = [
        {
            "version": each.version,
            "operation": each.operation,
            "changed_at": each.changed_at,
            "provenance": each.provenance,
            "document": None if each.document is None else _told(each.document),
        }
        for each in versions
    ]
    table = [["version", "when", "what", ""]]
    for each in versions:
        text = "" if each.document is None else _line(each.document.content)
        table.append([str(each.version), when(each.changed_at), each.operation, text])
    show(told, rows(table), as_json=as_json)


@takes_store
def diff(
    id: IdArgument,
    old: Annotated[int, typer.Argument(metavar="OLD", help="A version.")],
    new: Annotated[int | None, typer.Argument(metavar="[NEW]", help="A later one [the newest].")] = None,
    *,
    of: OfOption = "",
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """What changed from one version to another."""
    with place.existing() as opened:
        found = _of(opened, of).diff(id, old, new)
    lines = [clean(found.text)] if found.text else []
    lines += [f"+tag {clean(tag)}" for tag in found.added_tags]
    lines += [f"-tag {clean(tag)}" for tag in found.removed_tags]
    lines += [f"changed {clean(key)}" for key in found.changed_metadata]
    show(found, lines, as_json=as_json)


@takes_store
def restore(
    id: IdArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="Which one (see history).")],
    *,
    of: OfOption = "",
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Make an older version the newest one."""
    with place.existing() as opened:
        document = _of(opened, of).restore(id, version)
    show(_told(document), [f"{clean(id)} is at version {document.version}"], as_json=as_json)


@takes_store
def delete(
    id: IdArgument,
    *,
    of: OfOption = "",
    if_version: Annotated[int | None, typer.Option(metavar="N", help="Only if it is at N.")] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Take a document away; it can be restored."""
    from treering.errors import NotFound

    with place.existing() as opened:
        if not _of(opened, of).delete(id, if_version=if_version):
            raise NotFound(f"there is no memory {id!r}; see treering memory list")
    show({"deleted": id}, [f"deleted {clean(id)}; treering memory restore brings it back"], as_json=as_json)


@takes_store
def forget(
    id: IdArgument,
    *,
    of: OfOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Erase a document and every version of it, for good."""
    if not yes:
        typer.confirm(f"Erase every version of {clean(id)} for good?", abort=True, err=True)
    with place.existing() as opened:
        receipt = _of(opened, of).forget(id)
    line = counts({"versions": receipt.events, "texts": receipt.texts, "objects": receipt.objects})
    show(receipt, [f"forgotten: {line}; proof: {receipt.proof}"], as_json=as_json)


@takes_store
def context(
    *,
    of: OfOption = "",
    everything: Annotated[bool, typer.Option("--everything", help="Not only auto-load documents.")] = False,
    max_documents: Annotated[int | None, typer.Option(metavar="N", help="At most so many.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="At most about so many.")] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """The text that an agent gets into its context."""
    with place.existing() as opened:
        made = _of(opened, of).context(
            auto_load=not everything, max_documents=max_documents, max_tokens=max_tokens
        )
    for cut in made.cut:
        say(f"note: {clean(cut.id)} was left out ({cut.reason}, about {cut.tokens} tokens)")
    told: dict[str, Any] = {
        "text": made.text,
        "tokens": made.tokens,
        "documents": [each.id for each in made.documents],
        "cut": made.cut,
    }
    show(told, [clean(made.text)] if made.text else [], as_json=as_json)


@takes_store
def sync(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of Markdown files.")],
    *,
    of: OfOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Bring Markdown files and memory together.

    A document that both sides changed is left alone.
    """
    with place.open() as opened:
        done = _of(opened, of).sync_folder(folder, dry_run=dry_run)
    words = {"taken": done.taken, "written": done.written, "deleted": done.deleted, "removed": done.removed}
    lines = [f"{word:8}  {clean(each)}" for word, names in words.items() for each in names]
    show(done, [*lines, f"{done.unchanged} unchanged"], as_json=as_json)
    for conflict in done.conflicts:
        say(f"conflict: {clean(conflict.id)}: {clean(conflict.reason)}")
    for problem in done.problems:
        say(f"problem: {clean(problem.message)}")
    if not done.ok:
        raise typer.Exit(4)


def protect(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where MEMORY.md is.")] = Path(),
    *,
    check: Annotated[bool, typer.Option("--check", help="Only say whether it is protected.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep MEMORY.md, which is private, out of git's commits.

    To be done once after each clone.
    """
    from treering.compat.memory.agent_files import protect as protect_file
    from treering.compat.memory.agent_files import protection_of

    state = protection_of(folder / "MEMORY.md") if check else protect_file(folder / "MEMORY.md")
    show(state, [f"{clean(state.path)}: {state.state}: {state.detail}"], as_json=as_json)
    if not state.ok:
        raise typer.Exit(1)


def _of(store: Store, name: str) -> Memory:
    return store.memory.in_namespace(name) if name else store.memory


def _embedder() -> StaticEmbedder:
    from treering.compat.memory import StaticEmbedder

    return StaticEmbedder()


def _told(document: MemoryDocument) -> dict[str, Any]:
    from treering.cli.render import raw

    return {
        "id": document.id,
        "version": document.version,
        "content": document.content,
        "metadata": {
            key: value.isoformat() if key.endswith("_at") and hasattr(value, "isoformat") else raw(value)
            for key, value in document.metadata.items()
        },
        "provenance": document.provenance,
    }


def _table(documents: Iterable[MemoryDocument]) -> list[str]:
    table = [["id", "version", "tags", ""]]
    for each in documents:
        marks = ", ".join([*each.tags, *(["(auto-load)"] if each.auto_load else [])])
        table.append([clean(each.id), str(each.version), clean(marks), _line(each.content)])
    return rows(table)


def _line(text: str) -> str:
    from treering.cli.render import one_line

    return one_line(clean(text))
