"""Layers of multi-token prediction: in the checkpoint, beside the model, and off by default."""

from __future__ import annotations

from app.domain.state import Layer
from app.readers.hf_config.family import LayersOf
from app.readers.hf_config.fields import Fields

MAX_DRAFT_LAYERS = 64
COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "_num_mtp_layers", "mtp_num_hidden_layers")


def draft_count(fields: Fields) -> int:
    """Return how many such layers the file names; what its class would assume does not count.

    MiniMax-M2 gives modules, each of `mtp_transformer_layers` layers.
    """
    for name in COUNTS:
        if fields.says(name):
            return fields.integer(name, low=0, high=MAX_DRAFT_LAYERS)
    if fields.says("num_mtp_modules"):
        each = fields.integer_or_none("mtp_transformer_layers", low=0, high=MAX_DRAFT_LAYERS)
        modules = fields.integer("num_mtp_modules", low=0, high=MAX_DRAFT_LAYERS)
        return modules * (1 if each is None else each)
    return 0


def pass_over_draft(fields: Fields) -> None:
    """Say that layers of multi-token prediction are not counted where no rule says what they keep.

    The model's own layers do not depend on them.
    """
    if any(fields.says(name) for name in (*COUNTS, "num_mtp_modules")) and draft_count(fields):
        fields.assume(
            "draft_passed_over",
            "{count} layers of multi-token prediction are not counted: what they keep in a "
            "{model_type} is not known",
            count=draft_count(fields),
            model_type=fields.model_type,
        )


def like_the_last(layers: LayersOf) -> LayersOf:
    """Return the reader of draft layers that keep what the model's last layer keeps.

    So in DeepSeek-V3 (technical report, section 2.2: each module has one block like the model's),
    and in the families that copy it.
    """

    def draft_of(fields: Fields) -> list[Layer]:
        count = draft_count(fields)
        if not count:
            return []
        fields.note(
            "draft_layers",
            "{count} layers of multi-token prediction are counted apart; each is taken to keep "
            "what the last layer keeps",
            count=count,
        )
        return [layers(fields)[-1]] * count

    return draft_of
