"""``treering state``: JSON values by key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import as_json as json_text
from treering.cli.console import clean, limited, one_line, plain, raw, rows, show, when
from treering.cli.options import (
    Commands,
    JsonOption,
    LimitOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)

if TYPE_CHECKING:
    from treering.state.state import StateEntry

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
IfVersionOption = Annotated[
    int | None,
    typer.Option(
        "--if-version", metavar="N", help="Fail unless the key is at this version (0: it does not exist)."
    ),
]
PrefixArgument = Annotated[str, typer.Argument(metavar="PREFIX", help="Only keys with this prefix.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = Commands(help="JSON values by key.")
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
    """Print the value of a key as JSON.

    Examples:
        treering state get settings/theme
    """
    from treering.errors import NotFound

    with place.existing() as opened:
        entry = opened.state.in_namespace(user_namespace).entry(key)
        if entry is None:
            raise NotFound(f"state {key!r} not found. List keys with: treering state list")
        show(_entry(entry), [clean(json_text(entry.value))], as_json=as_json)


@takes_store
def set_value(
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The new value; - reads stdin.")],
    *,
    if_version: IfVersionOption = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set a key.

    Examples:
        treering state set settings/theme '"dark"'
        treering state set counters/replies 0 --if-version 0
    """
    given = _value(sys.stdin.read() if value == "-" else value)
    with place.existing() as opened:
        entry = opened.state.in_namespace(user_namespace).set(key, given, if_version=if_version)
    show(_entry(entry), [f"{clean(key)} is at version {entry.version}"], as_json=as_json)


@takes_store
def add(
    key: KeyArgument,
    delta: Annotated[int, typer.Argument(metavar="N", help="The number to add.")] = 1,
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add to an integer and print the sum.

    Examples:
        treering state add counters/replies 1
    """
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
    """Delete a key.

    Examples:
        treering state delete settings/theme
    """
    with place.existing() as opened:
        existed = opened.state.in_namespace(user_namespace).delete(key, if_version=if_version)
    line = f"deleted {clean(key)}" if existed else f"{clean(key)} does not exist"
    show({"key": key, "deleted": existed}, [line], as_json=as_json)


@takes_store
def list_entries(
    prefix: PrefixArgument = "",
    *,
    limit: LimitOption = 200,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List keys with their values.

    Examples:
        treering state list
        treering state list settings/
    """
    with place.existing() as opened:
        entries = limited(opened.state.in_namespace(user_namespace).list(prefix), limit)
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
    limit: LimitOption = 20,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the changes of a key, newest first.

    Examples:
        treering state history settings/theme --limit 5
    """
    with place.existing() as opened:
        changes = limited(opened.state.in_namespace(user_namespace).history(key), limit)
    data = [{**plain(each), "value": raw(each.value)} for each in changes]
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
    show(data, rows(table), as_json=as_json)


@takes_store
def watch(
    prefix: PrefixArgument = "",
    *,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Exit after so long without a change [never].")
    ] = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print keys as they change.

    Examples:
        treering state watch settings/ --seconds 60
    """
    with place.existing() as opened:
        for entry in opened.state.in_namespace(user_namespace).watch(prefix, seconds=seconds):
            value = "deleted" if not entry.version else clean(json_text(entry.value))
            line = json_text({**_plain(entry), "value": entry.value}) if as_json else None
            typer.echo(line or f"{when(entry.changed_at)}  {clean(entry.key)}  {value}")
            sys.stdout.flush()


def _entry(entry: StateEntry) -> dict[str, Any]:
    return {**_plain(entry), "value": raw(entry.value)}


def _plain(entry: StateEntry) -> dict[str, Any]:
    return {name: value for name, value in plain(entry).items() if name != "value"}


def _value(text: str) -> Any:
    import msgspec

    from treering.errors import InvalidInput

    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"the value is not JSON ({error}); quote a string twice: '\"like this\"'"
        ) from None
