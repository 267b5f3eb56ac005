"""`cost`: what a cache saves in work, and what it has to be read for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app import cli

Prompt = Annotated[int, typer.Option("--prompt-tokens", help="Length of the prompt.")]
Output = Annotated[int, typer.Option("--output-tokens", help="Tokens to generate.")]
Batch = Annotated[int, typer.Option("--batch", help="Sequences that decode together.")]
Decode = Annotated[
    int | None, typer.Option("--decode-tokens", help="Length of each at the decode step.")
]
DeviceId = Annotated[
    str | None, typer.Option("--device", help="An id of the devices, such as h100-sxm-80.")
]
Bandwidth = Annotated[str | None, typer.Option("--bandwidth", help="3350GB/s, in place of one.")]
Weights = Annotated[
    str | None, typer.Option("--weights", help="As if stored in a format: fp8, awq_int4, mxfp4.")
]
Hidden = Annotated[int | None, typer.Option("--hidden-size")]
Queries = Annotated[int | None, typer.Option("--query-heads")]
Intermediate = Annotated[int | None, typer.Option("--intermediate-size")]
Vocabulary = Annotated[int | None, typer.Option("--vocab-size")]


@cli.app.command("cost")
def cost(  # noqa: PLR0913 - one parameter an option
    *,
    prompt_tokens: Prompt = 1024,
    output_tokens: Output = 128,
    batch: Batch = 1,
    decode_tokens: Decode = None,
    device: DeviceId = None,
    bandwidth: Bandwidth = None,
    weights: Weights = None,
    hidden_size: Hidden = None,
    query_heads: Queries = None,
    intermediate_size: Intermediate = None,
    vocab_size: Vocabulary = None,
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
    """Print work and bytes read, with a cache and without, and what bandwidth allows."""
    from app.api.cost import answer_cost
    from app.api.cost_schemas import CostRequest

    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    sizes = {
        "hidden_size": hidden_size, "query_heads": query_heads,
        "intermediate_size": intermediate_size, "vocab_size": vocab_size,
    }  # fmt: skip
    shape = {name: value for name, value in sizes.items() if value is not None}
    body = {
        "model": cli.model_of(model, config, gguf, numbers),
        "kv_dtype": cli.dtype_of(kv_dtype),
        "element_bytes": element_bytes,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "batch": batch,
        "decode_tokens": decode_tokens,
        "device": device,
        "bandwidth_bytes_per_s": None if bandwidth is None else rate_of(bandwidth),
        "weights": None if weights is None else {"format": weights},
        "shape": shape or None,
    }
    answer = cli.run(answer_cost, body, CostRequest)
    if as_json:
        cli.print_json(answer)
        return
    _print_cost(answer)


def rate_of(text: str) -> int:
    """Return the bytes a second of `3350GB/s`."""
    from app.domain.errors import DomainError
    from app.readers.amounts import parse_bytes

    try:
        return parse_bytes(text.casefold().removesuffix("/s"), field="bandwidth")
    except DomainError as error:
        cli.fail(str(error))


def _print_cost(answer: Any) -> None:
    from app.domain.units import bytes_text, si_text

    def row(label: str, work: Any) -> list[str]:
        parts = (work.projection_macs, work.attention_macs, work.logits_macs, work.macs)
        read = (work.weights_read_bytes, work.state_read_bytes)
        return [label, *(si_text(amount, "") for amount in parts), *map(bytes_text, read)]

    columns = ["MAC", "projections", "attention", "logits", "all", "weights", "state"]
    rows = [
        row(f"{label}, {way}", getattr(part, f"{way}_cache"))
        for label, part in (
            (f"at {answer.last_step.length_tokens}", answer.last_step),
            (f"{answer.passes} passes", answer),
        )
        for way in ("with", "without")
    ]
    cli.print_table("Work and bytes read, with a cache and without", columns, rows)
    typer.echo(f"The cache then holds {answer.cache_bytes_text} ({answer.cache_bytes} B).")
    decode = answer.decode
    if decode is not None and decode.tokens_per_s_bound is not None:
        typer.echo(
            f"Batch {decode.batch} at {decode.length_tokens} tokens: "
            f"{decode.flops_per_byte:.3g} operations a byte, at most "
            f"{decode.tokens_per_s_bound:.4g} tokens a second."
        )
    typer.echo(answer.formula)
    cli.print_notes(answer)
