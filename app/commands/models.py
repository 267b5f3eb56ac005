"""`models`: the bundled catalogue, searched, filtered and sorted as its page and its call do."""

from __future__ import annotations

from typing import Annotated

import typer

from app import cli

Words = Annotated[list[str] | None, typer.Argument(help="Words of the id.")]
Family = Annotated[str, typer.Option("--family", help="A model type, such as qwen3_moe.")]
Kind = Annotated[
    str | None, typer.Option("--kind", help="A kind of state that occurs: latent_attention, …")
]
Readable = Annotated[
    bool | None, typer.Option("--readable/--not-readable", help="Only what is read, or is not.")
]
Smallest = Annotated[int, typer.Option("--min-parameters", help="Of this size or larger.")]
Largest = Annotated[
    int | None, typer.Option("--max-parameters", help="Of this size or smaller: 8000000000.")
]
Sort = Annotated[str, typer.Option("--sort", help="id, parameters, layers, bytes_per_token, …")]
Descending = Annotated[bool, typer.Option("--descending", help="The largest, or last, first.")]
Offset = Annotated[int, typer.Option("--offset", help="Entries to pass over.")]
Limit = Annotated[int, typer.Option("--limit", help="Entries to list.")]


@cli.app.command("models")
def models(  # noqa: PLR0913 - one parameter an option
    *,
    words: Words = None,
    family: Family = "",
    kind: Kind = None,
    readable: Readable = None,
    min_parameters: Smallest = 0,
    max_parameters: Largest = None,
    sort: Sort = "id",
    descending: Descending = False,
    offset: Offset = 0,
    limit: Limit = 100,
    as_json: cli.JsonOption = False,
) -> None:
    """List the catalogue; figures are at 16 bits an element."""
    from app.api.catalogue import ModelsRequest, answer_models
    from app.domain.units import bytes_text, si_text

    body = {
        "q": " ".join(words or ()),
        "family": family,
        "kind": kind,
        "readable": readable,
        "min_parameters": min_parameters,
        "max_parameters": max_parameters,
        "sort": sort,
        "descending": descending,
        "offset": offset,
        "limit": limit,
    }
    page = cli.run(answer_models, body, ModelsRequest)
    if as_json:
        cli.print_json(page)
        return
    rows = []
    for item in page.models:
        size = item.parameters or item.counted_parameters
        still = (item.fixed_bytes or 0) + (item.window_bytes or 0)
        figures = [str(item.layers), bytes_text(item.bytes_per_token or 0), bytes_text(still)]
        unread = ["not read", item.field or "", ""]
        rows.append(
            [item.id, si_text(size, "") if size else "–",
             *(figures if item.readable else unread), ", ".join(item.kinds)]
        )  # fmt: skip
    columns = ["model", "parameters", "layers", "a token adds", "fixed and windows", "kinds"]
    cli.print_table(f"{len(rows)} of {page.total} models", columns, rows)
