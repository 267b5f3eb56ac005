"""`traces`: a request log of any size, read in a stream."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from app import cli
from app.commands.fragmentation import bytes_of

if TYPE_CHECKING:
    from app.api.traces import CapacityAnswer, TracesAnswer

Log = Annotated[Path, typer.Argument(help="JSON lines, CSV or Parquet; - reads standard input.")]
BlockSize = Annotated[int, typer.Option("--block-size", help="Tokens of an engine's block.")]
BlockTokens = Annotated[
    int | None, typer.Option("--block-tokens", help="Tokens of the log's blocks, if it is silent.")
]
TimeUnit = Annotated[
    str | None, typer.Option("--time-unit", help="s, ms, us or ns, of times that are numbers.")
]
Prefill = Annotated[int | None, typer.Option("--prefill-tokens-per-s")]
Decode = Annotated[int | None, typer.Option("--decode-tokens-per-s")]
Duration = Annotated[
    int | None, typer.Option("--duration-ms", help="All requests take so long; not the rates.")
]
Pool = Annotated[str | None, typer.Option("--pool", help="A pool to look up: 40GiB, 28GB.")]
Bins = Annotated[int, typer.Option("--bins", help="How finely time is cut, at most.")]
Points = Annotated[int, typer.Option("--curve-points", help="Points of the curve, at most.")]
CurveCsv = Annotated[
    Path | None, typer.Option("--csv", help="Write hits against capacity to a file.")
]
LiveCsv = Annotated[
    Path | None, typer.Option("--live-csv", help="Write live state over time to a file.")
]


@cli.app.command("traces")
def traces(  # noqa: PLR0913 - one parameter an option
    file: Log,
    *,
    block_size: BlockSize = 16,
    block_tokens: BlockTokens = None,
    time_unit: TimeUnit = None,
    prefill_tokens_per_s: Prefill = None,
    decode_tokens_per_s: Decode = None,
    duration_ms: Duration = None,
    pool: Pool = None,
    bins: Bins = 200,
    curve_points: Points = 200,
    model: cli.ModelOption = None,
    config: cli.ConfigOption = None,
    gguf: cli.GgufOption = None,
    layers: cli.LayersOption = None,
    kv_heads: cli.HeadsOption = None,
    head_dim: cli.DimOption = None,
    v_head_dim: cli.ValueDimOption = None,
    kv_dtype: cli.DTypeOption = None,
    element_bytes: cli.ElementOption = None,
    curve_csv: CurveCsv = None,
    live_csv: LiveCsv = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Print lengths, live state and hits against capacity of a request log of any size.

    Without a model nothing is told in bytes.
    """
    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    given: dict[str, Any] = {}
    if model is not None or config is not None or gguf is not None or any(numbers.values()):
        given = {"model": cli.model_of(model, config, gguf, numbers)}
    body = {
        **given, "kv_dtype": cli.dtype_of(kv_dtype), "element_bytes": element_bytes,
        "block_size": block_size, "block_tokens": block_tokens, "time_unit": time_unit,
        "prefill_tokens_per_s": prefill_tokens_per_s, "decode_tokens_per_s": decode_tokens_per_s,
        "duration_ms": duration_ms, "pool_bytes": bytes_of(pool, "pool"), "bins": bins,
        "curve_points": curve_points,
    }  # fmt: skip
    answer = _answer(body, file)
    if as_json:
        cli.print_json(answer)
    else:
        _print(answer)
    # Last, so that a file that cannot be written costs no long run.
    if curve_csv is not None:
        _write_csv(curve_csv, _curve_rows(answer))
    if live_csv is not None:
        _write_csv(live_csv, _live_rows(answer))


def _answer(body: dict[str, Any], path: Path) -> TracesAnswer:
    from app.api.traces import traces_answer
    from app.api.traces_compute import compute_traces
    from app.api.traces_schemas import TracesRequest

    def compute(request: TracesRequest) -> TracesAnswer:
        try:
            with _opened(path) as log, _progress(path) as progress:
                return traces_answer(compute_traces(request, log, progress=progress))
        except OSError as error:
            cli.fail(f"{path}: {error.strerror}")

    answer: TracesAnswer = cli.run(compute, body, TracesRequest)
    return answer


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    with path.open("rb") as log:
        yield log


@contextmanager
def _progress(path: Path) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how far the log has been read; elsewhere say nothing."""
    if not sys.stderr.isatty():
        yield lambda _read, _requests: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    total = None if str(path) == "-" else path.stat().st_size
    columns = (
        BarColumn(), DownloadColumn(binary_units=True), TextColumn("{task.fields[requests]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, requests="")

        def show(read_bytes: int, requests: int) -> None:
            bar.update(task, completed=read_bytes, requests=f"{requests:,} requests")

        yield show


def _curve_rows(answer: TracesAnswer) -> Iterator[Sequence[object]]:
    if answer.blocks is None:
        cli.fail("--csv: the log names no blocks, so that there is no curve")
    yield ("capacity_blocks", "capacity_bytes", "engine_blocks", "hit_blocks", "logical_blocks")
    for point in answer.blocks.curve:
        yield (point.capacity_blocks, point.capacity_bytes, point.engine_blocks, point.hit_blocks,
               answer.blocks.logical_blocks)  # fmt: skip


def _live_rows(answer: TracesAnswer) -> Iterator[Sequence[object]]:
    if answer.live is None:
        cli.fail("--live-csv: live state needs a model, and a log with arrival times")
    yield ("from_ns", "peak_bytes", "mean_bytes", "peak_requests")
    for each in answer.live.bins:
        yield (each.from_ns, each.peak_bytes, each.mean_bytes, each.peak_requests)


def _write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    kept = list(rows)
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(kept)
    except OSError as error:
        cli.fail(f"{path}: {error.strerror}")


def _print(answer: TracesAnswer) -> None:
    columns = (answer.inputs.percentiles, answer.outputs.percentiles, answer.lengths.percentiles)
    rows = [
        [f"{given.percentile} %", str(given.tokens), str(made.tokens), str(both.tokens)]
        for given, made, both in zip(*columns, strict=True)
    ]
    parts = (answer.inputs, answer.outputs, answer.lengths)
    rows.append(["mean", *(str(part.mean_tokens) for part in parts)])
    rows.append(["in all", *(str(part.total_tokens) for part in parts)])
    typer.echo(f"{answer.requests} requests, {answer.form}")
    cli.print_table("Lengths", ["tokens", "prompt", "answer", "both"], rows)
    if answer.live is not None:
        typer.echo(
            f"Live at most: {answer.live.peak_bytes} B ({answer.live.peak_text}), "
            f"{answer.live.peak_requests} requests at once; on the mean {answer.live.mean_text}"
        )
    if answer.blocks is not None:
        blocks = answer.blocks
        typer.echo(
            f"Blocks: {blocks.unique_blocks} unique of {blocks.logical_blocks} logical; without "
            f"bound {blocks.hit_blocks} hit ({blocks.hit_rate:.1%})"
        )
        pools = [_pool_row(f"{level.percent_of_reuse} %", level) for level in blocks.levels]
        if blocks.pool is not None:
            pools.append(_pool_row("--pool", blocks.pool))
        cli.print_table(
            "The smallest pool for a part of the reuse",
            ["of the reuse", "blocks", "bytes", "", "hits", "hit rate"],
            pools,
        )
    if answer.formula:
        typer.echo(answer.formula)
    cli.print_notes(answer)


def _pool_row(name: str, pool: CapacityAnswer) -> list[str]:
    size = "" if pool.capacity_bytes is None else str(pool.capacity_bytes)
    return [name, str(pool.capacity_blocks), size, pool.capacity_text or "", str(pool.hit_blocks),
            f"{pool.hit_rate:.1%}"]  # fmt: skip
