"""The command line: the same computations as the API, as tables or as the API's own JSON.

Bad input ends with one line on standard error and exit code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core
from pydantic import ValidationError

from app.domain.errors import DomainError

_WIDEST_TABLE = 10_000

# The class above it, wherever Typer's own version of Click keeps that.
_UsageError: Any = typer.BadParameter.__base__


@contextmanager
def _one_line() -> Iterator[None]:
    """End with one line where the library would draw its usage and a box."""
    try:
        yield
    except _UsageError as error:
        fail(error.format_message())


class _Commands(typer.core.TyperGroup):
    """The commands; what an option refuses reads like what a field refuses."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:  # which shows the help
            return super().parse_args(ctx, args)
        with _one_line():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _one_line():
            return super().invoke(ctx)


app: typer.Typer = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Exact memory ledgers for the inference state of large language models.",
)

# A header with a vocabulary of 256,000 words takes some ten megabytes.
GGUF_HEADER_BYTES = 64 * 2**20
# More than any config or list of lengths has; a request log is read in a stream instead.
MAX_FILE_BYTES = 256 * 2**20

ModelOption = Annotated[str | None, typer.Option("--model", help="An id of the catalogue.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="A config.json, or layer_states; - is stdin.")
]
GgufOption = Annotated[Path | None, typer.Option("--gguf", help="A GGUF file.")]
LayersOption = Annotated[int | None, typer.Option("--layers")]
HeadsOption = Annotated[int | None, typer.Option("--kv-heads")]
DimOption = Annotated[int | None, typer.Option("--head-dim")]
ValueDimOption = Annotated[int | None, typer.Option("--v-head-dim")]
DTypeOption = Annotated[
    str | None, typer.Option("--kv-dtype", help="A format, or K/V such as q8_0/q4_0.")
]
ElementOption = Annotated[
    int | None, typer.Option("--element-bytes", help="As in the textbook formula.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly the API's answer.")]


def fail(message: str) -> NoReturn:
    """End with exit code 2 and one line."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)


def sentence(path: list[str | int], message: str) -> str:
    """Return what is wrong with a field, which is named once."""
    field = ".".join(map(str, path))
    return message if message.startswith(field) else f"{field}: {message}"


def run(compute: Any, body: dict[str, Any], request_type: Any) -> Any:
    """Return `compute` of the checked body, or end with the field that is at fault."""
    from app.api.problems import problem_of, problems_of

    try:
        return compute(request_type.model_validate(body))
    except ValidationError as error:
        problem = problems_of(error).detail[0]
        fail(sentence(problem.loc, problem.msg))
    except DomainError as error:
        problem = problem_of(error).detail[0]
        fail(sentence(problem.loc, problem.msg))


def model_of(
    model: str | None,
    config: Path | None,
    gguf: Path | None,
    numbers: dict[str, int | None],
) -> dict[str, Any]:
    """Return the request's `model` from the options, of which one kind must be given."""
    given = [model is not None, config is not None, gguf is not None, any(numbers.values())]
    if sum(given) != 1:
        fail("give the model as one of --model, --config, --gguf or --layers/--kv-heads/--head-dim")
    if model is not None:
        return {"id": model}
    if config is not None:
        return _pasted_model(_json_file(config))
    if gguf is not None:
        return {"gguf": _gguf_metadata(gguf)}
    return {key: value for key, value in numbers.items() if value is not None}


def _pasted_model(value: Any) -> dict[str, Any]:
    from app.api.model_input import pasted_model

    return pasted_model(value) if isinstance(value, dict) else {"config": value}


def file_bytes(path: Path) -> bytes:
    """Return the bytes of a file, or of standard input for `-`; what has no end is refused.

    Raises:
        OSError: where there is no such file, or it cannot be read.

    """
    if str(path) == "-":
        data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    else:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        fail(f"{path}: must be at most {MAX_FILE_BYTES} bytes")
    return data


def _json_file(path: Path) -> Any:
    from app.readers.json_text import parse_json

    try:
        return parse_json(file_bytes(path), field=str(path))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except DomainError as error:
        fail(str(error))


def _gguf_metadata(path: Path) -> dict[str, Any]:
    from app.readers.gguf import read_gguf

    try:
        with path.open("rb") as file:
            header = read_gguf(file.read(GGUF_HEADER_BYTES))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except DomainError as error:
        fail(f"{path}: {error}")
    return dict(header.metadata)


def dtype_of(text: str | None) -> Any:
    """Return the request's `kv_dtype` from `fp16` or `q8_0/q4_0`."""
    if text is None or "/" not in text:
        return text
    key, _, value = text.partition("/")
    return {"k": key, "v": value}


def lengths_of(text: str | None, path: Path | None) -> list[dict[str, int]]:
    """Return the request's `lengths` from typed text or a file."""
    from app.readers.lengths import parse_lengths, read_lengths_file

    if (text is None) == (path is None):
        fail("give the lengths as one of --lengths or --lengths-file")
    try:
        if path is not None:
            parsed = read_lengths_file(path.name, file_bytes(path))
        else:
            parsed = parse_lengths(text or "")
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except DomainError as error:
        fail(str(error))
    for note in parsed.notes:
        typer.echo(f"note: {note.text}", err=True)
    return [{"length": length, "count": count} for length, count in parsed.runs]


def text_of(path: Path) -> str:
    """Return the text of a file in UTF-8, or of standard input for `-`."""
    try:
        return file_bytes(path).decode("utf-8-sig")
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{path}: not UTF-8 at byte {error.start}")


def print_json(answer: Any) -> None:
    """Print the answer as the API would."""
    typer.echo(answer.model_dump_json())


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table; every column after the first is right-aligned, and nothing is cut short."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # As wide as its figures: fitted to a screen, or to none, their last digits would be left out.
    Console(width=_WIDEST_TABLE).print(table)


def print_notes(answer: Any) -> None:
    """Print what was assumed and what is left out."""
    assumed = "; ".join(note.text.rstrip(".") for note in answer.assumptions)
    typer.echo(f"Assumed: {assumed or 'nothing'}")
    typer.echo("Not counted: " + ", ".join(note.code for note in answer.not_counted))


@app.command("per-token")
def per_token(  # noqa: PLR0913 - one parameter an option
    *,
    model: ModelOption = None,
    config: ConfigOption = None,
    gguf: GgufOption = None,
    layers: LayersOption = None,
    kv_heads: HeadsOption = None,
    head_dim: DimOption = None,
    v_head_dim: ValueDimOption = None,
    kv_dtype: DTypeOption = None,
    element_bytes: ElementOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what one more token costs, and what a sequence costs whatever its length."""
    from app.api.compute import answer_per_token
    from app.api.schemas import PerTokenRequest

    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    body = {
        "model": model_of(model, config, gguf, numbers),
        "kv_dtype": dtype_of(kv_dtype),
        "element_bytes": element_bytes,
    }
    answer = run(answer_per_token, body, PerTokenRequest)
    if as_json:
        print_json(answer)
        return
    rows = [
        ["a token adds", str(answer.bytes_per_token), answer.bytes_per_token_text],
        ["windows, when full", str(answer.window_bytes_per_sequence),
         answer.window_bytes_per_sequence_text],
        ["fixed, a sequence", str(answer.fixed_bytes_per_sequence),
         answer.fixed_bytes_per_sequence_text],
    ]  # fmt: skip
    print_table("One sequence", ["", "bytes", ""], rows)
    typer.echo(answer.formula)
    print_notes(answer)


@app.command("ledgers")
def ledgers(  # noqa: PLR0913 - one parameter an option
    *,
    lengths: Annotated[
        str | None, typer.Option("--lengths", help="17,31,32 or 500x2048, 20x32k")
    ] = None,
    lengths_file: Annotated[
        Path | None, typer.Option("--lengths-file", help="A CSV, JSON or JSONL file.")
    ] = None,
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens a block.")] = 16,
    model: ModelOption = None,
    config: ConfigOption = None,
    gguf: GgufOption = None,
    layers: LayersOption = None,
    kv_heads: HeadsOption = None,
    head_dim: DimOption = None,
    v_head_dim: ValueDimOption = None,
    kv_dtype: DTypeOption = None,
    element_bytes: ElementOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the three ledgers of a set of requests: effective, padded, paged."""
    from app.api.compute import answer_ledgers
    from app.api.schemas import LedgersRequest

    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    body = {
        "model": model_of(model, config, gguf, numbers),
        "kv_dtype": dtype_of(kv_dtype),
        "element_bytes": element_bytes,
        "lengths": lengths_of(lengths, lengths_file),
        "block_size": block_size,
    }
    answer = run(answer_ledgers, body, LedgersRequest)
    if as_json:
        print_json(answer)
        return
    rows = [
        ["effective", str(answer.effective_bytes), answer.effective_bytes_text,
         str(answer.effective_tokens), "", ""],
        ["padded", str(answer.padded_bytes), answer.padded_bytes_text,
         str(answer.padded_tokens), str(answer.padding_waste_bytes), ""],
        ["paged", str(answer.paged_bytes), answer.paged_bytes_text,
         str(answer.paged_tokens), str(answer.tail_waste_bytes), str(answer.blocks)],
    ]  # fmt: skip
    title = f"{answer.request_count} requests, {answer.total_tokens} tokens"
    print_table(title, ["ledger", "bytes", "", "positions", "waste, bytes", "blocks"], rows)
    typer.echo(answer.formula)
    print_notes(answer)


@app.command("serve")
def serve(
    *,
    host: Annotated[str, typer.Option("--host", envvar="HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", envvar="PORT", min=0, max=65535)] = 8000,
    workers: Annotated[int, typer.Option("--workers", envvar="WEB_CONCURRENCY", min=1)] = 1,
) -> None:
    """Serve the pages and the API."""
    import uvicorn

    from app.settings import settings

    if workers > 1:
        _share_metrics()
    typer.echo(f"KV Ledger on http://{host}:{port}", err=True)
    uvicorn.run(
        "app.served:served_app",
        factory=True,
        host=host,
        port=port,
        workers=workers,
        http="httptools",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=settings().shutdown_grace_s,
        timeout_keep_alive=15,
    )


def _share_metrics() -> None:
    """Give the workers one place for their counters, if any folder can be written."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        return
    import tempfile

    try:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="kv-ledger-metrics-")
    except OSError:
        typer.echo("no folder can be written: /metrics will show one worker at a time", err=True)


# They take the options above, so they are imported below them; each registers itself.
from app.commands import (  # noqa: E402
    accuracy,  # noqa: F401
    compare,  # noqa: F401
    cost,  # noqa: F401
    engines,  # noqa: F401
    fit,  # noqa: F401
    fragmentation,  # noqa: F401
    hashes,  # noqa: F401
    inspect,  # noqa: F401
    models,  # noqa: F401
    parallel,  # noqa: F401
    pool,  # noqa: F401
    sharing,  # noqa: F401
    traces,  # noqa: F401
)


def main() -> None:
    """Run the command line."""
    app()
