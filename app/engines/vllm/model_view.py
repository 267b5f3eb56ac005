"""What vLLM reads off a config beside the layers: its language model, element type, query heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.state import ModelState
from app.engines.head_split import language_model_of, query_heads_of
from app.engines.vllm.settings import MAX_LENGTH, VllmSettings

# The smallest of these that is given is the model's own length (vLLM 0.33.0
# transformers_utils/model_arch_config_convertor.py).
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_DTYPES = {"half": "float16", "float": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A model as vLLM meets it: its config (empty where there is none) and what its layers keep."""

    config: Mapping[str, object]
    text: Mapping[str, object]
    state: ModelState

    @property
    def model_type(self) -> str:
        """The language model's own type, or nothing."""
        value = self.text.get("model_type", self.config.get("model_type"))
        return value if isinstance(value, str) else ""

    @property
    def architecture(self) -> str:
        """The first architecture that the config names, or nothing."""
        names = self.config.get("architectures")
        first = names[0] if isinstance(names, list | tuple) and names else None
        return first if isinstance(first, str) else ""

    @property
    def query_heads(self) -> int | None:
        """Query heads of the language model, where the config names them."""
        return query_heads_of(self.text)

    @property
    def own_length(self) -> int | None:
        """The longest request that the config speaks of."""
        given = [self.integer(name) for name in _LENGTHS]
        return min((length for length in given if length is not None), default=None)

    @property
    def is_causal(self) -> bool:
        """False for models that vLLM runs as encoders: their attention keeps nothing."""
        return self.text.get("is_causal") is not False and self.config.get("is_causal") is not False

    def integer(self, *names: str) -> int | None:
        """Return the first of these fields that holds a positive whole number."""
        for name in names:
            value = self.text.get(name)
            if type(value) is int and 0 < value <= MAX_LENGTH:
                return value
        return None

    def word(self, name: str) -> str | None:
        """Return a field of the language model that is a string."""
        value = self.text.get(name)
        return value if isinstance(value, str) else None

    def dtype(self, settings: VllmSettings) -> str:
        """Return the element type of the model's activations.

        vLLM takes the config's, but runs float32 checkpoints, and those that name none, in 16 bits.
        """
        if settings.dtype != "auto":
            return _DTYPES.get(settings.dtype, settings.dtype)
        for source in (self.config, self.text):
            for name in ("dtype", "torch_dtype"):
                value = source.get(name)
                if isinstance(value, str):
                    value = value.removeprefix("torch.")
                    return "bfloat16" if value not in ("float16", "bfloat16") else value
        return "bfloat16"


def view_of(config: Mapping[str, object], state: ModelState) -> ModelView:
    """Return the view of a model; `config` may be empty."""
    return ModelView(config=config, text=language_model_of(config), state=state)
