"""`plan transformers`: what a run leaves in its cache, on the command line."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

from app import cli

if TYPE_CHECKING:
    from app.api.transformers_plan import PlannedLayerAnswer, TransformersPlanAnswer

ENGINE = "transformers"


def settings_of_options(longest: int | None, kv_dtype: str | None) -> dict[str, object]:
    """Return a run that ends with so many tokens, the last by a step of its own, and its dtype."""
    found: dict[str, object] = {}
    if longest is not None:
        found = {"prompt_tokens": max(longest - 1, 1), "decode_steps": int(longest > 1)}
    return found if kv_dtype is None else {**found, "dtype": kv_dtype}


def plan_run(body: dict[str, Any], settings: dict[str, object], *, as_json: bool) -> None:
    """Print the cache of a run, tensor by tensor."""
    from app.api.transformers_plan import TransformersPlanRequest, answer_transformers_plan

    if body["available_bytes"] is not None:
        cli.fail("available: Transformers takes no memory beforehand; its caches grow as a run"
                 " does")  # fmt: skip
    asked = {"model": body["model"], "settings": settings}
    answer = cli.run(answer_transformers_plan, asked, TransformersPlanRequest)
    if as_json:
        cli.print_json(answer)
    else:
        _print(answer)


def _print(answer: TransformersPlanAnswer) -> None:
    figures = [
        [name, str(value)]
        for name, value in answer
        if isinstance(value, int | str) and name != "formula"
    ]
    cli.print_table(f"{ENGINE} {answer.version}", ["", "figure"], figures)
    typer.echo(answer.formula)
    cli.print_table("", ["layers", "kind", "bytes each", "tensors"], _rows(answer.layers))
    needed = answer.overhead.needed_bytes
    if needed is not None:
        typer.echo(f"the model needs {needed} B, kept beyond it {answer.overhead.overhead_bytes} B")
    cli.print_notes(answer)


def _rows(layers: list[PlannedLayerAnswer]) -> list[list[str]]:
    """Return the layers, equal neighbours in one row."""
    rows = []
    for (kind, size, tensors), equal in groupby(layers, key=_shown):
        numbers = [layer.index for layer in equal]
        span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        rows.append([span, kind, str(size), tensors])
    return rows


def _shown(layer: PlannedLayerAnswer) -> tuple[str, int, str]:
    tensors = (f"{t.name} {'×'.join(map(str, t.shape))} {t.dtype}" for t in layer.tensors)
    return layer.kind, layer.bytes, ", ".join(tensors)
