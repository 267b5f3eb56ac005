"""Names of the kinds of cache layer, as `layer_types` gives them (Transformers 5.24)."""

from __future__ import annotations

from dataclasses import dataclass

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
INDEXED, LINEAR, DUMMY = "indexed_attention", "linear_attention", "dummy"
HYBRID, HYBRID_SLIDING = "hybrid", "hybrid_sliding"
CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"
SPARSE, REFERENCE = "minimax_m3_sparse", "reference_sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """All that tells one layer of a model from another; equal layers cache the same tensors.

    `own` are integers that `per_layer_config` sets for the layer alone. `reads_keys` names a layer
    that reads another's keys and values, `reads_index` one that reads another's index keys,
    `rotates` one with rotary positions, and `ngrams` one with n-gram embeddings.
    """

    kind: str
    window: int | None = None
    own: tuple[tuple[str, int | None], ...] = ()
    reads_keys: bool = False
    reads_index: bool = False
    rotates: bool = True
    ngrams: bool = False

    def integer(self, name: str) -> int | None:
        """Return an integer set for this layer alone, or None."""
        return dict(self.own).get(name)
