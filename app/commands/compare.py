"""`compare`: two to six calculations side by side."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import typer

from app import cli
from app.domain.errors import shown

Calculations = Annotated[
    list[str],
    typer.Argument(help="2 to 6: addresses or queries of the page /fit, or @FILE with a request."),
]


def _body(text: str) -> Any:
    """Return a calculation's request from a file of JSON or a page's query."""
    from app.domain.errors import DomainError
    from app.readers.json_text import parse_json

    if text.startswith("@"):
        path = Path(text[1:])
        try:
            return parse_json(cli.file_bytes(path), field=str(path))
        except OSError as error:
            cli.fail(f"{path}: {error.strerror}")
        except DomainError as error:
            cli.fail(str(error))
    from app.pages.fit_form import fit_body, typed_fields
    from app.pages.model_form import model_form

    query = _query(text)
    try:
        return fit_body(model_form(query), typed_fields(query))
    except DomainError as error:
        cli.fail(str(error))


def _query(text: str) -> dict[str, str]:
    """Return the fields of an address of /fit, which stands for its first example without any."""
    from app.pages.fit_form import DEFAULTS
    from app.pages.model_form import ModelForm

    address, question, query = text.partition("#")[0].rpartition("?")
    if not question and query.rstrip("/").endswith("/fit"):
        address, query = query, ""
    found = dict(parse_qsl(query, keep_blank_values=True))
    known = {*DEFAULTS, *(field.name for field in fields(ModelForm))}
    for name in found:
        if name not in known:
            cli.fail(f"{shown(name)} is no field of the page /fit; give its address, or @FILE")
    if not found and not address:
        cli.fail("a calculation is an address or a query of the page /fit, or @FILE")
    return found


@cli.app.command("compare")
def compare(*, calculations: Calculations, as_json: cli.JsonOption = False) -> None:
    """Print two to six calculations of what fits side by side; what differs is marked."""
    from app.api.compare import CompareRequest, answer_compare

    body = {"calculations": [_body(text) for text in calculations]}
    answer = cli.run(answer_compare, body, CompareRequest)
    if as_json:
        cli.print_json(answer)
        return
    rows = [
        [row.label, *("–" if value is None else str(value) for value in row.values),
         "≠" if row.differs else ""]
        for row in answer.rows
    ]  # fmt: skip
    columns = ["", *(str(index + 1) for index in range(len(answer.calculations))), ""]
    cli.print_table("Side by side", columns, rows)
    for index, calculation in enumerate(answer.calculations, 1):
        typer.echo(f"{index}: {calculation.verdict}")
