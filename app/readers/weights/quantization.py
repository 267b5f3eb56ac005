"""Which matrices a `quantization_config` quantises, and how each is then stored.

Rules are those of the loaders that write and read such checkpoints: Transformers 5.24.0
(integrations/, quantizers/), vLLM 0.33.0 (layers/quantization/), ModelOpt, compressed-tensors. By
default embeddings, routers, the output projection, what joins towers and drafts to the decoder, and
the towers themselves stay as they are; the config's lists say more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.domain.errors import Missing, Unsupported, shown
from app.domain.weight_formats import (
    BitsAndBytes4,
    BlockScaled,
    GroupInteger,
    MicroScaled,
    TensorScaled,
    WeightFormat,
)
from app.domain.weight_lines import Component, Kind, WeightBlock, WeightLine, is_usually_quantised
from app.readers.weights.fields import Fields
from app.readers.weights.module_names import NameMatcher

# Composite checkpoints spell the decoder's root in these ways; a list may use any.
_ROOTS = ("model.language_model.", "language_model.model.", "model.")
NVFP4 = MicroScaled(group=16, scale="F8_E4M3", scalars=2)
NVFP4_WEIGHT_ONLY = MicroScaled(group=16, scale="F8_E4M3", scalars=1)
# DeepSeek V4 (`expert_dtype` fp4): two values in an I8, an E8M0 scale for each 32.
_V4_EXPERTS = MicroScaled(packed="I8", scale="F8_E8M0")
_MXFP4_GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A format, and the modules that it is for: those named, or every linear layer (None).

    `experts_only` narrows every linear layer to the routed experts.
    """

    format: WeightFormat
    targets: NameMatcher | None = None
    experts_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """All of a config's rules, first match first, and the modules that stay as they are."""

    method: str
    rules: tuple[Rule, ...]
    ignored: NameMatcher

    @property
    def looks_at_names(self) -> bool:
        """Return whether any list decides, so that names are needed."""
        return not self.ignored.is_empty or any(rule.targets is not None for rule in self.rules)

    def choose(self, block: WeightBlock, layer: int | None, line: WeightLine) -> WeightFormat:
        """Return the format of a line in a layer."""
        if line.kind is not Kind.MATRIX:
            return line.format
        names: tuple[str, ...] = ()
        if self.looks_at_names:
            names = module_names(block, layer, line)
        if any(self.ignored.matches(name) for name in names):
            return line.format
        for rule in self.rules:
            if rule.targets is None:
                if _is_meant(rule, block, line):
                    return rule.format
            elif any(rule.targets.matches(name) for name in names):
                return rule.format
        return line.format


def _is_meant(rule: Rule, block: WeightBlock, line: WeightLine) -> bool:
    if rule.experts_only and line.component is not Component.EXPERTS:
        return False
    return is_usually_quantised(block, line)


# Loaders rename some modules; a list may use their names.
_ALIASES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj", "wq_a": "fused_wqa_wkv",
            "wkv": "fused_wqa_wkv"}  # fmt: skip


def module_names(block: WeightBlock, layer: int | None, line: WeightLine) -> tuple[str, ...]:
    """Return a module's full names: under each usual root, and as loaders rename it.

    The first expert stands for all of them.
    """
    module = line.name.removesuffix(".weight").replace("*", "0")
    prefix = block.prefix.format(layer=layer) if layer is not None and block.prefix else ""
    name = f"{prefix}.{module}" if prefix else module
    names: tuple[str, ...] = (name,)
    if name.startswith("model."):
        names = tuple(root + name.removeprefix("model.") for root in _ROOTS)
    path, _, last = name.rpartition(".")
    return (*names, f"{path}.{_ALIASES[last]}") if last in _ALIASES else names


def read_scheme(fields: Fields) -> Scheme | None:
    """Return the scheme of a config's `quantization_config`, or None when it has none.

    Raises:
        Unsupported: for a method that is not known.
        Missing: when a needed size is absent.

    """
    holder = fields
    if not holder.says("quantization_config") and not holder.says("compression_config"):
        if not fields.says("text_config"):
            return None
        holder = fields.part("text_config")
        if not holder.says("quantization_config"):
            return None
    name = "quantization_config" if holder.says("quantization_config") else "compression_config"
    config = holder.part(name)
    method = _method(config)
    reader = _METHODS.get(method)
    if reader is None:
        raise Unsupported("{field} {value} is not known; known are {known}",
                          field=config.at("quant_method"), value=shown(method),
                          known=", ".join(sorted(_METHODS)))  # fmt: skip
    return reader(config, fields)


def _method(config: Fields) -> str:
    """Return the method: named, or told by what the config holds (GPTQ files of 2023, ModelOpt)."""
    method = config.word("quant_method")
    if config.says("quantized_layers") or (method is None and config.says("quant_algo")):
        return "modelopt"
    if method is None and config.says("bits") and config.says("group_size"):
        return "gptq"
    if method is None:
        raise Missing("{field} is needed: it says how weights are stored",
                      field=config.at("quant_method"))  # fmt: skip
    return method


def _names(config: Fields, *fields: str) -> NameMatcher:
    """Return the modules that any of these lists name."""
    items: list[object] = []
    for name in fields:
        _, value = config.find(name)
        if isinstance(value, list | tuple):
            items.extend(value)
    return NameMatcher.of(items, config.at(fields[0]))


def _fp8(config: Fields, model: Fields) -> Scheme:
    """FP8 with tiles (`weight_block_size`), or one scale a matrix and one for a static input."""
    blocks = config.sizes("weight_block_size", length=2)
    if blocks is None:
        static = config.word("activation_scheme") == "static"
        chosen: WeightFormat = TensorScaled(scale="BF16" if static else "F32",
                                            input_scales=1 if static else 0)  # fmt: skip
    else:
        chosen = BlockScaled(block_rows=blocks[0], block_columns=blocks[1],
                             scale=_tile_scale(config, model))  # fmt: skip
    rules: tuple[Rule, ...] = (Rule(format=chosen),)
    if model.word("expert_dtype") == "fp4":
        rules = (Rule(format=_V4_EXPERTS, experts_only=True), *rules)
    return Scheme(
        method="fp8",
        rules=rules,
        ignored=_names(config, "modules_to_not_convert", "ignored_layers"),
    )


def _tile_scale(config: Fields, model: Fields) -> str:
    """Return the dtype of tile scales, which the config does not say.

    Qwen's FP8 checkpoints keep BF16 ones, DeepSeek V4's E8M0 ones, all others seen keep F32.
    """
    if model.model_type.startswith("qwen"):
        return "BF16"
    is_v4 = model.model_type == "deepseek_v4" and config.word("scale_fmt") == "ue8m0"
    return "F8_E8M0" if is_v4 else "F32"


def _fbgemm(config: Fields, _model: Fields) -> Scheme:
    """FBGEMM's FP8: one F32 scale for each row."""
    return Scheme(method="fbgemm_fp8", rules=(Rule(format=TensorScaled(per_row=True)),),
                  ignored=_names(config, "modules_to_not_convert"))  # fmt: skip


def _gptq(config: Fields, _model: Fields) -> Scheme:
    """GPTQ: packed integers with zero points, also when symmetric, and an index for each column."""
    group = config.size_or_none("group_size", low=-1)
    chosen = GroupInteger(bits=config.size("bits", high=8), group=max(group or 0, 0),
                          column_index=True)  # fmt: skip
    return Scheme(method="gptq", rules=(Rule(format=chosen),),
                  ignored=_names(config, "modules_to_not_convert"))  # fmt: skip


def _awq(config: Fields, _model: Fields) -> Scheme:
    """AWQ: packed integers with zero points."""
    spelling = "bits" if config.says("bits") else "w_bit"
    group = config.size_or_none("group_size" if config.says("group_size") else "q_group_size",
                                low=-1)  # fmt: skip
    chosen = GroupInteger(bits=config.size(spelling, high=8), group=max(group or 0, 0))
    return Scheme(method="awq", rules=(Rule(format=chosen),),
                  ignored=_names(config, "modules_to_not_convert"))  # fmt: skip


def _bitsandbytes(config: Fields, _model: Fields) -> Scheme:
    """bitsandbytes: NF4 or FP4 blocks, or INT8 with a scale for each row."""
    four = config.flag("load_in_4bit") or config.flag("_load_in_4bit")
    chosen: WeightFormat
    if four:
        chosen = BitsAndBytes4(double_quantised=config.flag("bnb_4bit_use_double_quant"))
    else:
        chosen = TensorScaled(weight="I8", per_row=True)
    return Scheme(method="bitsandbytes", rules=(Rule(format=chosen),),
                  ignored=_names(config, "llm_int8_skip_modules"))  # fmt: skip


def _mxfp4(config: Fields, _model: Fields) -> Scheme:
    """MXFP4 as gpt-oss ships it: the experts alone, a U8 scale for each 32 values."""
    return Scheme(method="mxfp4", rules=(Rule(format=MicroScaled(), experts_only=True),),
                  ignored=_names(config, "modules_to_not_convert"))  # fmt: skip


def _compressed(config: Fields, _model: Fields) -> Scheme:
    """compressed-tensors: groups of targets, each with its own weights' format."""
    rules = []
    for group in _groups(config):
        weights = group.part("weights")
        packed = group.word("format") or config.word("format") or ""
        rules.append(Rule(format=_compressed_format(weights, packed),
                          targets=_targets(group)))  # fmt: skip
    return Scheme(method="compressed-tensors", rules=tuple(rules),
                  ignored=_names(config, "ignore"))  # fmt: skip


def _groups(config: Fields) -> list[Fields]:
    groups = config.part("config_groups")
    return [groups.part(name) for name in groups.raw]


def _targets(group: Fields) -> NameMatcher | None:
    """Return the named targets, or None for the class of all linear layers."""
    _, value = group.find("targets")
    if not isinstance(value, list | tuple) or "Linear" in value:
        return None
    return NameMatcher.of(value, group.at("targets"))


def _compressed_format(weights: Fields, packed: str) -> WeightFormat:
    bits, kind = weights.size("num_bits", high=16), weights.word("type") or "int"
    strategy = weights.word("strategy") or ("group" if weights.says("group_size") else "tensor")
    group = weights.count("group_size")
    if kind == "float" and bits == 4:  # noqa: PLR2004  # FP4
        return MicroScaled(group=_MXFP4_GROUP) if group == _MXFP4_GROUP else NVFP4
    if strategy == "block":
        shape = weights.sizes("block_structure", length=2) or (128, 128)
        return BlockScaled(block_rows=shape[0], block_columns=shape[1], scale="BF16")
    name = "F8_E4M3" if kind == "float" else "I8"
    if bits == 8 and packed != "pack-quantized":  # noqa: PLR2004  # a byte an element
        return TensorScaled(weight=name, scale="BF16", per_row=strategy == "channel")
    if strategy not in {"group", "channel"}:
        raise Unsupported("{field} {value} of {bits} bits is not known",
                          field=weights.at("strategy"), value=shown(strategy),
                          bits=bits)  # fmt: skip
    return GroupInteger(bits=bits, group=group if strategy == "group" else 0, scale="BF16",
                        zero_points=not weights.flag("symmetric", otherwise=True),
                        shape_note=True)  # fmt: skip


_ALGORITHMS: dict[str, WeightFormat] = {
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4_WEIGHT_ONLY,
    "FP8": TensorScaled(input_scales=1),
    "MXFP8": BlockScaled(block_rows=1, block_columns=32, scale="U8"),
    "MXFP4": MicroScaled(),
}


def _algorithm(config: Fields, name: str) -> WeightFormat:
    found = _ALGORITHMS.get(name)
    if found is None:
        raise Unsupported("{field} {value} is not known; known are {known}",
                          field=config.at("quant_algo"), value=shown(name),
                          known=", ".join(_ALGORITHMS))  # fmt: skip
    return found


def _modelopt(config: Fields, model: Fields) -> Scheme:
    """ModelOpt: one algorithm for all linear layers, or one for each layer named."""
    ignored = _names(config, "ignore", "exclude_modules")
    layers = config.raw.get("quantized_layers")
    if isinstance(layers, Mapping):
        rules = _by_layer(config, layers)
        if config.word("quant_method") == "fp8":
            # Experts quantised anew over a checkpoint in FP8 tiles, which stays for the rest.
            rules = (*rules, *_fp8(config, model).rules)
            ignored = NameMatcher()
        return Scheme(method="modelopt", rules=rules, ignored=ignored)
    return Scheme(
        method="modelopt",
        rules=(Rule(format=_algorithm(config, config.word("quant_algo") or "")),),
        ignored=ignored,
    )


def _by_layer(config: Fields, layers: Mapping[str, object]) -> tuple[Rule, ...]:
    names: dict[str, list[str]] = {}
    for name, value in layers.items():
        algorithm = value.get("quant_algo") if isinstance(value, Mapping) else None
        names.setdefault(str(algorithm), []).append(name)
    path = config.at("quantized_layers")
    return tuple(
        Rule(format=_algorithm(config, algorithm), targets=NameMatcher.of(_sorted(listed), path))
        for algorithm, listed in names.items()
    )


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names)


_METHODS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
