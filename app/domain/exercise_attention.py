"""A practice task about attention: one head, one step, by hand."""

from __future__ import annotations

from fractions import Fraction

from app.domain.exercise_choices import attention_omissions, reuse_conditions
from app.domain.exercise_parts import only_wrong
from app.domain.notes import Note
from app.domain.practice import Asked, Draws, Exercise, Given, Slip

_NEWEST_ALONE = Note(
    "newest_alone", "That is the new value alone: the step reads its whole history."
)
_NOT_NORMALISED = Note("not_normalised", "That is the sum: the weights must add up to one.")
_NOT_APPENDED = Note("not_appended", "The new position is appended before the step attends.")


def hand_attention(seed: int) -> Exercise:
    """One head, zero query: every visible value counts alike."""
    draws = Draws("hand_attention", seed)
    past = (2,) if seed == 0 else tuple(draws.between(-9, 9) for _ in range(draws.between(1, 4)))
    # The new value differs from the mean of the history, or dropping it would not show.
    total, new = sum(past), 4
    if seed:
        new = next(n for n in draws.some(range(-9, 10), 2) if n * len(past) != total)
    count = len(past) + 1
    kept, weight = Fraction(total + new, count), Fraction(1, count)
    values = ", ".join(map(str, past))
    return Exercise(
        kind="hand_attention",
        seed=seed,
        title=Note("hand_attention", "Attention by hand"),
        question=Note(
            "attention_question",
            "One head of width 1 with a zero query: append the new position and attend; "
            "then do the same with the history thrown away.",
        ),
        givens=(
            Given(code="query", label=Note("query", "query"), value="0"),
            Given(code="past_values", label=Note("past_values", "cached values"), value=values),
            Given(code="new_value", label=Note("new_value", "new value"), value=str(new)),
        ),
        figures=(
            Asked(code="weight", label=Note("weight", "weight of each position"), expected=weight),
            Asked(
                code="output",
                label=Note("output", "output with the history"),
                expected=kept,
                slips=only_wrong(
                    kept,
                    (
                        Slip(value=Fraction(new), remark=_NEWEST_ALONE),
                        Slip(value=Fraction(total + new), remark=_NOT_NORMALISED),
                        Slip(value=Fraction(total, len(past)), remark=_NOT_APPENDED),
                    ),
                ),
            ),
            Asked(
                code="output_without_history",
                label=Note("output_without_history", "output without it"),
                expected=Fraction(new),
            ),
        ),
        omissions=attention_omissions(draws),
        conditions=reuse_conditions(draws),
        working=(
            Note("scores_line", "scores: 0 · k = 0 for every key, whatever the keys are"),
            Note(
                "softmax_line",
                "weights: e^(0 − 0) = 1 each, over their sum {count}: {weight}",
                {"count": count, "weight": str(weight)},
            ),
            Note(
                "output_line",
                "output: ({values} + {new}) × {weight} = {output}",
                {
                    "values": " + ".join(map(str, past)),
                    "new": new,
                    "weight": str(weight),
                    "output": str(kept),
                },
            ),
            Note(
                "dropped_line",
                "without history one weight of 1 is left: the output is {new}, not {output}",
                {"new": new, "output": str(kept)},
            ),
        ),
    )
