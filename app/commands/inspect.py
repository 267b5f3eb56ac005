"""`inspect`: what a config, a GGUF or safetensors files say of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app import cli

Files = Annotated[
    list[Path] | None,
    typer.Argument(help="config.json, .gguf, .safetensors, an index; several of one model."),
]
Hub = Annotated[str, typer.Option("--hub", help="A model of the Hub, where that is enabled.")]
Revision = Annotated[str, typer.Option("--revision", help="Branch, tag or commit.")]
Token = Annotated[str, typer.Option("--token", help="Of the Hub, for a gated model.")]
KvDType = Annotated[str, typer.Option("--kv-dtype", help="A format; else as the file says.")]
Encoder = Annotated[int | None, typer.Option("--encoder-tokens", help="The encoder's length.")]


def _head(path: Path) -> tuple[str, bytes]:
    """Return a file's name and as many bytes as any header may take."""
    try:
        with path.open("rb") as file:
            return path.name, file.read(cli.GGUF_HEADER_BYTES)
    except OSError as error:
        cli.fail(f"{path}: {error.strerror}")


@cli.app.command("inspect")
def inspect(
    *,
    files: Files = None,
    hub: Hub = "",
    revision: Revision = "",
    token: Token = "",
    kv_dtype: KvDType = "",
    encoder_tokens: Encoder = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Print what each layer keeps, over context lengths, and what the weights take."""
    if bool(files) == bool(hub):
        cli.fail("give one or more files, or a model of the Hub with --hub")
    if files and (revision or token):
        cli.fail("--revision and --token belong to a model of the Hub, named with --hub")
    from app.api.inspect import Asked, inspect_answer
    from app.api.inspect import inspect as read
    from app.domain.errors import DomainError
    from app.settings import settings

    asked = Asked(
        files=[_head(path) for path in files or ()],
        hub=hub,
        revision=revision,
        token=token or None,
        kv_dtype=kv_dtype,
        encoder_tokens=encoder_tokens,
    )
    try:
        answer = inspect_answer(read(asked, settings()))
    except DomainError as error:
        cli.fail(cli.sentence(list(error.field), str(error)))
    if as_json:
        cli.print_json(answer)
        return
    kinds: dict[str, int] = {}
    for layer in answer.layers:
        kinds[layer.kind] = kinds.get(layer.kind, 0) + 1
    if kinds:
        typer.echo(", ".join(f"{count} × {kind}" for kind, count in kinds.items()))
        typer.echo(answer.formula)
        rows = [
            [str(row.tokens), row.total_bytes_text, str(row.total_bytes), str(row.growing_bytes),
             str(row.window_bytes), str(row.fixed_bytes)]
            for row in answer.contexts
        ]  # fmt: skip
        columns = ["tokens", "in all", "bytes", "growing", "windows", "fixed"]
        cli.print_table("One sequence over context lengths", columns, rows)
    if answer.weights is not None:
        rows = [
            [row.type, "" if row.tensors is None else str(row.tensors), str(row.parameters),
             str(row.bytes)]
            for row in answer.weights.by_type
        ]  # fmt: skip
        title = f"Weights ({answer.weights.basis}): {answer.weights.bytes_text or 'not declared'}"
        cli.print_table(title, ["type", "tensors", "parameters", "bytes"], rows)
    for note in answer.notes:
        typer.echo(note.text)
    if kinds:
        cli.print_notes(answer)
