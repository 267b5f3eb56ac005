"""`parallel`: which rank holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from app import cli

Tensor = Annotated[int, typer.Option("--tensor-parallel", help="Tensor-parallel ranks.")]
Pipeline = Annotated[int, typer.Option("--pipeline-parallel", help="Pipeline stages.")]
Context = Annotated[
    int, typer.Option("--decode-context-parallel", help="Ranks that share out positions.")
]
Data = Annotated[int, typer.Option("--data-parallel", help="Replicas.")]
Expert = Annotated[int, typer.Option("--expert-parallel", help="Ranks that share out experts.")]
Stages = Annotated[str | None, typer.Option("--layers-per-stage", help="16,32")]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="As if in a format: fp8, awq_int4; or bytes: 28GB; or @FILE, a GGUF or safetensors.",
    ),
]
LengthsText = Annotated[str | None, typer.Option("--lengths", help="17,31,32 or 500x2048, 20x32k")]
LengthsFile = Annotated[
    Path | None, typer.Option("--lengths-file", help="A CSV, JSON or JSONL file.")
]
BlockSize = Annotated[int, typer.Option("--block-size", help="Tokens a block.")]


def stages_of(text: str | None) -> list[int] | None:
    """Return the request's `layers_per_stage` from `16,32`."""
    if text is None:
        return None
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        cli.fail("layers_per_stage: give whole numbers such as 16,32")
    return [int(part) for part in parts]


def weights_of(text: str | None) -> dict[str, Any] | None:
    """Return the request's `weights` from a format's name, an amount of bytes, or a header."""
    if text is None:
        return None
    if text.startswith("@"):
        return {"bytes": _header_bytes(Path(text[1:]))}
    if not text[:1].isdigit():
        return {"format": text}
    from app.domain.errors import DomainError
    from app.readers.amounts import parse_bytes

    try:
        return {"bytes": parse_bytes(text, field="weights")}
    except DomainError as error:
        cli.fail(str(error))


def _header_bytes(path: Path) -> int:
    """Return the exact bytes of a file's tensors, from its header alone."""
    from app.domain.errors import DomainError
    from app.readers.gguf import read_gguf
    from app.readers.header_weights import gguf_weights, safetensors_weights
    from app.readers.safetensors import read_safetensors

    try:
        with path.open("rb") as file:
            data = file.read(cli.GGUF_HEADER_BYTES)
        if data.startswith(b"GGUF"):
            return gguf_weights(read_gguf(data)).size_bytes
        return safetensors_weights(read_safetensors(data)).size_bytes
    except OSError as error:
        cli.fail(f"{path}: {error.strerror}")
    except DomainError as error:
        cli.fail(f"{path}: {error}")


@cli.app.command("parallel")
def parallel(  # noqa: PLR0913 - one parameter an option
    *,
    lengths: LengthsText = None,
    lengths_file: LengthsFile = None,
    block_size: BlockSize = 16,
    tensor_parallel: Tensor = 1,
    pipeline_parallel: Pipeline = 1,
    decode_context_parallel: Context = 1,
    data_parallel: Data = 1,
    expert_parallel: Expert = 1,
    layers_per_stage: Stages = None,
    weights: Weights = None,
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
    """Print which rank holds which layers, heads and bytes, and what copies cost."""
    from app.api.parallel import answer_parallel
    from app.api.parallel_schemas import ParallelRequest
    from app.domain.units import bytes_text

    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    body = {
        "model": cli.model_of(model, config, gguf, numbers),
        "kv_dtype": cli.dtype_of(kv_dtype),
        "element_bytes": element_bytes,
        "lengths": cli.lengths_of(lengths, lengths_file),
        "block_size": block_size,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "decode_context_parallel": decode_context_parallel,
        "data_parallel": data_parallel,
        "expert_parallel": expert_parallel,
        "layers_per_stage": stages_of(layers_per_stage),
        "weights": weights_of(weights),
    }
    answer = cli.run(answer_parallel, body, ParallelRequest)
    if as_json:
        cli.print_json(answer)
        return
    columns = ["stage", "rank", "layers", "heads", "copies", "B a token", "effective",
               "paged", "weights"]  # fmt: skip
    rows = [
        [str(rank.pipeline_rank), str(rank.tensor_rank), f"{rank.layers[0]}–{rank.layers[1]}",
         str(len(rank.kv_heads)), str(rank.replicas), str(rank.bytes_per_token),
         bytes_text(rank.effective_bytes), bytes_text(rank.paged_bytes),
         "" if rank.weights_bytes is None else bytes_text(rank.weights_bytes)]
        for rank in answer.ranks
    ]  # fmt: skip
    cli.print_table(f"{len(rows)} ranks of one replica", columns, rows)
    typer.echo(answer.formula)
    for note in answer.why:
        typer.echo(note.text)
    cli.print_notes(answer)
