"""`fit` and `devices`: what fits on which devices."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app import cli
from app.commands import parallel as options

Device = Annotated[str | None, typer.Option("--device", help="An id of `devices`.")]
Memory = Annotated[str | None, typer.Option("--memory", help="Of one device: 80GiB, 24GB.")]
Utilisation = Annotated[float | None, typer.Option("--utilisation", help="0.92")]
ContextTokens = Annotated[int | None, typer.Option("--context", help="Tokens of a request.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", help="Requests at once.")]
BatchTokens = Annotated[int | None, typer.Option("--batch-tokens", help="Most computed at once.")]
Engine = Annotated[str | None, typer.Option("--engine", help="none or vllm")]
Measured = Annotated[
    list[str] | None,
    typer.Option("--measured", help="A log's figure: state=46.8GiB, weights=…, activations=…"),
]
Percentile = Annotated[float | None, typer.Option("--percentile", help="Of drawn lengths.")]
Advise = Annotated[bool, typer.Option("--advise", help="Find what would make it fit.")]


def _amount(text: str, field: str) -> int:
    from app.domain.errors import DomainError
    from app.readers.amounts import parse_bytes, parse_signed_bytes

    parse = parse_signed_bytes if field == "measured.state" else parse_bytes
    try:
        return parse(text, field=field)
    except DomainError as error:
        cli.fail(str(error))


def _measured(words: list[str] | None) -> dict[str, int] | None:
    if not words:
        return None
    found = {}
    for word in words:
        name, _, amount = word.partition("=")
        found[name] = _amount(amount, f"measured.{name}"[:60])
    return found


@cli.app.command("fit")
def fit(  # noqa: PLR0913 - one parameter an option
    *,
    device: Device = None,
    memory: Memory = None,
    utilisation: Utilisation = None,
    context: ContextTokens = None,
    concurrency: Concurrency = None,
    lengths: options.LengthsText = None,
    lengths_file: options.LengthsFile = None,
    percentile: Percentile = None,
    batch_tokens: BatchTokens = None,
    engine: Engine = None,
    engine_version: Annotated[str | None, typer.Option("--engine-version", help="0.20.1")] = None,
    max_sequences: Annotated[int | None, typer.Option("--max-sequences")] = None,
    reserve: Annotated[str | None, typer.Option("--reserve", help="Kept free: 1GiB.")] = None,
    eager: Annotated[bool, typer.Option("--eager", help="No CUDA graphs.")] = False,
    measured: Measured = None,
    advise: Advise = False,
    block_size: Annotated[int | None, typer.Option("--block-size")] = None,
    tensor_parallel: options.Tensor = 1,
    pipeline_parallel: options.Pipeline = 1,
    decode_context_parallel: options.Context = 1,
    data_parallel: options.Data = 1,
    expert_parallel: options.Expert = 1,
    layers_per_stage: options.Stages = None,
    weights: options.Weights = None,
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
    """Print each line of a device's memory, and how many requests and tokens fit."""
    from app.api.fit import answer_fit
    from app.api.fit_schemas import FitRequest

    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    drawn = lengths is not None or lengths_file is not None
    body: dict[str, Any] = {
        "model": cli.model_of(model, config, gguf, numbers),
        "kv_dtype": cli.dtype_of(kv_dtype),
        "element_bytes": element_bytes,
        "device": device,
        "memory_bytes": None if memory is None else _amount(memory, "memory_bytes"),
        "utilisation": utilisation,
        "context_tokens": context,
        "concurrency": concurrency,
        "lengths": cli.lengths_of(lengths, lengths_file) if drawn else None,
        "percentile": percentile,
        "batch_tokens": batch_tokens,
        "engine": engine,
        "engine_version": engine_version,
        "max_sequences": max_sequences,
        "reserve_bytes": None if reserve is None else _amount(reserve, "reserve_bytes"),
        "cuda_graphs": False if eager else None,
        "measured": _measured(measured),
        "advise": advise,
        "block_size": block_size,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "decode_context_parallel": decode_context_parallel,
        "data_parallel": data_parallel,
        "expert_parallel": expert_parallel,
        "layers_per_stage": options.stages_of(layers_per_stage),
        "weights": options.weights_of(weights),
    }
    given = {name: value for name, value in body.items() if value is not None}
    answer = cli.run(answer_fit, given, FitRequest)
    if as_json:
        cli.print_json(answer)
        return
    rows = [[line.name, line.text, line.basis] for line in answer.lines]
    cli.print_table("The deciding rank's memory", ["line", "", "basis"], rows)
    typer.echo(answer.verdict)
    high = answer.max_concurrency_high
    more = "" if high == answer.max_concurrency else f" (at most {high})"
    typer.echo(f"{answer.max_concurrency} requests of {answer.context_tokens} tokens fit{more}")
    typer.echo(f"{answer.max_context_tokens} tokens fit for {answer.concurrency} requests")
    if answer.changes:
        found = [[row.field, str(row.value), str(row.max_concurrency), "yes" if row.fits else "no"]
                 for row in answer.changes]  # fmt: skip
        cli.print_table("Changes", ["change", "to", "requests", "fits"], found)
    typer.echo(answer.formula)
    cli.print_notes(answer)


@cli.app.command("devices")
def devices(
    *,
    words: Annotated[list[str] | None, typer.Argument(help="Words of the id or name.")] = None,
    as_json: cli.JsonOption = False,
) -> None:
    """List the bundled devices: memory as the driver reports it where known, else as sold."""
    from app.api.devices import list_devices
    from app.api.fit import range_text

    found = list_devices(" ".join(words or ()))
    if as_json:
        cli.print_json(found)
        return
    rows = [
        [row.id, f"{row.memory_sold:g} {row.memory_sold_unit}",
         range_text(row.memory_low_bytes, row.memory_high_bytes), row.memory_basis,
         "" if row.bandwidth_gb_s is None else f"{row.bandwidth_gb_s:g}"]
        for row in found.devices
    ]  # fmt: skip
    columns = ["device", "sold", "memory", "basis", "GB/s"]
    cli.print_table(f"{found.total} devices", columns, rows)
