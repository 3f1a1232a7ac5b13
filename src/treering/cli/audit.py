"""Commands about seals: ``treering audit``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from treering.cli.console import clean, counted, limited, plain, rows, show, text_of, when
from treering.cli.options import Commands, JsonOption, LimitOption, StorePlace, takes_store
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from treering.maintenance.audit import AuditReport, Seal
    from treering.store import Store

_DIFFERENT: Final = 5
_SHOWN: Final = 20

KeyOption = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="Private key (PEM) to sign with.")
]
PublicKeyOption = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="Public key (PEM) that the seals have to be signed with."),
]

audit = Commands(help="Seals: prove that the history was not changed.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(audit, name="audit")


@audit.command()
@takes_store
def seal(
    *,
    place: StorePlace,
    publish: Annotated[
        list[str] | None,
        typer.Option(
            "--publish",
            metavar="PLACE",
            help="Folder, s3://bucket/prefix, FILE.json, webhook:URL or git:REPOSITORY; repeatable.",
        ),
    ] = None,
    key: KeyOption = None,
    min_commits: Annotated[
        int, typer.Option("--min-commits", metavar="N", min=1, help="Wait for this many commits.")
    ] = 1,
    max_age: Annotated[
        float | None,
        typer.Option("--max-age", metavar="SECONDS", help="Seal fewer once the oldest is this old."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option("--every", metavar="SECONDS", help="Go on until interrupted, looking this often."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Seal the commits since the last seal, and publish the seal.

    Examples:
        treering audit seal --publish ./seals
        treering audit seal --key audit.pem --publish s3://audit/seals --publish git:.
        treering audit seal --every 60 --min-commits 1000 --max-age 3600 --publish ./seals
    """
    from treering.maintenance.audit import publish as publish_to

    private = None if key is None else text_of(key)
    while True:
        with place.existing() as opened:
            done = opened.audit.seal(key=private, min_commits=min_commits, max_age_seconds=max_age)
        places = [publish_to(done, to) for to in publish or ()] if done is not None else []
        if done is not None:
            value = done if not places else done.header()
            show(plain(value) | {"published": places}, _seal_lines(done, places), as_json=as_json)
        elif every is None:
            show({"sealed": False}, ["Nothing to seal."], as_json=as_json)
        if every is None:
            return
        time.sleep(every)


@audit.command("list")
@takes_store
def list_seals(*, limit: LimitOption = 50, place: StorePlace, as_json: JsonOption = False) -> None:
    """List the seals of a store.

    Examples:
        treering audit list
    """
    with place.existing() as opened:
        seals = limited(opened.audit.seals(), limit)
    table = [("SEAL", "AT", "COMMITS", "NUMBERS", "SIGNED", "HASH")]
    for each in seals:
        numbers = f"{each.after_seq + 1}-{each.to_seq}"
        signed = "yes" if each.signature else "no"
        table.append(
            (str(each.number), when(each.sealed_at_us), f"{each.commits:,}", numbers, signed, each.hash[:16])
        )
    lines = rows(table) if seals else ["No seals. Make one with: treering audit seal"]
    show({"seals": [plain(each) for each in seals]}, lines, as_json=as_json)


@audit.command()
@takes_store
def export(
    *,
    number: Annotated[int, typer.Argument(metavar="SEAL", help="The number of the seal.")],
    place: StorePlace,
    publish: Annotated[str, typer.Option("--publish", metavar="PLACE", help="Where to, as for seal.")],
    as_json: JsonOption = False,
) -> None:
    """Publish a seal again.

    Examples:
        treering audit export 3 --publish ./seals
    """
    from treering.maintenance.audit import publish as publish_to

    with place.existing() as opened:
        to = publish_to(opened.audit.export(number), publish)
    show({"published": to}, [f"published to {clean(to)}"], as_json=as_json)


@audit.command()
@takes_store
def prove(
    *,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The id of the event.")],
    place: StorePlace,
) -> None:
    """Print the proof, as JSON, that an event was sealed.

    Examples:
        treering audit prove 01j9zq8
    """
    with place.existing() as opened:
        typer.echo(opened.audit.prove(event).to_json().decode(), nl=False)


@audit.command()
@takes_store
def evidence(*, place: StorePlace) -> None:
    """Print the whole history as JSON, to check it elsewhere.

    Examples:
        treering audit evidence
    """
    with place.existing() as opened:
        for line in opened.audit.evidence():
            typer.echo(line.decode(), nl=False)


@audit.command()
def check(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What prove or evidence printed.")],
    against: Annotated[
        list[Path],
        typer.Option("--against", metavar="SEAL", help="A published seal, or a folder of them; repeatable."),
    ],
    key: PublicKeyOption = None,
) -> None:
    """Check a proof or evidence against seals, without a store.

    Examples:
        treering audit check proof.json --against seals/seal-00000001.json
        treering audit check evidence.jsonl --against ./seals --key public.pem
    """
    from treering.maintenance.check_proof import main

    keys = [] if key is None else ["--key", str(key)]
    raise typer.Exit(_DIFFERENT if main([str(file), "--seal", *map(str, _files(against)), *keys]) else 0)


@audit.command()
@takes_store
def verify(
    *,
    place: StorePlace,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", metavar="FILE", help="A published seal, or a folder of them; repeatable."),
    ] = None,
    key: PublicKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the store against seals, and say which rows differ.

    The exit code is 5 if any does.

    Examples:
        treering audit verify --against ./seals
        treering audit verify --against seal-00000007.json --key public.pem --json
    """
    public = None if key is None else text_of(key)
    seals = [path.read_bytes() for path in _files(against or ())]
    with place.existing() as opened:
        report = _verified(opened, seals, public)
    show(plain(report), _report_lines(report, has_seals=bool(seals)), as_json=as_json)
    if not report.ok:
        raise typer.Exit(_DIFFERENT)


@audit.command("key")
def make_key(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the private key (PEM).")],
) -> None:
    """Make a key to sign seals with; print the public key.

    Examples:
        treering audit key audit.pem
    """
    from treering.maintenance.audit import new_key

    if file.exists():
        raise InvalidInput(f"{file} exists; choose another file")
    private, public = new_key()
    file.touch(mode=0o600)
    file.write_text(private)
    typer.echo(public, nl=False)


def _verified(opened: Store, seals: list[bytes], key: str | None) -> AuditReport:
    return opened.audit.verify(seals, key=key)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(path.glob("*.json"))
            if not found:
                raise InvalidInput(f"{path} holds no seals")
            yield from found
        else:
            yield path


def _seal_lines(done: Seal, places: list[str]) -> Iterator[str]:
    signed = "signed" if done.signature else "not signed"
    yield f"Seal {done.number}: {counted(done.commits, 'commits')}, {signed}"
    yield f"hash {done.hash}"
    for each in places:
        yield f"published to {clean(each)}"
    if not places:
        yield "It is only in this store: publish it with --publish to make changes evident."


def _report_lines(report: AuditReport, *, has_seals: bool) -> Iterator[str]:
    figures = {"seals": report.seals, "commits": report.commits, "erased rows": report.erased}
    yield ("As sealed: " if report.ok else "NOT as sealed: ") + ", ".join(
        counted(number, name) for name, number in figures.items()
    )
    different = [each for each in report.findings if each.kind != "erased"]
    lines = [f"{each.kind}: {clean(each.what)}: {clean(each.detail)}" for each in different]
    lines += [f"{each.kind}: {clean(each.where)}: {clean(each.detail)}" for each in report.problems]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"... and {len(lines) - _SHOWN:,} more"
    if report.unsealed:
        yield f"{counted(report.unsealed, 'commits')} came after the last of these seals."
    if not has_seals:
        yield "Without --against, this says nothing about an operator who rewrote the seals too."
