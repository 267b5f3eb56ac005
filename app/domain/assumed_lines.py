"""Memory that no formula gives exactly, as ranges: activations, framework, communication, graphs.

The bounds were set so that measured runs lie inside them; each is a range because kernels, engines
and releases differ. A user who has a log replaces the line by its figure.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.capacity import Basis, Line
from app.domain.checks import checked_int
from app.domain.notes import Note
from app.domain.state import MAX_TOKENS
from app.domain.units import GIB, MIB

MAX_WIDTH = 2**24
MAX_SEQUENCES = 2**20
# Where nothing says how wide the model is.
UNKNOWN_ACTIVATIONS = (0, 4 * GIB)
# Measured non-torch memory of single-device servers: 0.05 to 0.35 GiB; contexts of newer
# releases with several libraries loaded come to about half a GiB more.
FRAMEWORK = (50 * MIB, 900 * MIB)
# NCCL channels and custom all-reduce buffers of one rank.
COMMUNICATION = (64 * MIB, 1536 * MIB)
# Captured graphs of a server's default batch sizes; none where eager execution is asked for.
GRAPHS = (0, 1536 * MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """The widths that decide how much one token's computation holds at once.

    `mlp` is the widest inner layer that one token passes, `experts` how many routed experts it
    passes, each `expert` wide; `attention` the width of all queries, keys and values.
    """

    hidden: int
    mlp: int
    attention: int
    vocabulary: int
    experts: int = 0
    expert: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "mlp", "attention", "vocabulary", "experts", "expert"):
            checked_int(getattr(self, name), name, low=0, high=MAX_WIDTH)


def activations(
    widths: Widths | None, batch_tokens: int, sequences: int, tensor_ranks: int
) -> Line:
    """Return the activations of the largest batch: an estimate, not a sum of tensors.

    Low: residual and hidden states, and the gate and up projections, in 16 bits. High: three inner
    and four hidden rows, queries, keys and values, every routed expert's rows, and the sampler's
    sort of a full batch of logits (2 + 4 × 4 + 8 bytes an entry).

    A 0.5B model of 896 × 4864 with 32,768 tokens in a batch took 1.61 GiB; a 3B model of
    3072 × 8192 with 2048 tokens and 256 sequences took 0.90 GiB.
    """
    checked_int(batch_tokens, "batch_tokens", low=1, high=MAX_TOKENS)
    checked_int(sequences, "max_sequences", low=1, high=MAX_SEQUENCES)
    if widths is None:
        low, high = UNKNOWN_ACTIVATIONS
        return Line(name="activations", low_bytes=low, high_bytes=high, basis=Basis.ASSUMED,
                    note=Note("activations_unknown", "Nothing says how wide the model is: 0 to "
                              "4 GiB are taken."))  # fmt: skip
    inner = max(widths.mlp, widths.experts * widths.expert)
    part = -(-inner // tensor_ranks)
    attention = -(-widths.attention // tensor_ranks)
    low = batch_tokens * 2 * (2 * widths.hidden + min(2 * part, widths.mlp or part))
    rows = 4 * widths.hidden + 3 * part + attention + widths.experts * widths.hidden
    logits = min(sequences, batch_tokens) * widths.vocabulary
    high = batch_tokens * 2 * rows + logits * 26
    note = Note(
        "activations_estimate",
        "An estimate for {tokens} tokens in a batch and {sequences} sequences; a profile run of "
        "the engine says exactly.",
        {"tokens": batch_tokens, "sequences": sequences},
    )
    return Line(name="activations", low_bytes=min(low, high), high_bytes=high,
                basis=Basis.ASSUMED, note=note)  # fmt: skip


def framework() -> Line:
    """Return the device context and libraries of one process."""
    low, high = FRAMEWORK
    note = Note("framework", "The device's context and the libraries of one process.")
    return Line(name="framework", low_bytes=low, high_bytes=high, basis=Basis.ASSUMED, note=note)


def communication(ranks: int) -> Line:
    """Return the buffers of collective operations: none for one rank."""
    if ranks == 1:
        note = Note("communication_none", "One rank has nobody to talk to.")
        return Line(name="communication", low_bytes=0, high_bytes=0, basis=Basis.COMPUTED,
                    note=note)  # fmt: skip
    low, high = COMMUNICATION
    note = Note("communication_buffers", "Buffers of collective operations between {ranks} ranks.",
                {"ranks": ranks})  # fmt: skip
    return Line(
        name="communication", low_bytes=low, high_bytes=high, basis=Basis.ASSUMED, note=note
    )


def graphs() -> Line:
    """Return the memory of captured CUDA graphs."""
    low, high = GRAPHS
    note = Note("graphs", "Captured graphs of the default batch sizes; none without capture.")
    return Line(name="cuda_graphs", low_bytes=low, high_bytes=high, basis=Basis.ASSUMED, note=note)
