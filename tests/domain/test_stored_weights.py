"""Weights added up from headers."""

from __future__ import annotations

import pytest

from app.domain.errors import OutOfRange
from app.domain.stored_weights import StoredGroup, StoredWeights, merged
from app.domain.weight_formats import StoredTensor


def group(
    layer: int | None,
    size_bytes: int,
    *,
    is_last: bool = False,
    is_expert: bool = False,
    dtype: str = "BF16",
) -> StoredGroup:
    """Return one tensor's group."""
    return StoredGroup(layer=layer, is_last=is_last, is_expert=is_expert, dtype=dtype, tensors=1,
                       elements=size_bytes // 2, size_bytes=size_bytes)  # fmt: skip


WEIGHTS = StoredWeights(
    groups=merged(
        [
            group(None, 100),
            group(0, 10),
            group(0, 20),
            group(1, 30, is_expert=True, dtype="F8_E4M3"),
            group(2, 50),
            group(None, 7, is_last=True),
        ]
    ),
    basis="test",
)


def test_sums() -> None:
    """Bytes, elements, tensors and layers are sums over groups."""
    assert WEIGHTS.size_bytes == 217
    assert WEIGHTS.elements == 50 + 15 + 15 + 25 + 3
    assert WEIGHTS.tensors == 6
    assert len(WEIGHTS.groups) == 5
    assert WEIGHTS.num_layers == 3
    assert WEIGHTS.by_dtype == (
        StoredTensor(dtype="BF16", elements=93, size_bytes=187),
        StoredTensor(dtype="F8_E4M3", elements=15, size_bytes=30),
    )


def test_stages() -> None:
    """The first stage holds what feeds the layers, the last what follows; stages add up."""
    assert WEIGHTS.stage_bytes(0, 0) == 130
    assert WEIGHTS.stage_bytes(1, 1) == 30
    assert WEIGHTS.stage_bytes(2, 2) == 57
    assert WEIGHTS.stage_bytes(0, 2) == WEIGHTS.size_bytes
    for first, last in ((2, 1), (0, 3)):
        with pytest.raises(OutOfRange):
            WEIGHTS.stage_bytes(first, last)


def test_files_are_joined() -> None:
    """The shards of a checkpoint add up group by group."""
    both = WEIGHTS.joined([WEIGHTS])
    assert both.size_bytes == 434
    assert len(both.groups) == len(WEIGHTS.groups)
    assert StoredWeights(groups=(), basis="nothing").num_layers == 0
