"""Weights as a file's header lists them: exact bytes by layer and by dtype.

A header names tensors and not what they are for, so a group says only which layer holds it and
whether it belongs to routed experts; that is what pipeline stages need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.weight_formats import StoredTensor

# Four petabytes in FP32: no total in bytes passes 2^53, which JavaScript still tells apart.
MAX_PARAMETERS = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """Tensors of one dtype that stand together.

    `layer` is a decoder layer's index; without one, `is_last` tells the output's side from the
    input's.
    """

    layer: int | None
    is_last: bool
    is_expert: bool
    dtype: str
    tensors: int
    elements: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """All groups of one or several headers; `basis` says what was read."""

    groups: tuple[StoredGroup, ...]
    basis: str

    @property
    def size_bytes(self) -> int:
        """Return the exact bytes of all tensors."""
        return sum(group.size_bytes for group in self.groups)

    @property
    def elements(self) -> int:
        """Return the number of stored elements; packed bytes count as bytes."""
        return sum(group.elements for group in self.groups)

    @property
    def tensors(self) -> int:
        """Return the number of tensors."""
        return sum(group.tensors for group in self.groups)

    @property
    def num_layers(self) -> int:
        """Return one more than the highest layer that any tensor names."""
        return max((group.layer + 1 for group in self.groups if group.layer is not None), default=0)

    @property
    def by_dtype(self) -> tuple[StoredTensor, ...]:
        """Return totals by dtype in order of first appearance."""
        sums: dict[str, StoredTensor] = {}
        for group in self.groups:
            own = StoredTensor(
                dtype=group.dtype, elements=group.elements, size_bytes=group.size_bytes
            )
            before = sums.get(group.dtype)
            sums[group.dtype] = own if before is None else before.plus(own)
        return tuple(sums.values())

    def stage_bytes(self, first_layer: int, last_layer: int) -> int:
        """Return the bytes of a pipeline stage that holds these layers, both included.

        The first stage holds what feeds the layers, the last what follows them.

        Raises:
            OutOfRange: for layers that the file does not have.

        """
        last = self.num_layers - 1
        checked_int(last_layer, "last_layer", low=0, high=max(last, 0))
        checked_int(first_layer, "first_layer", low=0, high=last_layer)
        return sum(
            group.size_bytes
            for group in self.groups
            if _is_held(group, first_layer, last_layer, is_last_stage=last_layer == last)
        )

    def joined(self, others: Iterable[StoredWeights]) -> StoredWeights:
        """Return the sum over several files: the parts of a split, the shards of a checkpoint."""
        groups = (*self.groups, *(group for other in others for group in other.groups))
        return StoredWeights(groups=merged(groups), basis=self.basis)


def _is_held(group: StoredGroup, first: int, last: int, *, is_last_stage: bool) -> bool:
    if group.layer is not None:
        return first <= group.layer <= last
    return is_last_stage if group.is_last else first == 0


def merged(groups: Iterable[StoredGroup]) -> tuple[StoredGroup, ...]:
    """Return groups with equal ones added up."""
    sums: dict[tuple[int | None, bool, bool, str], list[int]] = {}
    for group in groups:
        key = (group.layer, group.is_last, group.is_expert, group.dtype)
        row = sums.setdefault(key, [0, 0, 0])
        row[0] += group.tensors
        row[1] += group.elements
        row[2] += group.size_bytes
    return tuple(
        StoredGroup(layer=layer, is_last=is_last, is_expert=is_expert, dtype=dtype, tensors=tensors,
                    elements=elements, size_bytes=size)
        for (layer, is_last, is_expert, dtype), (tensors, elements, size) in sums.items()
    )  # fmt: skip
