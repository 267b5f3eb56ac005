"""Names of the kinds of cache layer, as `layer_types` gives them (Transformers 5.24)."""

from __future__ import annotations

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
INDEXED, LINEAR, DUMMY = "indexed_attention", "linear_attention", "dummy"
HYBRID, HYBRID_SLIDING = "hybrid", "hybrid_sliding"
CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"
SPARSE, REFERENCE = "minimax_m3_sparse", "reference_sliding_attention"
