"""Requests at the edge: types, bounds and examples. Nothing is computed here.

Integers are strict (no bool, float or string passes for one), unknown fields are refused, and every
size has an upper bound that the schema states.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    StrictInt,
    StrictStr,
    Tag,
)
from pydantic.json_schema import SkipJsonSchema

from app.domain.dtypes import MAX_ELEMENT_BYTES
from app.domain.ledgers import MAX_BLOCK_SIZE
from app.domain.lengths import MAX_REQUESTS
from app.domain.state import MAX_DIM, MAX_HEADS, MAX_LAYERS, MAX_STATE_BYTES, MAX_TOKENS

MAX_LISTED_LENGTHS = 1_000_000
MAX_PAGE = 10_000


class Strict(BaseModel):
    """A request body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Layers = Annotated[StrictInt, Field(ge=1, le=MAX_LAYERS)]
KvHeads = Annotated[StrictInt, Field(ge=1, le=MAX_HEADS)]
Dim = Annotated[StrictInt, Field(ge=1, le=MAX_DIM)]
DimOrNone = Annotated[StrictInt, Field(ge=0, le=MAX_DIM)]
Tokens = Annotated[StrictInt, Field(ge=0, le=MAX_TOKENS)]
Window = Annotated[StrictInt, Field(ge=1, le=MAX_TOKENS)]
BlockSize = Annotated[StrictInt, Field(ge=1, le=MAX_BLOCK_SIZE)]
StateBytes = Annotated[StrictInt, Field(ge=0, le=MAX_STATE_BYTES)]
FormatName = Annotated[StrictStr, Field(max_length=40, examples=["fp16"])]
ModelId = Annotated[StrictStr, Field(min_length=1, max_length=200)]


class UniformModel(Strict):
    """Every layer alike, with full attention."""

    layers: Layers
    kv_heads: KvHeads
    head_dim: Dim
    v_head_dim: Dim | None = Field(default=None, description="Width of V where it differs from K.")


class CatalogueModel(Strict):
    """A model of the bundled catalogue."""

    id: ModelId = Field(examples=["meta-llama/Llama-3.1-8B"])
    encoder_tokens: Tokens | None = Field(default=None, description="Length of the encoder's side.")
    draft_layers: bool = Field(default=False, description="Count multi-token-prediction layers.")


class ConfigModel(Strict):
    """A Hugging Face `config.json`, pasted whole."""

    config: dict[str, Any]
    encoder_tokens: Tokens | None = Field(default=None, description="Length of the encoder's side.")
    draft_layers: bool = Field(default=False, description="Count multi-token-prediction layers.")


class HubModel(ConfigModel):
    """A model of the Hub, by id or address; its config is read when the request arrives.

    Only where the server's operator has enabled it. A token may come in the header X-Hub-Token.
    """

    config: SkipJsonSchema[dict[str, Any]] = Field(default_factory=dict)
    hub: Annotated[StrictStr, Field(min_length=1, max_length=1000)] = Field(
        examples=["Qwen/Qwen3-8B"]
    )
    revision: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="Branch, tag or commit; left out, main."
    )
    token: SecretStr | None = Field(
        default=None, description="Opens a gated model; used for this request and kept nowhere."
    )


class GgufModel(Strict):
    """A GGUF header's key-values as JSON."""

    gguf: dict[str, Any]


class StateRow(Strict):
    """What every row of `layer_states` may say."""

    count: Layers = Field(default=1, description="How many consecutive layers are like this row.")
    same_layer: bool = Field(
        default=False, description="This state lies in the previous row's layers, beside its own."
    )


class HeadsRow(StateRow):
    """Keys and values by head."""

    kv_heads: KvHeads
    k_dim: DimOrNone
    v_dim: DimOrNone


class FullAttentionRow(HeadsRow):
    """Every position is kept."""

    kind: Literal["full_attention"]
    index_dim: DimOrNone = 0


class SlidingWindowRow(HeadsRow):
    """The last window − 1 positions are kept."""

    kind: Literal["sliding_window"]
    window: Window


class ChunkedAttentionRow(HeadsRow):
    """The positions since the last chunk boundary are kept."""

    kind: Literal["chunked_attention"]
    chunk: Window


class LatentAttentionRow(StateRow):
    """One compressed vector a position for all heads."""

    kind: Literal["latent_attention"]
    latent_dim: DimOrNone
    rope_dim: DimOrNone
    index_dim: DimOrNone = 0
    index_dtype: FormatName | None = None
    window: Window | None = None
    tokens_per_entry: Window = 1


class StateTensorRow(Strict):
    """One tensor of a recurrent layer."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=40)] = "state"
    shape: Annotated[list[StateBytes], Field(max_length=8)]
    dtype: FormatName
    split_axis: Annotated[StrictInt, Field(ge=0, le=7)] | None = None


class RecurrentRow(StateRow):
    """A state of constant size: in bytes, or by its tensors' shapes and formats."""

    kind: Literal["recurrent"]
    state_bytes: StateBytes | None = None
    conv_bytes: StateBytes | None = None
    tensors: Annotated[list[StateTensorRow], Field(max_length=64)] | None = None


class CrossAttentionRow(HeadsRow):
    """The encoder's positions are kept once."""

    kind: Literal["cross_attention"]
    encoder_tokens: Tokens


class SharedRow(StateRow):
    """The layer reads what another keeps."""

    kind: Literal["shared"]
    with_layer: Annotated[StrictInt, Field(ge=0, le=MAX_LAYERS)]


class EmptyRow(StateRow):
    """The layer keeps nothing (an MLP or expert layer of a hybrid)."""

    kind: Literal["none"]


LayerStateRow = Annotated[
    FullAttentionRow
    | SlidingWindowRow
    | ChunkedAttentionRow
    | LatentAttentionRow
    | RecurrentRow
    | CrossAttentionRow
    | SharedRow
    | EmptyRow,
    Field(discriminator="kind"),
]


class LayerStatesModel(Strict):
    """Any mixture of layers by hand, in layer order."""

    layer_states: Annotated[list[LayerStateRow], Field(min_length=1, max_length=MAX_LAYERS)]


def _model_form(value: object) -> str | None:
    """Return which of the six forms a model is given in, by the field that only it has."""
    has = value.__contains__ if isinstance(value, dict) else lambda key: hasattr(value, key)
    for key in ("hub", "id", "config", "layer_states", "gguf"):
        if has(key):
            return key
    if isinstance(value, dict) or has("layers"):
        return "uniform"
    return None


ModelInput = Annotated[
    Annotated[UniformModel, Tag("uniform")]
    | Annotated[CatalogueModel, Tag("id")]
    | Annotated[ConfigModel, Tag("config")]
    | Annotated[LayerStatesModel, Tag("layer_states")]
    | Annotated[GgufModel, Tag("gguf")]
    | Annotated[HubModel, Tag("hub")],
    Discriminator(
        _model_form,
        custom_error_type="model_form",
        custom_error_message=(
            "model must be an object with layers, kv_heads and head_dim, or with one of "
            "id, config, layer_states, gguf or hub"
        ),
    ),
    Field(
        examples=[
            {"layers": 32, "kv_heads": 8, "head_dim": 128},
            {"id": "meta-llama/Llama-3.1-8B"},
        ]
    ),
]


class PairFormat(Strict):
    """Keys and values in different formats."""

    k: FormatName
    v: FormatName


class LayerFormat(Strict):
    """The format of layers a..b, both included; without `layers`, of all the rest."""

    layers: (
        Annotated[
            list[Annotated[StrictInt, Field(ge=0, le=MAX_LAYERS)]],
            Field(min_length=2, max_length=2),
        ]
        | None
    ) = None
    dtype: FormatName | PairFormat


KvDType = FormatName | PairFormat | Annotated[list[LayerFormat], Field(max_length=1000)]
ElementBytes = Annotated[StrictInt, Field(ge=1, le=MAX_ELEMENT_BYTES)]


class WithModel(Strict):
    """A model and the format of its cache."""

    model: ModelInput
    kv_dtype: KvDType | None = Field(
        default=None,
        description="Format of keys and values; left out, the model file's own, else 16-bit.",
        examples=["fp16"],
    )
    element_bytes: ElementBytes | None = Field(
        default=None, description="Bytes of an element, as in the textbook formula."
    )


class PerTokenRequest(WithModel):
    """What one more token costs, and what a sequence costs whatever its length."""

    batch: Annotated[StrictInt, Field(ge=1, le=MAX_REQUESTS)] | None = None
    seq_len: Tokens | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"layers": 32, "kv_heads": 32, "head_dim": 128},
                    "kv_dtype": "fp16",
                    "batch": 4,
                    "seq_len": 4096,
                }
            ]
        }
    )


class LengthCount(Strict):
    """`count` requests of `length` tokens."""

    length: Tokens
    count: Annotated[StrictInt, Field(ge=0, le=MAX_REQUESTS)]


def _lengths_form(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict | LengthCount):
        return "counts"
    return "list"


LengthsInput = Annotated[
    Annotated[Annotated[list[Tokens], Field(max_length=MAX_LISTED_LENGTHS)], Tag("list")]
    | Annotated[Annotated[list[LengthCount], Field(max_length=100_000)], Tag("counts")],
    Discriminator(_lengths_form),
    Field(examples=[[17, 31, 32], [{"length": 2048, "count": 500}]]),
]


class LedgersRequest(WithModel):
    """Requests of these lengths in the three ledgers."""

    lengths: LengthsInput
    block_size: BlockSize = 16
    offset: Annotated[StrictInt, Field(ge=0, le=MAX_REQUESTS)] = Field(
        default=0, description="First request of the page of rows."
    )
    limit: Annotated[StrictInt, Field(ge=0, le=MAX_PAGE)] = Field(
        default=1000, description="Rows of the page."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
                    "kv_dtype": "fp16",
                    "lengths": [17, 31, 32],
                    "block_size": 16,
                }
            ]
        }
    )
