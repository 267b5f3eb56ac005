"""The plan: every tensor that a run leaves in the cache, and what it takes while it grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.domain.errors import DomainError, Missing
from app.domain.notes import Note
from app.domain.state import MAX_TOKENS
from app.engines.transformers.build import build
from app.engines.transformers.cache import CacheLayer, HeldTensor, KeyValue, Run
from app.engines.transformers.model import Model, find_model
from app.engines.transformers.odd import HiddenStates
from app.engines.transformers.overhead import Overhead, overhead_of
from app.engines.transformers.quantized import quantized
from app.engines.transformers.settings import VERSION, Settings, read_settings, torch_dtype
from app.engines.transformers.static import static_layers

NOT_COUNTED = (
    Note("weights", "the model's weights"),
    Note("activations", "activations and attention workspace of a forward pass"),
    Note("bookkeeping", "position counters that a cache keeps as small tensors"),
    Note("allocator", "what the device's allocator rounds up or leaves fragmented"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """What one cache layer holds after the run; tensors that alias another count once."""

    index: int
    kind: str
    tensors: tuple[HeldTensor, ...]

    @property
    def bytes(self) -> int:
        """Return the bytes of its elements."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.alias_of is None)

    @property
    def storage_bytes(self) -> int:
        """Return what stays allocated for it."""
        return sum(tensor.storage_bytes for tensor in self.tensors if tensor.alias_of is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersPlan:
    """The answer.

    `prefill_bytes` and `prefill_storage_bytes` are those after the prompt alone: a sliding layer
    then still holds all of it. `growth_peak_bytes` is what one more token takes for a moment.
    `overhead` compares with what the model needs, or says why it cannot.
    """

    version: str
    cache: str
    run: Run
    layers: tuple[PlannedLayer, ...]
    prefill_bytes: int
    prefill_storage_bytes: int
    growth_peak_bytes: int
    overhead: Overhead
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...] = NOT_COUNTED

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of all tensors after the last step."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def storage_bytes(self) -> int:
        """Return what stays allocated after the last step."""
        return sum(layer.storage_bytes for layer in self.layers)

    @property
    def formula(self) -> str:
        """Return the sum over the layers, equal neighbours joined."""
        terms: list[tuple[int, int]] = []
        for layer in self.layers:
            if terms and terms[-1][1] == layer.bytes:
                terms[-1] = (terms[-1][0] + 1, layer.bytes)
            else:
                terms.append((1, layer.bytes))
        shown = [f"{count} × {size} B" for count, size in terms[:8]]
        more = [f"… ({len(terms) - 8} more)"] if len(terms) > 8 else []  # noqa: PLR2004
        return f"{' + '.join(shown + more)} = {self.cache_bytes} B"


def plan(config: Mapping[str, object], settings: Mapping[str, object]) -> TransformersPlan:
    """Return what Transformers keeps for a config and a run.

    Raises:
        DomainError: when the config does not decide the cache, its class would not run, or a
            setting is wrong; the error names the field.

    """
    asked = read_settings(settings)
    model = find_model(config)
    layers = build(model)
    run = asked.run(
        dtype=_dtype(asked, model), encoder_tokens=_encoder_tokens(asked, model, layers)
    )
    layers = _made(layers, run)
    if run.static_tokens is not None:
        layers = static_layers(model, layers, run)
    if asked.generate:
        layers = _from_generate(model, layers)
    if asked.quantization is not None:
        layers = quantized(layers, asked.quantization)
    after = _held(layers, run)
    before = _held(layers, run.after_prefill())
    return TransformersPlan(
        version=VERSION,
        cache=asked.cache,
        run=run,
        layers=after,
        prefill_bytes=sum(layer.bytes for layer in before),
        prefill_storage_bytes=sum(layer.storage_bytes for layer in before),
        growth_peak_bytes=max((layer.growth_peak_bytes(run) for layer in layers), default=0),
        overhead=overhead_of(config, layers, [layer.bytes for layer in after], run),
        assumptions=tuple(model.outer.assumptions),
    )


def _held(layers: list[CacheLayer], run: Run) -> tuple[PlannedLayer, ...]:
    # Equal layers share their parts, and a long model is mostly equal layers.
    tensors = {id(layer.parts): layer.parts for layer in layers}
    made = {
        key: tuple(t for part in parts for t in part.held(run)) for key, parts in tensors.items()
    }
    return tuple(
        PlannedLayer(index=layer.index, kind=layer.kind, tensors=made[id(layer.parts)])
        for layer in layers
    )


def _made(layers: list[CacheLayer], run: Run) -> list[CacheLayer]:
    """Return the layers that this run makes.

    Cross-attention's list exists where there is an encoder; some classes make an empty one in any
    dynamic cache, and a static cache has none.
    """
    return [
        layer
        for layer in layers
        if layer.kind != "cross_attention"
        or (run.encoder_tokens is not None if layer.has_encoder else run.static_tokens is None)
    ]


def _from_generate(model: Model, layers: list[CacheLayer]) -> list[CacheLayer]:
    """Return what generate() returns where that is not what forward passes leave.

    XLNet and XLM append a token of their own before each pass; RecurrentGemma's states stay on its
    modules.
    """
    kind = model.text.model_type
    if kind == "recurrent_gemma":
        return [layer for layer in layers if layer.kind != "module_state"]
    if kind not in ("xlm", "xlnet"):
        return layers
    return [
        replace(
            layer,
            parts=tuple(
                replace(part, extra_tokens=1)
                if isinstance(part, (HiddenStates, KeyValue))
                else part
                for part in layer.parts
            ),
        )
        for layer in layers
        if layer.parts
    ]


# What the settings leave to the config


def _dtype(asked: Settings, model: Model) -> str:
    """Return the model's dtype: as asked, as the file names it, else torch's default."""
    if asked.dtype is not None:
        return asked.dtype
    for fields in (model.outer, model.text):
        for name in ("dtype", "torch_dtype"):
            named = fields.raw.get(name)
            if isinstance(named, str):
                try:
                    return torch_dtype(named)
                except DomainError:
                    continue
    model.outer.assume(
        "dtype_float32",
        "neither the settings nor the config name a dtype; Transformers then loads in float32",
    )
    return "float32"


# Families whose decoder also has a class of its own without an encoder ("…ForCausalLM").
_ALONE = frozenset(
    {
        "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp",
        "pegasus", "plbart", "prophetnet", "whisper",
    }
)  # fmt: skip
_LONGEST = ("max_source_positions", "max_position_embeddings", "n_positions")


def _encoder_tokens(asked: Settings, model: Model, layers: list[CacheLayer]) -> int | None:
    """Return the encoder's length, or None for a decoder that is run alone.

    Whisper pads its audio to `max_source_positions`. Mllama's text runs without an image. Where a
    decoder has a class of its own and the file names no other, it is taken to be run alone.

    Raises:
        Missing: when the model needs an encoder and nothing says how long its input is.

    """
    if not any(layer.has_encoder for layer in layers):
        if asked.encoder_tokens is not None:
            model.text.assume(
                "no_encoder", "encoder_tokens changes nothing: no layer here attends to an encoder"
            )
        return None
    fields, kind = model.text, model.text.model_type
    named = model.architecture
    alone = kind in _ALONE and (not named or named.endswith("ForCausalLM"))
    if kind == "whisper" and not (named and alone):
        padded = fields.integer("max_source_positions", high=MAX_TOKENS)
        if asked.encoder_tokens not in (None, padded):
            fields.assume(
                "audio_padded",
                "encoder_tokens changes nothing: the audio is padded to {tokens} positions",
                tokens=padded,
            )
        return padded
    if asked.encoder_tokens is not None:
        return asked.encoder_tokens
    if kind == "mllama_text_model":
        fields.assume("no_image", "encoder_tokens is not given: the text is run without an image")
        return None
    if alone:
        fields.assume(
            "decoder_alone",
            "encoder_tokens is not given, and the file names no class with an encoder: the decoder "
            "is run alone",
        )
        return None
    return _longest(model)


def _longest(model: Model) -> int:
    encoder = model.outer.part("encoder") or model.outer.part("text_encoder")
    for fields in filter(None, (encoder, model.text)):
        for name in _LONGEST:
            if fields.says(name):
                length = fields.integer(name, high=MAX_TOKENS)
                model.text.assume(
                    "encoder_longest",
                    "the encoder's input is taken to be as long as {field} allows, {value}",
                    field=name,
                    value=length,
                )
                return length
    raise Missing(
        "{field} is missing, and the config names no longest input of its encoder",
        field="encoder_tokens",
    )
