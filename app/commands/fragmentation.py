"""`fragmentation`: one workload reserved at a maximum, padded and paged."""

from __future__ import annotations

from typing import Annotated

import typer

from app import cli
from app.commands.parallel import BlockSize, LengthsFile, LengthsText

MaxLength = Annotated[
    int, typer.Option("--max-length", help="What is reserved for every request, in tokens.")
]
Memory = Annotated[
    str | None, typer.Option("--memory", help="40GiB, 28GB; left out, what reserving takes.")
]


@cli.app.command("fragmentation")
def fragmentation(  # noqa: PLR0913 - one parameter an option
    *,
    max_length: MaxLength,
    lengths: LengthsText = None,
    lengths_file: LengthsFile = None,
    block_size: BlockSize = 16,
    memory: Memory = None,
    model: cli.ModelOption = None,
    config: cli.ConfigOption = None,
    gguf: cli.GgufOption = None,
    layers: cli.LayersOption = None,
    kv_heads: cli.HeadsOption = None,
    head_dim: cli.DimOption = None,
    v_head_dim: cli.ValueDimOption = None,
    kv_dtype: cli.DTypeOption = None,
    element_bytes: cli.ElementOption = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Print what reserving, padding and paging take, waste, and admit in the same memory."""
    from app.api.fragmentation import answer_fragmentation
    from app.api.fragmentation_schemas import FragmentationRequest

    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    body = {
        "model": cli.model_of(model, config, gguf, numbers),
        "kv_dtype": cli.dtype_of(kv_dtype),
        "element_bytes": element_bytes,
        "lengths": cli.lengths_of(lengths, lengths_file),
        "max_length_tokens": max_length,
        "block_size": block_size,
        "memory_bytes": bytes_of(memory, "memory"),
    }
    answer = cli.run(answer_fragmentation, body, FragmentationRequest)
    if as_json:
        cli.print_json(answer)
        return
    rows = [
        [layout.strategy, str(layout.allocated_bytes), layout.allocated_bytes_text,
         str(layout.waste_bytes),
         "any" if layout.admitted_requests is None else str(layout.admitted_requests)]
        for layout in answer.layouts
    ]  # fmt: skip
    title = f"{answer.request_count} requests, {answer.max_length_tokens} tokens at most"
    admitted = f"admitted in {answer.memory_bytes_text}"
    cli.print_table(title, ["layout", "bytes", "", "waste, bytes", admitted], rows)
    typer.echo(answer.formula)
    cli.print_notes(answer)


def bytes_of(text: str | None, field: str) -> int | None:
    """Return an amount of bytes that was typed, or end with one line."""
    if text is None:
        return None
    from app.domain.errors import DomainError
    from app.readers.amounts import parse_bytes

    try:
        return parse_bytes(text, field=field)
    except DomainError as error:
        cli.fail(str(error))
