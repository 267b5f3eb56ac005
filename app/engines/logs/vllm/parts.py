"""Of which groups the blocks of one request are, where there are several or a draft joins in."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.notes import Note
from app.engines.vllm import PlannedGroup, VllmPlan
from app.engines.vllm.specs import MambaSpec


def request_parts(plan: VllmPlan) -> Iterator[Note]:
    """Yield what the blocks of a full-length request are made of, group by group."""
    if len(plan.groups) > 1:
        yield Note(
            "request_parts",
            "a request of {length} tokens takes {parts}: blocks × layers of each group",
            {
                "length": f"{plan.max_model_len:,}",
                "parts": " + ".join(_parts(plan.groups)),
            },
        )
    draft = {name for layers in plan.layer_specs for name in layers if name.startswith("draft.")}
    for group in plan.groups:
        own = draft.intersection(group.layer_names)
        if own:
            yield Note(
                "draft_in_group",
                "{draft} of the {layers} layers of its {kind} group are of multi-token prediction:"
                " each is taken to keep what the model's last layer with positions keeps",
                {"draft": len(own), "layers": group.layers, "kind": group.kind},
            )
    yield from _states(plan)


def _parts(groups: tuple[PlannedGroup, ...]) -> Iterator[str]:
    """Yield like groups together, without words: 3 × (6 × 16 mamba)."""
    counted: dict[tuple[int, int, str], int] = {}
    for group in groups:
        key = (group.blocks_per_request, group.layers, group.kind)
        counted[key] = counted.get(key, 0) + 1
    for (blocks, layers, kind), number in counted.items():
        own = f"{blocks:,} × {layers} {kind}"
        yield f"{number} × ({own})" if number > 1 else own


def _states(plan: VllmPlan) -> Iterator[Note]:
    """Yield why a state takes more than one block, where it does."""
    for layers in plan.layer_specs[:1]:
        spec = next((item for item in layers.values() if isinstance(item, MambaSpec)), None)
        if spec is None or spec.cache_mode == "all" or spec.blocks_per_request(plan.bounds) == 1:
            continue
        yield Note(
            "state_blocks_each",
            "a state takes {blocks} blocks a group: 1 that runs, {aligned} for prefix caching,"
            " {speculative} for speculated tokens, {checkpoints} for a prefill's checkpoint",
            {
                "blocks": spec.blocks_per_request(plan.bounds),
                "aligned": int(spec.cache_mode == "align"),
                "speculative": spec.speculative_blocks,
                "checkpoints": spec.checkpoint_blocks,
            },
        )
