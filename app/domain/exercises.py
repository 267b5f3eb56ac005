"""Practice tasks with numbers drawn by a seed; seed 0 has the textbook's own.

Each asks for its figures, for what they leave out, and for when the state may be reused, and
brings its solution line by line.
"""

from __future__ import annotations

from collections.abc import Callable

from app.domain.errors import Unknown, shown
from app.domain.exercise_attention import hand_attention
from app.domain.exercise_memory import capacity_ragged, capacity_whole, unique_blocks
from app.domain.exercise_reuse import adapter_changed, parent_changed
from app.domain.practice import Exercise, checked_seed

EXERCISE_KINDS: dict[str, Callable[[int], Exercise]] = {
    "capacity_whole": capacity_whole,
    "capacity_ragged": capacity_ragged,
    "hand_attention": hand_attention,
    "adapter_changed": adapter_changed,
    "parent_changed": parent_changed,
    "unique_blocks": unique_blocks,
}


def make_exercise(kind: object, seed: object) -> Exercise:
    """Return the exercise of that kind; the same for the same seed.

    Raises:
        Unknown: for a kind that is not in `EXERCISE_KINDS`.
        WrongType, OutOfRange: for a seed that is no integer of its range.

    """
    build = EXERCISE_KINDS.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise Unknown(
            "{field} {value} is not known; known are {known}",
            field="kind",
            value=shown(kind),
            known=", ".join(EXERCISE_KINDS),
        )
    return build(checked_seed(seed))
