"""One model and one budget through every engine: what fits, what a request takes beyond its need.

Each engine is planned with its own defaults, in its newest known version unless one is named, on
one device or on one rank of those asked for; what had to be set alike (the longest request, the
whole budget for the cache) is said in the notes.
"""

from app.engines.side_by_side.compare import RANKS, default_lengths, side_by_side
from app.engines.side_by_side.costs import format_settings, slope_of
from app.engines.side_by_side.values import EngineRow, Excess, Question, SideBySide

__all__ = [
    "RANKS",
    "EngineRow",
    "Excess",
    "Question",
    "SideBySide",
    "default_lengths",
    "format_settings",
    "side_by_side",
    "slope_of",
]
