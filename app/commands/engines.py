"""`plan` and `explain`: what an engine makes of a model, and what its start-up log says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import cli
from app.commands import transformers
from app.commands.plan_settings import by_engine, joined, settings_of

if TYPE_CHECKING:
    from app.api.engines_compared import SideBySideAnswer
    from app.api.explain import ExplainAnswer

ALL = "all"
MAX_LOG_BYTES = 36 * 2**20

Engine = Annotated[
    str,
    typer.Argument(
        help="vllm, llama_cpp, sglang, tensorrt_llm, transformers, or all for one table of them."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        "-s",
        help="name=value, as the engine's own flag; with all, engine.name=value. May be repeated.",
    ),
]
SettingsText = Annotated[
    str | None, typer.Option("--settings", help='Several at once: "--max-model-len 8192 tp=2".')
]
Available = Annotated[
    str | None, typer.Option("--available", help="Memory for the cache: 40GiB, 42949672960.")
]
ContextTokens = Annotated[
    str | None, typer.Option("--context", help="Longest request, with all: 131072, 128k.")
]
LengthsText = Annotated[
    str | None, typer.Option("--lengths", help="Lengths to compare at, with all: 1k,8k,128k.")
]
TensorRanks = Annotated[int | None, typer.Option("--tensor-parallel", help="Tensor ranks.")]
Stages = Annotated[int | None, typer.Option("--pipeline-parallel", help="Pipeline stages.")]
Copies = Annotated[int | None, typer.Option("--data-parallel", help="Data-parallel ranks.")]
ContextRanks = Annotated[
    int | None,
    typer.Option("--decode-context-parallel", help="Ranks that divide a context's tokens."),
]


def _bytes(text: str | None) -> int | None:
    from app.domain.errors import DomainError
    from app.readers.amounts import parse_bytes

    try:
        return None if text is None else parse_bytes(text, field="available")
    except DomainError as error:
        cli.fail(str(error))


def _length(text: str | None, high: int) -> int | None:
    from app.domain.errors import DomainError
    from app.readers.one_length import parse_length

    try:
        return parse_length(text, field="context", high=high) if text else None
    except DomainError as error:
        cli.fail(str(error))


def _lengths(text: str | None, field: str) -> list[int] | None:
    from app.domain.errors import DomainError
    from app.readers.lengths import parse_lengths

    if not text:
        return None
    try:
        return [length for length, _ in parse_lengths(text, field=field).runs]
    except DomainError as error:
        cli.fail(str(error))


@cli.app.command("plan")
def plan(  # noqa: PLR0913 - one parameter an option
    engine: Engine = ALL,
    *,
    available: Available = None,
    setting: Settings = None,
    settings: SettingsText = None,
    context: ContextTokens = None,
    lengths: LengthsText = None,
    tensor_parallel: TensorRanks = None,
    pipeline_parallel: Stages = None,
    data_parallel: Copies = None,
    decode_context_parallel: ContextRanks = None,
    model: cli.ModelOption = None,
    config: cli.ConfigOption = None,
    gguf: cli.GgufOption = None,
    layers: cli.LayersOption = None,
    kv_heads: cli.HeadsOption = None,
    head_dim: cli.DimOption = None,
    v_head_dim: cli.ValueDimOption = None,
    kv_dtype: cli.DTypeOption = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Print what an engine would allocate and print, or all engines side by side."""
    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    body: dict[str, Any] = {
        "model": cli.model_of(model, config, gguf, numbers),
        "available_bytes": _bytes(available),
    }
    own = settings_of(setting, settings)
    asked = {
        "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel,
        "data_parallel": data_parallel, "decode_context_parallel": decode_context_parallel,
    }  # fmt: skip
    ranks = {name: count for name, count in asked.items() if count is not None}
    if engine == ALL:
        _plan_all({**body, **ranks}, own, context, lengths, kv_dtype, as_json=as_json)
    else:
        if lengths is not None:
            cli.fail("lengths: they are compared with all engines only")
        own = joined(engine, _ranks(engine, ranks), own)
        _plan_one(engine, body, own, context, kv_dtype, as_json=as_json)


def _ranks(engine: str, ranks: dict[str, int]) -> dict[str, object]:
    """Return ranks by an engine's own names."""
    from app.engines.side_by_side import RANKS

    names = RANKS.get(engine, {})
    for name in ranks:
        if name not in names:
            cli.fail(f"{name}: {engine} has no such setting")
    return {names[name]: count for name, count in ranks.items()}


# How each engine names the longest request and the cache's format.
_LONGEST = {
    "vllm": "max_model_len", "llama_cpp": "n_ctx", "sglang": "context_length",
    "tensorrt_llm": "max_seq_len",
}  # fmt: skip


def _plan_one(
    engine: str,
    body: dict[str, Any],
    settings: dict[str, object],
    context: str | None,
    kv_dtype: str | None,
    *,
    as_json: bool,
) -> None:
    from app.api.engine_plans import answer_engine_plan
    from app.api.engines_schemas import MAX_WANTED_TOKENS, EnginePlanRequest

    known = [*_LONGEST, transformers.ENGINE]
    if engine not in known:
        cli.fail(f"engine: one of {', '.join(known)} or {ALL}, got {engine}")
    longest = _length(context, MAX_WANTED_TOKENS)
    if engine == transformers.ENGINE:
        options = transformers.settings_of_options(longest, kv_dtype)
        transformers.plan_run(body, joined(engine, options, settings), as_json=as_json)
        return
    options = {} if longest is None else {_LONGEST[engine]: longest}
    if kv_dtype is not None:
        options |= _formats(engine, kv_dtype)
    body = {**body, "settings": joined(engine, options, settings)}
    answer = cli.run(lambda asked: answer_engine_plan(engine, asked), body, EnginePlanRequest)
    if as_json:
        cli.print_json(answer)
        return
    rows = [[name, str(value)] for name, value in answer if _is_figure(value)]
    cli.print_table(f"{engine} {answer.version}", ["", "figure"], rows)
    for line in answer.formulas:
        typer.echo(line)
    for line in answer.printed:
        typer.echo(f"prints: {line}")
    for part in answer.spent:
        typer.echo(f"beyond the need: {part.bytes_text}: {part.text}")
    cli.print_notes(answer)


def _formats(engine: str, kv_dtype: str) -> dict[str, object]:
    from app.domain.dtypes import dtype_named
    from app.domain.errors import DomainError
    from app.engines.side_by_side import format_settings

    key, _, value = kv_dtype.partition("/")
    try:
        return format_settings(engine, dtype_named(key), dtype_named(value) if value else None)
    except DomainError as error:
        cli.fail(str(error))


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool) and value != ""


def _plan_all(
    body: dict[str, Any],
    settings: dict[str, object],
    context: str | None,
    lengths: str | None,
    kv_dtype: str | None,
    *,
    as_json: bool,
) -> None:
    from app.api.engines_compared import answer_side_by_side
    from app.api.engines_schemas import MAX_COMPARED_TOKENS, SideBySideRequest

    if body["available_bytes"] is None:
        cli.fail("available: give the memory for the cache, such as 40GiB")
    asked = {
        **body,
        "kv_dtype": cli.dtype_of(kv_dtype),
        "context_tokens": _length(context, MAX_COMPARED_TOKENS),
        "lengths": _lengths(lengths, "lengths"),
        "settings": by_engine(settings),
    }
    answer = cli.run(answer_side_by_side, asked, SideBySideRequest)
    if as_json:
        cli.print_json(answer)
        return
    _print_all(answer)


def _print_all(answer: SideBySideAnswer) -> None:
    columns = ["engine", "version", "tokens", "at once",
               *(str(item.length_tokens) for item in answer.need),
               "fixed", "slope", "from"]  # fmt: skip
    rows = []
    for row in answer.engines:
        if row.refusal is not None:
            rows.append([row.title, row.version, "refuses"])
            continue
        slope = f"{row.slope_bytes}" + (f"/{row.slope_tokens}" if row.slope_tokens != 1 else "")
        rows.append(
            [row.title, row.version, "–" if row.tokens is None else str(row.tokens),
             "–" if row.concurrency is None else f"{row.concurrency:.2f}",
             *("–" if item.bytes is None else str(item.bytes) for item in row.lengths),
             str(row.still_bytes), slope, str(row.holds_from_tokens)]
        )  # fmt: skip
    need = ["need", answer.need_format, "", "", *(str(item.bytes) for item in answer.need)]
    cli.print_table(f"{answer.available_bytes_text} for the cache", columns, [*rows, need])
    for row in answer.engines:
        for said in (row.refusal, row.stopped, *row.remarks):
            if said is not None:
                typer.echo(f"{row.title}: {said.text}")
        for part in row.spent:
            typer.echo(f"{row.title}, beyond the need: {part.bytes_text}: {part.text}")
    cli.print_notes(answer)


@cli.app.command("explain")
def explain(  # noqa: PLR0913 - one parameter an option
    file: Annotated[Path, typer.Argument(help="A start-up log; - is standard input.")],
    *,
    model: cli.ModelOption = None,
    config: cli.ConfigOption = None,
    gguf: cli.GgufOption = None,
    layers: cli.LayersOption = None,
    kv_heads: cli.HeadsOption = None,
    head_dim: cli.DimOption = None,
    v_head_dim: cli.ValueDimOption = None,
    setting: Settings = None,
    settings: SettingsText = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Where the lines leave it open.")
    ] = None,
    want_context: Annotated[
        int | None, typer.Option("--want-context", help="The length that one wants to serve.")
    ] = None,
    want_concurrency: Annotated[
        int | None, typer.Option("--want-concurrency", help="How many requests of it at once.")
    ] = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Explain a log's figures; ends with exit code 1 where one disagrees."""
    from app.api.engines_schemas import ExplainRequest
    from app.api.explain import answer_explain

    numbers = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
    }  # fmt: skip
    if str(file) == str(config) == "-":
        cli.fail("only one of the log and the config can be standard input")
    named = any((model, config, gguf, *numbers.values()))
    body: dict[str, Any] = {
        "model": cli.model_of(model, config, gguf, numbers) if named else None,
        "log": _log_of(file),
        "settings": settings_of(setting, settings),
        "engine": engine,
        "want_context_tokens": want_context,
        "want_concurrency": want_concurrency,
    }
    answer = cli.run(answer_explain, body, ExplainRequest)
    if as_json:
        cli.print_json(answer)
    else:
        _print_explained(answer)
    if answer.disagrees:
        raise typer.Exit(1)


def _log_of(path: Path) -> str:
    """Return a log's text; bytes that are no UTF-8 stand for nothing that is read."""
    import sys

    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_LOG_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_LOG_BYTES + 1)
    except OSError as error:
        cli.fail(f"{path}: {error.strerror}")
    if len(data) > MAX_LOG_BYTES:
        cli.fail(f"{path}: must be at most {MAX_LOG_BYTES} bytes")
    text = data.decode("utf-8", "replace")
    if not text.strip():
        cli.fail("the log is empty" if str(path) == "-" else f"{path} is empty")
    return text


_VERDICTS = {True: "agrees", False: "DISAGREES", None: "not checked"}


def _print_explained(answer: ExplainAnswer) -> None:
    engine = answer.engine or "no engine known"
    version = f", a version of {answer.version_guess}" if answer.version_guess else ""
    used = f", computed as {answer.version_used}" if answer.version_used else ""
    model = f", {answer.model}" if answer.model else ""
    typer.echo(f"{engine}{version}{used}{model}")
    for item in answer.figures:
        typer.echo(f"{item.line_number}: {item.line}")
        typer.echo(f"  {item.name}: printed {item.printed}; computed {item.computed or '–'}; "
                   f"{_VERDICTS[item.agrees]}")  # fmt: skip
        if item.difference:
            typer.echo(f"  difference: {item.difference}")
        if item.reason:
            typer.echo(f"  {item.reason}")
    for advice in answer.advice:
        typer.echo(f"change: {advice.change}: {advice.effect}")
    for note in answer.remarks:
        typer.echo(f"note: {note.text}")
    for note in answer.missing:
        typer.echo(f"missing: {note.text}")
    if answer.model_candidates:
        typer.echo(f"the figures could be those of: {', '.join(answer.model_candidates)}")
    cli.print_notes(answer)
