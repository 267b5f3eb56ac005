"""`accuracy`: every measured case, and what this program computes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app import cli

if TYPE_CHECKING:
    from app.api.accuracy import AccuracyAnswer

Words = Annotated[list[str] | None, typer.Argument(help="Words of a case.")]
Engine = Annotated[str, typer.Option("--engine", help="vllm, llama.cpp, transformers, …")]
Family = Annotated[str, typer.Option("--family", help="A model type.")]
Suite = Annotated[str, typer.Option("--suite", help="A kind of case, as the table names it.")]
Outcome = Annotated[
    str, typer.Option("--outcome", help="exact, printed, explained or not_reproduced.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Cases of the answer.")]


@cli.app.command("accuracy")
def accuracy(
    *,
    words: Words = None,
    engine: Engine = "",
    family: Family = "",
    suite: Suite = "",
    outcome: Outcome = "",
    limit: Limit = 100,
    as_json: cli.JsonOption = False,
) -> None:
    """Ask every measured case, and print how the kinds of cases come out; exit 1 if one fails."""
    from app.accuracy.run import process_run
    from app.api.accuracy import (
        CaseFilter,
        accuracy_answer,
        no_outcomes,
    )

    if outcome and outcome not in no_outcomes():
        cli.fail(f"--outcome: one of {', '.join(no_outcomes())}")
    run = process_run()
    run.start()
    while not run.wait(1):
        pass
    wanted = CaseFilter(
        q=" ".join(words or ()), engine=engine, family=family, suite=suite, outcome=outcome
    )
    answer = accuracy_answer(run.progress(), wanted, 0, limit)
    if as_json:
        cli.print_json(answer)
    else:
        rows = [
            [item.name, str(item.cases), *(str(count) for count in item.outcomes.values())]
            for item in answer.suites
        ]
        columns = ["kind of case", "cases", *(name.replace("_", " ") for name in no_outcomes())]
        cli.print_table(f"{answer.total} measured cases", columns, rows)
        if engine or family or suite or outcome or words:
            _print_cases(answer)
    if answer.outcomes["not_reproduced"]:
        raise typer.Exit(1)


def _print_cases(answer: AccuracyAnswer) -> None:
    rows = [
        [case.id, figure.name, str(figure.measured), str(figure.computed), case.outcome]
        for case in answer.cases
        for figure in case.figures
    ]
    columns = ["case", "figure", "measured", "computed", "outcome"]
    cli.print_table(f"{len(rows)} figures", columns, rows)
