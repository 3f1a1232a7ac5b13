"""One parameter of a command stands for the three options that say which store it works on."""

from __future__ import annotations

import inspect
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from treering.cli.options import JsonOption, StorePlace, takes_store


@takes_store
def count(word: Annotated[str, typer.Argument()], *, place: StorePlace, as_json: JsonOption = False) -> None:
    """Count something."""
    typer.echo(f"{word} {place} {as_json}")


def test_the_options_stand_where_the_parameter_stood() -> None:
    assert list(inspect.signature(count).parameters) == [
        "word",
        "store",
        "store_blobs",
        "namespace",
        "as_json",
    ]
    assert inspect.getdoc(count) == "Count something."


def test_a_command_gets_its_place_from_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREERING_BLOBS", raising=False)
    app = typer.Typer()
    app.command()(count)
    done = CliRunner().invoke(app, ["w", "--store", "a", "--namespace", "b", "--json"])
    assert done.output.strip() == f"w {StorePlace('a', None, 'b')} True"
