"""`pool`: a pool of blocks, event by event."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app import cli

if TYPE_CHECKING:
    from app.domain.pool_events import PoolEvent

Events = Annotated[
    str | None, typer.Option("--events", help="One a line: 'allocate a 1..8', 'free a'.")
]
EventsFile = Annotated[Path | None, typer.Option("--events-file", help="The same; - for input.")]
Scenario = Annotated[str | None, typer.Option("--scenario", help="A built-in story by its name.")]
NumBlocks = Annotated[int | None, typer.Option("--num-blocks", help="Blocks of the pool.")]
BlockSize = Annotated[int | None, typer.Option("--block-size", help="Tokens a block.")]
Policy = Annotated[str | None, typer.Option("--policy", help="engine or textbook.")]
WhenFull = Annotated[str | None, typer.Option("--when-full", help="refuse or preempt.")]
NoCaching = Annotated[bool, typer.Option("--no-caching", help="No block is found by its hash.")]
Window = Annotated[int | None, typer.Option("--window", help="All layers slide.")]
Version = Annotated[str | None, typer.Option("--version", help="A release of vLLM.")]


def events_of(
    events: str | None, path: Path | None, scenario: str | None
) -> tuple[list[PoolEvent], int | None, int | None]:
    """Return the events, and a story's own number of blocks and block size."""
    from app.domain.errors import DomainError
    from app.domain.pool_scenarios import SCENARIOS
    from app.readers.event_lines import parse_events

    if sum(item is not None for item in (events, path, scenario)) != 1:
        cli.fail("give the events as one of --events, --events-file or --scenario")
    if scenario is not None:
        for story in SCENARIOS:
            if story.name == scenario:
                return list(story.events), story.num_blocks, story.block_size
        cli.fail("scenario: one of " + ", ".join(story.name for story in SCENARIOS))
    try:
        parsed = parse_events((events or "") if path is None else cli.text_of(path))
    except DomainError as error:
        cli.fail(str(error))
    return [event for _, event in parsed], None, None


@cli.app.command("pool")
def pool(  # noqa: PLR0913 - one parameter an option
    *,
    events: Events = None,
    events_file: EventsFile = None,
    scenario: Scenario = None,
    num_blocks: NumBlocks = None,
    block_size: BlockSize = None,
    policy: Policy = None,
    when_full: WhenFull = None,
    no_caching: NoCaching = False,
    window: Window = None,
    version: Version = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Print what each event did to a pool of blocks, and why."""
    from app.api.block_pool import answer_pool, event_body
    from app.api.block_pool_schemas import BlockPoolRequest
    from app.readers.event_lines import event_line

    happened, own_blocks, own_size = events_of(events, events_file, scenario)
    body = {
        "num_blocks": own_blocks if num_blocks is None else num_blocks,
        "block_size": (own_size or 16) if block_size is None else block_size,
        "events": [event_body(event) for event in happened],
        "policy": policy,
        "when_full": when_full,
        "caching": not no_caching,
        "window": window,
        "version": version,
    }
    if body["num_blocks"] is None:
        cli.fail("--num-blocks is missing")
    answer = cli.run(answer_pool, body, BlockPoolRequest)
    if as_json:
        cli.print_json(answer)
        return
    for step, event in zip(answer.steps, happened, strict=True):
        done = "" if step.accepted else " (not done)"
        typer.echo(f"{step.index + 1}. {event_line(event)}{done}")
        for reason in step.reasons:
            typer.echo(f"   {reason.text}")
        for request, table in step.block_tables.items():
            typer.echo(f"   {request} ({step.states[request]}): {table}")
        typer.echo(f"   held {step.used_blocks}, free queue {step.free_queue}")
    total = answer.totals
    typer.echo(
        f"Computing: {total.hit_tokens} positions found, {total.computed_tokens} computed. "
        f"Hit rate: {total.hit_tokens} of {total.admitted_tokens} asked for. "
        f"Memory: {total.peak_used_blocks} blocks held at most. "
        f"{total.evictions} evictions, {total.copies} copies, {total.refusals} refusals, "
        f"{total.preemptions} preemptions."
    )
    cli.print_notes(answer)
