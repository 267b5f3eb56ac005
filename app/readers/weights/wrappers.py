"""Composite models: a decoder under `text_config` (or flat), towers, and projectors between.

The text part of a wrapper is what its ...ForCausalLM class holds. A tower whose config the file
does not give is left out, with a note, unless the class's own default is the usual one (LLaVA's
CLIP).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from app.domain.notes import Note
from app.domain.weight_lines import Component, Part, Place, WeightBlock
from app.readers.weights.family_towers import TOWERS
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, linear, norm, vector

OTHER = Component.OTHER
Projector = Callable[[Fields, Fields, Fields], Lines]


def not_counted(name: str) -> Note:
    """Return the note on a part that the file does not describe."""
    return Note("part_not_counted", "{field} is not in the file: its weights are not counted",
                {"field": name})  # fmt: skip


def no_projector(_wrapper: Fields, _tower: Fields, _text: Fields) -> Lines:
    """Return nothing: the tower ends in the decoder's width."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerRow:
    """A tower of a wrapper: where its config stands, and what joins it to the decoder.

    `kinds` maps model types that a config may name wrongly or not at all; "" is the usual one.
    """

    part: Part
    config: str = "vision_config"
    projector: Projector = no_projector
    by_default: bool = False
    always: str = ""

    def blocks(self, wrapper: Fields, text: Fields) -> tuple[list[WeightBlock], Note | None]:
        """Return the tower's and the projector's blocks, or a note on what is not counted."""
        given = wrapper.names(self.config)
        if given and not wrapper.says(self.config):
            return [], None
        if not given and not self.by_default:
            if not wrapper.facts.parts.get(self.config, {}).get("built"):
                return [], None
            return [], not_counted(self.config)
        fields = wrapper.part(self.config)
        kind = self.always or fields.model_type
        build = TOWERS.get(kind)
        if build is None:
            return [], Note(
                "part_not_counted",
                "{field} is a {kind}, whose shapes are not known: its weights are not counted",
                {"field": self.config, "kind": kind or Note("", "tower without a model_type")},
            )
        fields.model_type = kind
        blocks = build(fields)
        joins = self.projector(wrapper, fields, text)
        if joins:
            blocks.append(WeightBlock(part=Part.PROJECTOR, place=Place.FIRST, lines=joins))
        return blocks, None


# Projectors


def _llava(wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    """LLaVA: two matrices from the tower's width (times the layers it reads) to the decoder's."""
    bias, out = wrapper.flag("multimodal_projector_bias", otherwise=True), text.size("hidden_size")
    layers = wrapper.sizes("vision_feature_layer") if isinstance(
        wrapper.find("vision_feature_layer")[1], list) else None  # fmt: skip
    width = tower.size("hidden_size") * (len(layers) if layers else 1)
    at = "multi_modal_projector"
    return (
        *linear(f"{at}.linear_1", OTHER, out, width, bias=bias),
        *linear(f"{at}.linear_2", OTHER, out, out, bias=bias),
    )


def _mistral3(wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    """Mistral 3: a norm, a merger of neighbouring patches, two matrices."""
    bias, out = wrapper.flag("multimodal_projector_bias"), text.size("hidden_size")
    width, merge = tower.size("hidden_size"), wrapper.size("spatial_merge_size")
    at = "multi_modal_projector"
    return (
        *norm(f"{at}.norm", width),
        *linear(f"{at}.patch_merger.merging_layer", OTHER, width, width * merge**2),
        *linear(f"{at}.linear_1", OTHER, out, width, bias=bias),
        *linear(f"{at}.linear_2", OTHER, out, out, bias=bias),
    )


def _gemma3(_wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    width, at = tower.size("hidden_size"), "multi_modal_projector"
    return (
        *vector(f"{at}.mm_input_projection_weight", OTHER, width, text.size("hidden_size")),
        *norm(f"{at}.mm_soft_emb_norm", width),
    )


def _gemma4(_wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    return linear("embed_vision.embedding_projection", OTHER, text.size("hidden_size"),
                  tower.size("hidden_size"))  # fmt: skip


def _lfm2(wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    merged = tower.size("hidden_size") * wrapper.size("downsample_factor") ** 2
    inner, bias = wrapper.size("projector_hidden_size"), wrapper.flag("projector_bias")
    at = "multi_modal_projector"
    before = norm(f"{at}.layer_norm", merged, bias=True)
    return (
        *(before if wrapper.flag("projector_use_layernorm") else ()),
        *linear(f"{at}.linear_1", OTHER, inner, merged, bias=bias),
        *linear(f"{at}.linear_2", OTHER, text.size("hidden_size"), inner, bias=bias),
    )


def _llama4(_wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    return linear("multi_modal_projector.linear_1", OTHER, text.size("hidden_size"),
                  tower.size("vision_output_dim"))  # fmt: skip


def _mllama(_wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    return linear("multi_modal_projector", OTHER, text.size("hidden_size"),
                  tower.size("vision_output_dim"), bias=True)  # fmt: skip


def _kimi(wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    """Kimi K2.5: a norm on patches, then `merge_kernel_size` (2 x 2) of them to one vector."""
    kernel = tower.sizes("merge_kernel_size") or (2, 2)
    merged, at = tower.size("hidden_size") * math.prod(kernel), "mm_projector"
    return (
        *norm(f"{at}.pre_norm", wrapper.size("projection_hidden_size"), bias=True),
        *linear(f"{at}.in_proj", OTHER, merged, merged, bias=True),
        *linear(f"{at}.out_proj", OTHER, text.size("hidden_size"), merged, bias=True),
    )


def _minimax(wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    inner, out = wrapper.size("projector_hidden_size"), text.size("hidden_size")
    merged = out * tower.size("spatial_merge_size") ** 2
    shapes = {"linear_1": (inner, tower.size("hidden_size")), "linear_2": (out, inner),
              "merge_linear_1": (inner, merged), "merge_linear_2": (out, inner)}  # fmt: skip
    return tuple(
        line
        for name, (rows, columns) in shapes.items()
        for line in linear(f"multi_modal_projector.{name}", OTHER, rows, columns, bias=True)
    )


def _muse(wrapper: Fields, _tower: Fields, text: Fields) -> Lines:
    inner = wrapper.size("projector_hidden_size")
    return (
        *linear("vision_adapter.fc1", OTHER, inner, wrapper.size("out_hidden_size")),
        *linear("vision_adapter.fc2", OTHER, inner, inner),
        *linear("vision_projection", OTHER, text.size("hidden_size"), inner),
    )


def _step(wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    return linear("multi_modal_projector", OTHER, text.size("hidden_size"),
                  4 * tower.size("hidden_size"), bias=wrapper.flag("projector_bias"))  # fmt: skip


def _voxtral(_wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    """Voxtral: four audio frames, side by side as the network's width, to one vector."""
    out = text.size("hidden_size")
    return (
        *linear("multi_modal_projector.linear_1", OTHER, out, tower.size("encoder_ffn_dim")),
        *linear("multi_modal_projector.linear_2", OTHER, out, out),
    )


def _llava_next(wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    """LLaVA-NeXT: LLaVA's matrices, and a vector that ends each line of an image."""
    return (
        *_llava(wrapper, tower, text),
        *vector("image_newline", OTHER, text.size("hidden_size")),
    )


def _paligemma(wrapper: Fields, tower: Fields, _text: Fields) -> Lines:
    return linear("multi_modal_projector.linear", OTHER, wrapper.size("projection_dim"),
                  tower.size("hidden_size"), bias=True)  # fmt: skip


def _qwen2_audio(_wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    return linear("multi_modal_projector.linear", OTHER, text.size("hidden_size"),
                  tower.size("d_model"), bias=True)  # fmt: skip


def _internvl(_wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    """InternVL: a norm and two matrices on four patches side by side."""
    merged, out = 4 * tower.size("hidden_size"), text.size("hidden_size")
    return (
        *norm("mlp1.0", merged, bias=True),
        *linear("mlp1.1", OTHER, out, merged, bias=True),
        *linear("mlp1.3", OTHER, out, out, bias=True),
    )


def _phi3_vision(_wrapper: Fields, tower: Fields, text: Fields) -> Lines:
    """Phi-3 Vision: two matrices on four patches, and a separator for each kind of line."""
    merged, out = 4 * tower.size("hidden_size"), text.size("hidden_size")
    at = "model.vision_embed_tokens"
    return (
        *linear(f"{at}.img_projection.0", OTHER, out, merged, bias=True),
        *linear(f"{at}.img_projection.2", OTHER, out, out, bias=True),
        *vector(f"{at}.glb_GN", OTHER, 1, 1, merged),
        *vector(f"{at}.sub_GN", OTHER, 1, 1, 1, merged),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """A composite model type: where its text stands, and its towers."""

    towers: tuple[TowerRow, ...] = ()
    text: str = "text_config"


def _seen(projector: Projector = no_projector, *, always: str = "", by_default: bool = False
          ) -> Wrapper:  # fmt: skip
    row = TowerRow(part=Part.VISION, projector=projector, always=always, by_default=by_default)
    return Wrapper(towers=(row,))


WRAPPERS: dict[str, Wrapper] = {
    "llava": _seen(_llava, by_default=True),
    "llava_next": _seen(_llava_next, by_default=True),
    "llava_next_video": _seen(_llava_next, by_default=True),
    "llava_onevision": _seen(_llava_next),
    "paligemma": _seen(_paligemma),
    "internvl_chat": Wrapper(
        towers=(TowerRow(part=Part.VISION, projector=_internvl),), text="llm_config"
    ),
    "phi3_v": _seen(_phi3_vision, by_default=True),
    "qwen2_audio": Wrapper(
        towers=(TowerRow(part=Part.AUDIO, config="audio_config", projector=_qwen2_audio),)
    ),
    "mistral3": _seen(_mistral3),
    "gemma3": _seen(_gemma3),
    "gemma4": Wrapper(
        towers=(
            TowerRow(part=Part.VISION, projector=_gemma4),
            TowerRow(part=Part.AUDIO, config="audio_config"),
        )
    ),
    "gemma3n": Wrapper(
        towers=(
            TowerRow(part=Part.VISION),
            TowerRow(part=Part.AUDIO, config="audio_config"),
        )
    ),
    "lfm2_vl": _seen(_lfm2),
    "llama4": _seen(_llama4),
    "mllama": _seen(_mllama),
    "kimi_k25": _seen(_kimi, always="kimi_k25_vision"),
    "minimax_m3_vl": _seen(_minimax, always="minimax_m3_vl_vision"),
    "muse_glimmer": _seen(_muse),
    "step3p7": _seen(_step),
    "qwen2_vl": _seen(always="qwen2_vl_vision"),
    "qwen2_5_vl": _seen(always="qwen2_5_vl_vision"),
    "qwen3_vl": _seen(always="qwen3_vl_vision"),
    "qwen3_vl_moe": _seen(always="qwen3_vl_moe_vision"),
    "qwen3_5": _seen(always="qwen3_5_vision"),
    "qwen3_5_moe": _seen(always="qwen3_5_moe_vision"),
    "exaone4_5": _seen(always="exaone4_5_vision"),
    "glm4v": _seen(always="glm4v_vision"),
    "glm4v_moe": _seen(always="glm4v_moe_vision"),
    "glm5_next": _seen(always="glm5_next_vision"),
    "voxtral": Wrapper(
        towers=(TowerRow(part=Part.AUDIO, config="audio_config", projector=_voxtral),)
    ),
    "ministral3": _seen(_mistral3),
}
