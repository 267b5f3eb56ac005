"""`sharing`: what sequences with common prefixes have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from app import cli

Groups = Annotated[str | None, typer.Option("--groups", help="Sizes: '512 -> 40 x 200 -> 3 x 60'.")]
Sequences = Annotated[
    str | None, typer.Option("--sequences", help="Token ids: '1 2 3 4; 9 2 3 4'.")
]
SequencesFile = Annotated[
    Path | None,
    typer.Option("--sequences-file", help="Token ids, one sequence a line; - for input."),
]
Samples = Annotated[int | None, typer.Option("--samples", help="Samples or beams of a prompt.")]
Prompt = Annotated[int | None, typer.Option("--prompt-tokens", help="Tokens of that prompt.")]
Own = Annotated[
    int | None, typer.Option("--own-tokens", help="Tokens of each sample's own; 0 if left out.")
]
Policy = Annotated[str | None, typer.Option("--policy", help="full_blocks or copy_on_write.")]
BlockSize = Annotated[int, typer.Option("--block-size", help="Tokens a block.")]


def sequences_of(
    groups: str | None, sequences: str | None, path: Path | None, samples: dict[str, int] | None
) -> dict[str, Any]:
    """Return the part of the request that says what the sequences are."""
    if sum(item is not None for item in (groups, sequences, path, samples)) != 1:
        cli.fail("give the sequences as one of --groups, --sequences, --sequences-file, --samples")
    if samples is not None:
        return {"samples": samples}
    from app.api.sharing import groups_body
    from app.domain.errors import DomainError
    from app.domain.prefix_tree import MAX_ALL_TOKENS, MAX_SEQUENCES
    from app.readers.prefix_groups import parse_groups
    from app.readers.token_ids import parse_sequences

    try:
        if groups is not None:
            return {"groups": groups_body(parse_groups(groups))}
        text = (sequences or "").replace(";", "\n") if path is None else cli.text_of(path)
        return {
            "sequences": parse_sequences(
                text, most_sequences=MAX_SEQUENCES, most_tokens=MAX_ALL_TOKENS
            )
        }
    except DomainError as error:
        cli.fail(str(error))


@cli.app.command("sharing")
def sharing(  # noqa: PLR0913 - one parameter an option
    *,
    groups: Groups = None,
    sequences: Sequences = None,
    sequences_file: SequencesFile = None,
    samples: Samples = None,
    prompt_tokens: Prompt = None,
    own_tokens: Own = None,
    block_size: BlockSize = 16,
    policy: Policy = None,
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
    """Print logical and unique blocks of sequences with common prefixes, and the bytes each way."""
    from app.api.sharing import answer_sharing
    from app.api.sharing_schemas import SharingRequest

    asked = None
    if samples is not None:
        if prompt_tokens is None:
            cli.fail("--samples needs --prompt-tokens")
        asked = {
            "prompt_tokens": prompt_tokens, "samples": samples, "own_tokens": own_tokens or 0,
        }  # fmt: skip
    elif prompt_tokens is not None or own_tokens is not None:
        cli.fail("--prompt-tokens and --own-tokens need --samples")
    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    body = {
        **sequences_of(groups, sequences, sequences_file, asked),
        "model": cli.model_of(model, config, gguf, numbers),
        "kv_dtype": cli.dtype_of(kv_dtype),
        "element_bytes": element_bytes,
        "block_size": block_size,
        "policy": policy,
    }
    answer = cli.run(answer_sharing, body, SharingRequest)
    if as_json:
        cli.print_json(answer)
        return
    rows = [
        ["without sharing", str(answer.logical_bytes), answer.logical_bytes_text,
         str(answer.logical_blocks), str(answer.logical_tokens)],
        ["unique blocks", str(answer.paged_bytes), answer.paged_bytes_text,
         str(answer.unique_blocks), str(answer.stored_tokens)],
        ["effective", str(answer.effective_bytes), answer.effective_bytes_text,
         "", str(answer.effective_tokens)],
    ]  # fmt: skip
    title = f"{answer.sequence_count} sequences, {answer.policy}"
    cli.print_table(title, ["", "bytes", "", "blocks", "positions"], rows)
    typer.echo(
        f"Memory saved: {answer.saved_bytes} B ({answer.saved_bytes_text}), "
        f"{answer.saved_blocks} blocks; copied on write: {answer.copy_on_write_blocks} blocks"
    )
    typer.echo(answer.formula)
    cli.print_notes(answer)
