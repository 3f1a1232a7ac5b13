"""``treering memory``: documents that agents keep across conversations."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treering.cli.console import clean, counted, counts, limited, plain, progress, rows, say, show
from treering.cli.options import (
    Commands,
    JsonOption,
    LimitOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.memory.documents import MemoryDocument
    from treering.memory.memory import Memory
    from treering.memory.vectors import StaticEmbedder
    from treering.store import Store

IdArgument = Annotated[
    str, typer.Argument(metavar="DOCUMENT", help="Id of the document, such as alice/tone.")
]
TagOption = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag; repeatable.")]
VersionOption = Annotated[int | None, typer.Option("--version", metavar="N", help="An older version.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = Commands(help="Documents that agents remember.")
    for command in (save, get, search, embed, history, diff, restore, delete, forget, context, sync, protect):
        group.command()(command)
    group.command("list")(list_documents)
    app.add_typer(group, name="memory")


@takes_store
def save(
    id: IdArgument,
    content: Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads stdin.")],
    *,
    user_namespace: UserNamespaceOption = "",
    tag: TagOption = None,
    auto_load: Annotated[bool, typer.Option("--auto-load", help="Load it into every context.")] = False,
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it expires, ISO 8601, or local.")
    ] = None,
    if_version: Annotated[
        int | None,
        typer.Option(metavar="N", help="Fail unless it is at this version (0: it does not exist)."),
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Save a document; its former versions are kept.

    Examples:
        treering memory save alice/tone "Prefers short answers" --tag style
        treering memory save notes - --auto-load
    """
    from treering.cli.console import local_time
    from treering.memory.documents import parse_time

    text = sys.stdin.read() if content == "-" else content
    with place.open() as opened:
        document = _memory(opened, user_namespace).save(
            id,
            text,
            tags=tag or (),
            auto_load=auto_load,
            expires_at=None if expires_at is None else parse_time(local_time(expires_at), "--expires-at"),
            if_version=if_version,
        )
    show(_to_dict(document), [f"{clean(id)} is at version {document.version}"], as_json=as_json)


@takes_store
def get(
    id: IdArgument,
    *,
    user_namespace: UserNamespaceOption = "",
    version: VersionOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Print a document.

    Examples:
        treering memory get alice/tone
        treering memory get alice/tone --version 1
    """
    from treering.errors import NotFound

    with place.existing() as opened:
        document = _memory(opened, user_namespace).get(id, version=version, include_expired=True)
    if document is None:
        at = "" if version is None else f" at version {version}"
        raise NotFound(f"memory {id!r} not found{at}. List documents with: treering memory list")
    show(_to_dict(document), [clean(document.content)], as_json=as_json)


@takes_store
def list_documents(
    *,
    user_namespace: UserNamespaceOption = "",
    tag: TagOption = None,
    match: Annotated[Literal["any", "all"], typer.Option(help="Match any of the tags, or all.")] = "any",
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only ids with this prefix.")] = "",
    expired: Annotated[bool, typer.Option("--expired", help="Include expired documents.")] = False,
    limit: LimitOption = 200,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """List documents, by id.

    Examples:
        treering memory list
        treering memory list --tag style --prefix alice/
    """
    with place.existing() as opened:
        memory = _memory(opened, user_namespace)
        found = memory.query(
            tags=tag or (),
            match=match,
            prefix=prefix,
            include_expired=expired,
            limit=limit + 1 if limit else None,
        )
        documents = limited(found, limit)
        named = islice((name for name in memory.namespaces() if name), 20)
        elsewhere = [] if documents or user_namespace else list(named)
    if elsewhere:
        say(f"note: no documents here; see --user-namespace {clean(', '.join(elsewhere[:20]))}")
    show([_to_dict(each) for each in documents], _table(documents), as_json=as_json)


@takes_store
def search(
    text: Annotated[str, typer.Argument(metavar="QUERY", help="Words to search for.")],
    *,
    user_namespace: UserNamespaceOption = "",
    everywhere: Annotated[bool, typer.Option("--everywhere", help="Search all user namespaces.")] = False,
    semantic: Annotated[
        bool,
        typer.Option(
            "--semantic",
            help="Search by meaning as well; needs the extra embeddings, and vectors (see embed).",
        ),
    ] = False,
    tag: TagOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N hits.")
    ] = 10,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Search documents, best match first.

    Examples:
        treering memory search "short answers"
        treering memory search tone --everywhere --semantic
    """
    embedder = _embedder() if semantic else None
    with place.existing() as opened:
        found = _memory(opened, user_namespace).search(
            text, tags=tag or (), limit=limit, everywhere=everywhere, embedder=embedder
        )
    if not found.ranked:
        say(f"note: not ranked: {found.note}")
    elif found.note:
        say(f"note: {found.note}")
    data = {
        "ranked": found.ranked,
        "note": found.note,
        "hits": [
            {"document": _to_dict(hit.document), "score": hit.score, "namespace": hit.namespace}
            for hit in found
        ],
    }
    lines = [
        f"{hit.score:8.3f}  {clean(f'{hit.namespace}: ' if hit.namespace and everywhere else '')}"
        f"{clean(hit.document.id)}  {_line(hit.document.content)}"
        for hit in found
    ]
    show(data, lines, as_json=as_json)


@takes_store
def embed(
    *,
    user_namespace: UserNamespaceOption = "",
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Create missing vectors, for search --semantic.

    Examples:
        treering memory embed
    """
    embedder = _embedder()
    with place.existing() as opened, progress("embedding"):
        count = _memory(opened, user_namespace).with_embedder(embedder).embed()
    show({"embedded": count}, [f"{counted(count, 'vectors')} created"], as_json=as_json)


@takes_store
def history(
    id: IdArgument,
    *,
    user_namespace: UserNamespaceOption = "",
    limit: LimitOption = 100,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """List the versions of a document, newest first.

    Examples:
        treering memory history alice/tone
    """
    from treering.cli.console import when
    from treering.errors import NotFound

    with place.existing() as opened:
        versions = limited(_memory(opened, user_namespace).history(id), limit)
    if not versions:
        raise NotFound(f"memory {id!r} not found. List documents with: treering memory list")
    data = [
        {**plain(each), "document": None if each.document is None else _to_dict(each.document)}
        for each in versions
    ]
    table = [["version", "changed", "operation", "content"]]
    for each in versions:
        text = "" if each.document is None else _line(each.document.content)
        table.append([str(each.version), when(each.changed_at), each.operation, text])
    show(data, rows(table), as_json=as_json)


@takes_store
def diff(
    id: IdArgument,
    old: Annotated[int, typer.Argument(metavar="OLD", help="A version.")],
    new: Annotated[int | None, typer.Argument(metavar="[NEW]", help="A later version [the newest].")] = None,
    *,
    user_namespace: UserNamespaceOption = "",
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show the changes between two versions.

    Examples:
        treering memory diff alice/tone 1 2
    """
    with place.existing() as opened:
        found = _memory(opened, user_namespace).diff(id, old, new)
    lines = [clean(found.text)] if found.text else []
    lines += [f"+tag {clean(tag)}" for tag in found.added_tags]
    lines += [f"-tag {clean(tag)}" for tag in found.removed_tags]
    lines += [f"changed {clean(key)}" for key in found.changed_metadata]
    show(found, lines, as_json=as_json)


@takes_store
def restore(
    id: IdArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="The version to restore; see history.")],
    *,
    user_namespace: UserNamespaceOption = "",
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Save an older version again, as the newest one.

    Examples:
        treering memory restore alice/tone 1
    """
    with place.existing() as opened:
        document = _memory(opened, user_namespace).restore(id, version)
    show(_to_dict(document), [f"{clean(id)} is at version {document.version}"], as_json=as_json)


@takes_store
def delete(
    id: IdArgument,
    *,
    user_namespace: UserNamespaceOption = "",
    if_version: Annotated[
        int | None, typer.Option(metavar="N", help="Fail unless it is at this version.")
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Delete a document; it can be restored.

    Examples:
        treering memory delete alice/tone
    """
    from treering.errors import NotFound

    with place.existing() as opened:
        if not _memory(opened, user_namespace).delete(id, if_version=if_version):
            raise NotFound(f"memory {id!r} not found. List documents with: treering memory list")
    show({"deleted": id}, [f"deleted {clean(id)}; undo with: treering memory restore"], as_json=as_json)


@takes_store
def forget(
    id: IdArgument,
    *,
    user_namespace: UserNamespaceOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Erase a document and all its versions permanently.

    Examples:
        treering memory forget alice/tone --yes
    """
    if not yes:
        typer.confirm(f"Permanently erase all versions of {clean(id)}?", abort=True, err=True)
    with place.existing() as opened:
        receipt = _memory(opened, user_namespace).forget(id)
    line = counts({"versions": receipt.events, "texts": receipt.texts, "objects": receipt.objects})
    show(receipt, [f"erased: {line}; proof: {receipt.proof}"], as_json=as_json)


@takes_store
def context(
    *,
    user_namespace: UserNamespaceOption = "",
    everything: Annotated[
        bool, typer.Option("--everything", help="Include documents that are not marked auto-load.")
    ] = False,
    max_documents: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of documents.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Approximate maximum number of tokens.")
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Print the text that is loaded into an agent's context.

    Examples:
        treering memory context --max-tokens 2000
    """
    with place.existing() as opened:
        loaded = _memory(opened, user_namespace).context(
            auto_load=not everything, max_documents=max_documents, max_tokens=max_tokens
        )
    for each in loaded.omitted:
        say(f"note: {clean(each.id)} was omitted ({each.reason}, about {counted(each.tokens, 'tokens')})")
    data: dict[str, Any] = {
        "text": loaded.text,
        "tokens": loaded.tokens,
        "documents": [each.id for each in loaded.documents],
        "omitted": loaded.omitted,
    }
    show(data, [clean(loaded.text)] if loaded.text else [], as_json=as_json)


@takes_store
def sync(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of Markdown files.")],
    *,
    user_namespace: UserNamespaceOption = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be done; change nothing.")
    ] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Synchronise a folder of Markdown files with memory.

    A document that was changed on both sides is reported and left alone.

    Examples:
        treering memory sync ./memories
        treering memory sync ./memories --dry-run
    """
    with place.open() as opened, progress("synchronising"):
        done = _memory(opened, user_namespace).sync_folder(folder, dry_run=dry_run)
    changes = {
        "imported": done.imported,
        "exported": done.exported,
        "deleted": done.deleted,
        "removed": done.removed,
    }
    lines = [f"{change:8}  {clean(each)}" for change, ids in changes.items() for each in ids]
    show(done, [*lines, f"{done.unchanged} unchanged"], as_json=as_json)
    for conflict in done.conflicts:
        say(f"conflict: {clean(conflict.id)}: {clean(conflict.reason)}")
    for problem in done.problems:
        say(f"problem: {clean(problem.message)}")
    if not done.ok:
        raise typer.Exit(4)


def protect(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of MEMORY.md.")] = Path(),
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Report whether it is protected; change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep MEMORY.md, which is private, out of git commits.

    Repeat this after each clone.

    Examples:
        treering memory protect
        treering memory protect . --check
    """
    from treering.compat.memory.agent_files import check_protection
    from treering.compat.memory.agent_files import protect as protect_file

    state = (check_protection if check else protect_file)(folder / "MEMORY.md")
    show(state, [f"{clean(state.path)}: {state.state}: {state.detail}"], as_json=as_json)
    if not state.ok:
        raise typer.Exit(1)


def _memory(store: Store, namespace: str) -> Memory:
    return store.memory.in_namespace(namespace) if namespace else store.memory


def _embedder() -> StaticEmbedder:
    from treering.compat.memory import StaticEmbedder

    return StaticEmbedder()


def _to_dict(document: MemoryDocument) -> dict[str, Any]:
    from treering.cli.console import raw

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
    table = [["id", "version", "tags", "content"]]
    for each in documents:
        marks = ", ".join([*each.tags, *(["(auto-load)"] if each.auto_load else [])])
        table.append([clean(each.id), str(each.version), clean(marks), _line(each.content)])
    return rows(table)


def _line(text: str) -> str:
    from treering.runs.messages import preview

    return clean(preview({"content": text}, 72))
