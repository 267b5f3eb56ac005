"""Small stories of a block pool, ready to load: each shows one thing, both ways."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.notes import Note
from app.domain.pool_events import PoolEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolScenario:
    """A pool, what happens to it, and what to look for."""

    name: str
    title: Note
    num_blocks: int
    block_size: int
    events: tuple[PoolEvent, ...]


def _tokens(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


_SHARE_AND_DIVERGE = PoolScenario(
    name="share_and_diverge",
    title=Note(
        "scenario_share_and_diverge",
        "Two requests share the two full blocks of a prompt of eight tokens, then each goes its "
        "own way.",
    ),
    num_blocks=10,
    block_size=4,
    events=(
        PoolEvent(op="allocate", request="a", tokens=(*_tokens(1, 8), 21, 22)),
        PoolEvent(op="allocate", request="b", tokens=(*_tokens(1, 8), 31)),
        PoolEvent(op="append", request="a", tokens=(23, 24)),
        PoolEvent(op="append", request="b", tokens=(32, 33, 34, 35)),
        PoolEvent(op="free", request="a"),
        PoolEvent(op="lookup", tokens=(*_tokens(1, 8), 21, 22, 23, 24, 25)),
        PoolEvent(op="free", request="b"),
    ),
)

_FULLY_MATCHED = PoolScenario(
    name="fully_matched",
    title=Note(
        "scenario_fully_matched",
        "A prompt that is cached to its last block still computes its last position, and in the "
        "engine the whole last block; with one token more nothing is computed twice.",
    ),
    num_blocks=8,
    block_size=4,
    events=(
        PoolEvent(op="allocate", request="first", tokens=_tokens(1, 12)),
        PoolEvent(op="free", request="first"),
        PoolEvent(op="allocate", request="again", tokens=_tokens(1, 12)),
        PoolEvent(op="free", request="again"),
        PoolEvent(op="allocate", request="longer", tokens=_tokens(1, 13)),
        PoolEvent(op="free", request="longer"),
    ),
)

# Which beam of the step before each of four beams continues. A beam that nobody continues ends; the
# first to continue one keeps its name, the others are forks.
_BEAM_PARENTS = (
    (0, 0, 1, 2),
    (0, 1, 2, 3),
    (1, 1, 1, 3),
    (0, 1, 2, 3),
    (0, 0, 2, 2),
    (0, 1, 2, 3),
    (3, 3, 0, 1),
    (0, 1, 2, 3),
    (2, 2, 2, 2),
    (0, 1, 2, 3),
)


def _beam_events() -> tuple[PoolEvent, ...]:
    beams = ["beam 0", "beam 1", "beam 2", "beam 3"]
    events = [
        PoolEvent(op="allocate", request=beams[0], tokens=_tokens(1, 10)),
        PoolEvent(op="fork", request=beams[0], children=tuple(beams[1:])),
    ]
    names = 4
    for step, parents in enumerate(_BEAM_PARENTS):
        after: list[str] = []
        for parent in parents:
            if beams[parent] not in after:
                after.append(beams[parent])
                continue
            child = f"beam {names}"
            names += 1
            events.append(PoolEvent(op="fork", request=beams[parent], children=(child,)))
            after.append(child)
        events.extend(PoolEvent(op="free", request=beam) for beam in beams if beam not in after)
        events.extend(
            PoolEvent(op="append", request=beam, tokens=(100 * (step + 1) + place,))
            for place, beam in enumerate(after)
        )
        beams = after
    return tuple(events)


_BEAM_OF_FOUR = PoolScenario(
    name="beam_of_four",
    title=Note(
        "scenario_beam_of_four",
        "Four beams over ten steps from a prompt of ten tokens: losing beams end, winning ones "
        "fork. The textbook copies a shared last block before writing; the engine computes it "
        "again.",
    ),
    num_blocks=24,
    block_size=4,
    events=_beam_events(),
)

_EVICTION_STORM = PoolScenario(
    name="eviction_storm",
    title=Note(
        "scenario_eviction_storm",
        "Short requests run through a small pool: each takes the blocks freed longest ago, and "
        "when the first prompt comes back, nothing of it is left.",
    ),
    num_blocks=9,
    block_size=4,
    events=(
        *(
            PoolEvent(
                op=op, request=f"r{n}", tokens=_tokens(100 * n, 8) if op == "allocate" else ()
            )
            for n in range(1, 7)
            for op in ("allocate", "free")
        ),
        PoolEvent(op="lookup", tokens=(*_tokens(600, 8), 1)),
        PoolEvent(op="lookup", tokens=(*_tokens(100, 8), 1)),
        PoolEvent(op="allocate", request="r1 again", tokens=(*_tokens(100, 8), 1)),
    ),
)

_ONE_TOO_FEW = PoolScenario(
    name="one_block_too_few",
    title=Note(
        "scenario_one_block_too_few",
        "Two requests fill a pool to its last block; the next token of the first has no place.",
    ),
    num_blocks=7,
    block_size=4,
    events=(
        PoolEvent(op="allocate", request="a", tokens=_tokens(1, 12)),
        PoolEvent(op="allocate", request="b", tokens=_tokens(50, 9)),
        PoolEvent(op="allocate", request="c", tokens=_tokens(90, 5)),
        PoolEvent(op="append", request="b", tokens=(60, 61, 62)),
        PoolEvent(op="append", request="a", tokens=(13,)),
        PoolEvent(op="append", request="a", tokens=(14, 15, 16, 17)),
        PoolEvent(op="free", request="a"),
        PoolEvent(op="resume", request="b"),
        PoolEvent(op="free", request="b"),
    ),
)

SCENARIOS = (_SHARE_AND_DIVERGE, _FULLY_MATCHED, _BEAM_OF_FOUR, _EVICTION_STORM, _ONE_TOO_FEW)
