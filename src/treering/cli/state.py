"""Commands for small state: ``treering state get|set|add|delete|list|history|watch``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import clean, rows, show
from treering.cli.options import (
    JsonOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)
from treering.cli.render import as_json as json_text
from treering.cli.render import one_line, raw, when

if TYPE_CHECKING:
    from treering.state.state import StateEntry

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
IfVersionOption = Annotated[
    int | None, typer.Option("--if-version", metavar="N", help="Only if it is at this version; 0: not there.")
]
PrefixArgument = Annotated[str, typer.Argument(metavar="PREFIX", help="Only keys that begin like this.")]


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    group = typer.Typer(help="Small state: JSON values by key.", no_args_is_help=True, rich_markup_mode=None)
    for name, command in (
        ("get", get),
        ("set", set_value),
        ("add", add),
        ("delete", delete),
        ("list", list_entries),
        ("history", history),
        ("watch", watch),
    ):
        group.command(name)(command)
    app.add_typer(group, name="state")


@takes_store
def get(
    key: KeyArgument,
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print the value of a key, as JSON."""
    from treering.errors import NotFound

    with place.existing() as opened:
        entry = opened.state.in_namespace(user_namespace).entry(key)
        if entry is None:
            raise NotFound(f"there is no state {key!r}; treering state list shows the keys")
        show(_entry(entry), [clean(json_text(entry.value))], as_json=as_json)


@takes_store
def set_value(
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The new value, or - for stdin.")],
    *,
    if_version: IfVersionOption = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give a key a value."""
    given = _value(sys.stdin.read() if value == "-" else value)
    with place.existing() as opened:
        entry = opened.state.in_namespace(user_namespace).set(key, given, if_version=if_version)
    show(_entry(entry), [f"{clean(key)} is at version {entry.version}"], as_json=as_json)


@takes_store
def add(
    key: KeyArgument,
    delta: Annotated[int, typer.Argument(metavar="N", help="How much.")] = 1,
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add to a whole number and print the sum."""
    with place.existing() as opened:
        total = opened.state.in_namespace(user_namespace).add(key, delta)
    show({"key": key, "value": total}, [str(total)], as_json=as_json)


@takes_store
def delete(
    key: KeyArgument,
    *,
    if_version: IfVersionOption = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove a key."""
    with place.existing() as opened:
        was_there = opened.state.in_namespace(user_namespace).delete(key, if_version=if_version)
    line = f"deleted {clean(key)}" if was_there else f"{clean(key)} was not there"
    show({"key": key, "deleted": was_there}, [line], as_json=as_json)


@takes_store
def list_entries(
    prefix: PrefixArgument = "",
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List keys and values."""
    with place.existing() as opened:
        entries = list(opened.state.in_namespace(user_namespace).list(prefix))
    table = [("key", "version", "changed", "value")]
    table += [
        (
            clean(entry.key),
            str(entry.version),
            when(entry.changed_at),
            one_line(clean(json_text(entry.value))),
        )
        for entry in entries
    ]
    show([_entry(entry) for entry in entries], rows(table), as_json=as_json)


@takes_store
def history(
    key: KeyArgument,
    *,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="How many, newest first; 0: all.")] = 20,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what a key was and when."""
    from itertools import islice

    with place.existing() as opened:
        changes = list(islice(opened.state.in_namespace(user_namespace).history(key), last or None))
    what = [
        {
            "operation": each.operation,
            "version": each.version,
            "changed_at": each.changed_at,
            "value": raw(each.value),
        }
        for each in changes
    ]
    table = [("version", "changed", "operation", "value")]
    table += [
        (
            str(each.version),
            when(each.changed_at),
            each.operation,
            "" if each.operation == "deleted" else one_line(clean(json_text(each.value))),
        )
        for each in changes
    ]
    show(what, rows(table), as_json=as_json)


@takes_store
def watch(
    prefix: PrefixArgument = "",
    *,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="End after so long without a change [never].")
    ] = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print keys as they change."""
    with place.existing() as opened:
        for entry in opened.state.in_namespace(user_namespace).watch(prefix, seconds=seconds):
            value = "deleted" if not entry.version else clean(json_text(entry.value))
            line = json_text({**_plain(entry), "value": entry.value}) if as_json else None
            typer.echo(line or f"{when(entry.changed_at)}  {clean(entry.key)}  {value}")
            sys.stdout.flush()


def _entry(entry: StateEntry) -> dict[str, Any]:
    return {**_plain(entry), "value": raw(entry.value)}


def _plain(entry: StateEntry) -> dict[str, Any]:
    return {"key": entry.key, "version": entry.version, "changed_at": entry.changed_at}


def _value(text: str) -> Any:
    import msgspec

    from treering.errors import InvalidInput

    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"the value is not JSON ({error}); put quotes around a text: '\"like this\"'"
        ) from None
