"""Every printed figure of a vLLM log against the plan that fits it, with a sentence for each."""

from __future__ import annotations

from app.engines.logs.out_of_memory import out_of_memory_figures
from app.engines.logs.result import LogFigure
from app.engines.logs.vllm.budget_figures import budget_figures
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.memory_figures import (
    memory_figures,
    nothing_figures,
    other_figures,
)
from app.engines.logs.vllm.pool_figures import blocks_figures, concurrency_figures
from app.engines.logs.vllm.refusal_figures import (
    refusal_figures,
    state_block_figures,
    too_long_figures,
)
from app.engines.logs.vllm.shape_figures import shape_figures
from app.engines.logs.vllm.tokens_figures import tokens_figures


def figures_of(case: Case) -> tuple[LogFigure, ...]:
    """Return the figures in the order of the log."""
    made = [
        *memory_figures(case),
        *nothing_figures(case),
        *out_of_memory_figures(case.reads),
        *tokens_figures(case),
        *concurrency_figures(case),
        *blocks_figures(case),
        *too_long_figures(case),
        *refusal_figures(case),
        *shape_figures(case),
        *budget_figures(case),
        *other_figures(case),
        *state_block_figures(case),
    ]
    return tuple(sorted(made, key=lambda item: item.line_number))
