"""Reads the weights of a model from its config.json."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.errors import Missing, OutOfRange, Unsupported, WrongType, shown
from app.domain.notes import Note
from app.domain.stored_weights import MAX_PARAMETERS
from app.domain.weight_formats import Plain
from app.domain.weight_lines import BF16, Part, WeightBlock
from app.domain.weights import ModelWeights
from app.readers.weights.encoder_decoder import PAIRS
from app.readers.weights.families import DECODERS
from app.readers.weights.fields import Fields
from app.readers.weights.multi_token import draft_blocks
from app.readers.weights.quantization import read_scheme
from app.readers.weights.wrappers import WRAPPERS, Wrapper


def read_weights(config: Mapping[str, object]) -> ModelWeights:
    """Return what a config.json says of a model's weights.

    The answer's notes name every size that the config's class gave and the file did not, and every
    part that is not counted.

    Raises:
        Unsupported: for a model type whose shapes are not known.
        Missing, WrongType, OutOfRange, Conflict: for a field that is absent or wrong.

    """
    fields = Fields(raw=config, model_type=_model_type(config))
    wrapper = WRAPPERS.get(fields.model_type)
    if wrapper is not None and _is_composite(fields, wrapper):
        return _composite(fields, wrapper)
    pair = PAIRS.get(fields.model_type)
    if pair is not None:
        tied = fields.flag("tie_word_embeddings", otherwise=True)
        return _weights(fields, pair.blocks(fields, tied=tied), pair.count(fields), tied=tied)
    decoder = DECODERS.get(fields.model_type)
    if decoder is None:
        return _text_alone(fields)
    tied = fields.flag("tie_word_embeddings")
    blocks = [*decoder.blocks(fields, tied=tied), *draft_blocks(fields, decoder)]
    return _weights(fields, blocks, decoder.count(fields), tied=tied)


def _weights(
    fields: Fields,
    blocks: list[WeightBlock],
    layers: int,
    *,
    tied: bool,
    notes: tuple[Note, ...] = (),
) -> ModelWeights:
    weights = ModelWeights(
        blocks=tuple(block for block in blocks if block.lines),
        num_layers=layers,
        basis="config",
        family=fields.model_type,
        tied=tied,
        notes=(*fields.notes(), *notes),
    )
    check_total(weights)
    plain = _dtype(fields)
    if plain != BF16:
        weights = weights.with_formats(
            lambda _block, _layer, line: plain if line.format == BF16 else line.format
        )
    scheme = read_scheme(fields)
    return weights if scheme is None else weights.with_formats(scheme.choose)


def check_total(weights: ModelWeights) -> None:
    """Refuse a model beyond what any answer may hold.

    Raises:
        OutOfRange: for more parameters than the bound.

    """
    total = weights.parameters(list(Part))
    if total > MAX_PARAMETERS:
        raise OutOfRange("{field} has sizes that make {value} parameters; at most {high} are read",
                         field="config", value=shown(total), high=MAX_PARAMETERS)  # fmt: skip


_DTYPES = {"bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32"}


def _dtype(fields: Fields) -> Plain:
    """Return the dtype that the file names for its weights; BF16 when it names none that is plain.

    The wrapper's or the text's, under the name of either era.
    """
    holders = [fields, *(fields.part(name) for name in _TEXT_PARTS if fields.says(name))]
    for holder in holders:
        for name in ("dtype", "torch_dtype"):
            _, value = holder.find(name)
            if isinstance(value, str) and value.removeprefix("torch.") in _DTYPES:
                return Plain(dtype=_DTYPES[value.removeprefix("torch.")])
    return BF16


def _is_composite(fields: Fields, wrapper: Wrapper) -> bool:
    """Return whether a type that is also a decoder's own stands for the composite model here."""
    return fields.model_type not in DECODERS or fields.says(wrapper.text)


def _composite(fields: Fields, wrapper: Wrapper) -> ModelWeights:
    text = _text_of(fields, wrapper)
    decoder = DECODERS.get(text.model_type)
    if decoder is None:
        raise _unknown(text)
    tied = _is_tied(fields, text)
    blocks = decoder.blocks(text, tied=tied)
    notes = []
    for row in wrapper.towers:
        more, note = row.blocks(fields, text)
        blocks.extend(more)
        if note is not None:
            notes.append(note)
    blocks.extend(draft_blocks(text, decoder))
    return _weights(fields, blocks, decoder.count(text), tied=tied, notes=tuple(notes))


# Where composite files that no row describes keep their decoder.
_TEXT_PARTS = ("text_config", "llm_config", "language_config")


def _text_alone(fields: Fields) -> ModelWeights:
    """Return the decoder alone of a composite model whose other parts are unknown, with a note."""
    for name in _TEXT_PARTS:
        if not fields.says(name):
            continue
        text = fields.part(name)
        decoder = DECODERS.get(text.model_type)
        if decoder is None:
            raise _unknown(text)
        tied = _is_tied(fields, text)
        note = Note(
            "part_not_counted",
            "only {field} of a {model_type} is counted: its other parts have no known shapes",
            {"field": name, "model_type": shown(fields.model_type)},
        )
        blocks = [*decoder.blocks(text, tied=tied), *draft_blocks(text, decoder)]
        return _weights(fields, blocks, decoder.count(text), tied=tied, notes=(note,))
    raise _unknown(fields)


def _text_of(fields: Fields, wrapper: Wrapper) -> Fields:
    """Return the decoder's config: nested, or flat beside the towers' as older files have it."""
    kind = fields.facts.parts.get(wrapper.text, {}).get("model_type")
    if fields.says(wrapper.text) or not kind or not fields.names("hidden_size"):
        return fields.part(wrapper.text)
    return Fields(raw=fields.raw, model_type=str(kind), used=fields.used)


def _is_tied(fields: Fields, text: Fields) -> bool:
    """Return whether the output is the embedding: the wrapper's flag decides, then the text's."""
    return fields.flag("tie_word_embeddings", otherwise=text.flag("tie_word_embeddings"))


def _unknown(fields: Fields) -> Unsupported:
    return Unsupported(
        "{field} {value} has no known weight shapes",
        field=fields.at("model_type"),
        value=shown(fields.model_type),
    )


def _model_type(config: Mapping[str, object]) -> str:
    value = config.get("model_type")
    if value is None:
        raise Missing("{field} is needed: it names the family whose shapes are counted",
                      field="model_type")  # fmt: skip
    if not isinstance(value, str):
        raise WrongType("{field} must be a string, got {value}", field="model_type",
                        value=shown(value))  # fmt: skip
    return value
