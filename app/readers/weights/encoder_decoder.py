"""Encoder-decoders: Whisper, BART and its kin, T5 and its kin.

The text part is the decoder with its embedding, as a ...ForCausalLM class holds it; the encoder is
a part of its own. Shapes are those of the model classes of Transformers 5.24.0 and were compared
with classes built without weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.weight_lines import Component, Cut, Part, Place, WeightBlock
from app.readers.weights.fields import MAX_LAYERS, Fields
from app.readers.weights.lines import Lines, linear, norm, table
from app.readers.weights.towers import EncoderLayer, depth, tower, whisper_encoder

ATTENTION, MLP = Component.ATTENTION, Component.MLP


def _attention(at: str, width: int, heads: int, *, key_bias: bool) -> Lines:
    """Return biased projections of one width, the keys' bias apart."""
    rows = {"k_proj": key_bias, "v_proj": True, "q_proj": True}
    return (
        *(line for name, bias in rows.items()
          for line in linear(f"{at}.{name}", ATTENTION, width, width, bias=bias, cut=Cut.EVEN,
                             units=heads)),
        *linear(f"{at}.out_proj", ATTENTION, width, width, bias=True, cut=Cut.EVEN, units=heads,
                axis=1),
    )  # fmt: skip


def bart_decoder_layer(fields: Fields, *, key_bias: bool) -> Lines:
    """Return a decoder layer: attention to itself, to the encoder, and a plain network."""
    width, inner = fields.size("d_model"), fields.size("decoder_ffn_dim")
    heads = fields.size("decoder_attention_heads")
    return (
        *_attention("self_attn", width, heads, key_bias=key_bias),
        *norm("self_attn_layer_norm", width, bias=True),
        *_attention("encoder_attn", width, heads, key_bias=key_bias),
        *norm("encoder_attn_layer_norm", width, bias=True),
        *linear("fc1", MLP, inner, width, bias=True, cut=Cut.EVEN, units=inner),
        *linear("fc2", MLP, width, inner, bias=True, cut=Cut.EVEN, units=inner, axis=1),
        *norm("final_layer_norm", width, bias=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BartKin:
    """How a family of BART's kin differs: positions, norms, and whether Whisper's encoder."""

    positions: str = "max_position_embeddings"
    extra_positions: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    is_whisper: bool = False

    def blocks(self, fields: Fields, *, tied: bool) -> list[WeightBlock]:
        """Return decoder and encoder."""
        layers = fields.size("decoder_layers", high=MAX_LAYERS)
        width, rows = fields.size("d_model"), fields.size("vocab_size")
        first = (
            *table("model.decoder.embed_tokens.weight", rows, width, cut=Cut.VOCABULARY),
            *self._outside("model.decoder", fields),
        )
        last = norm("model.decoder.layer_norm", width, bias=True) if self.final_norm else ()
        if not tied:
            last += linear("lm_head", Component.OUTPUT, rows, width, cut=Cut.VOCABULARY)
        lines = bart_decoder_layer(fields, key_bias=not self.is_whisper)
        return [
            WeightBlock(part=Part.TEXT, place=Place.FIRST, lines=first),
            WeightBlock(part=Part.TEXT, place=Place.LAYERS, lines=lines,
                        layers=tuple(range(layers)), prefix="model.decoder.layers.{layer}"),
            WeightBlock(part=Part.TEXT, place=Place.LAST, lines=last),
            *self._encoder(fields),
        ]  # fmt: skip

    def _outside(self, at: str, fields: Fields) -> Lines:
        width = fields.size("d_model")
        lines: Lines = ()
        if self.positions:
            rows = fields.size(self.positions) + self.extra_positions
            lines += table(f"{at}.embed_positions.weight", rows, width)
        if self.embedding_norm:
            lines += norm(f"{at}.layernorm_embedding", width, bias=True,
                          component=Component.EMBEDDING)  # fmt: skip
        return lines

    def _encoder(self, fields: Fields) -> list[WeightBlock]:
        if self.is_whisper:
            return whisper_encoder(fields, Part.ENCODER, "model.encoder")
        layer = EncoderLayer(
            width=fields.size("d_model"), inner=fields.size("encoder_ffn_dim"),
            heads=fields.size("encoder_attention_heads"), mlp="",
            norms=("self_attn_layer_norm", "final_layer_norm"),
        )  # fmt: skip
        outside = self._outside("model.encoder", fields)
        if self.final_norm:
            outside += norm("model.encoder.layer_norm", layer.width, bias=True)
        return tower(depth(fields, "encoder_layers"), layer.lines(), outside,
                     prefix="model.encoder.layers.{layer}", part=Part.ENCODER)  # fmt: skip

    def count(self, fields: Fields) -> int:
        """Return the number of decoder layers."""
        return fields.size("decoder_layers", high=MAX_LAYERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Kin:
    """T5 and its kin: RMS norms, no biases, a table of relative positions in the first layer.

    `each_layer`: UMT5 gives every layer a table of its own.
    """

    each_layer: bool = False

    def blocks(self, fields: Fields, *, tied: bool) -> list[WeightBlock]:
        """Return decoder, with the shared embedding, and encoder."""
        width, rows = fields.size("d_model"), fields.size("vocab_size")
        decoders = self.count(fields)
        shared = table("shared.weight", rows, width, cut=Cut.VOCABULARY)
        last = norm("decoder.final_layer_norm", width)
        if not tied:
            last += linear("lm_head", Component.OUTPUT, rows, width, cut=Cut.VOCABULARY)
        return [
            WeightBlock(part=Part.TEXT, place=Place.FIRST, lines=shared),
            *self._stack(fields, decoders, Part.TEXT, "decoder", cross=True),
            WeightBlock(part=Part.TEXT, place=Place.LAST, lines=last),
            WeightBlock(part=Part.ENCODER, place=Place.FIRST,
                        lines=norm("encoder.final_layer_norm", width)),
            *self._stack(fields, fields.size("num_layers", high=MAX_LAYERS), Part.ENCODER,
                         "encoder", cross=False),
        ]  # fmt: skip

    def _stack(
        self, fields: Fields, count: int, part: Part, at: str, *, cross: bool
    ) -> list[WeightBlock]:
        lines = _t5_layer(fields, cross=cross)
        heads = fields.size("num_heads")
        bias = table("layer.0.SelfAttention.relative_attention_bias.weight",
                     fields.size("relative_attention_num_buckets"), heads,
                     component=ATTENTION)  # fmt: skip
        prefix = f"{at}.block.{{layer}}"
        tables = range(count) if self.each_layer else range(min(count, 1))
        plain = range(len(tables), count)
        groups = (((*bias, *lines), tables), (lines, plain))
        return [
            WeightBlock(part=part, place=Place.LAYERS, lines=own, layers=tuple(layers),
                        prefix=prefix)
            for own, layers in groups if layers
        ]  # fmt: skip

    def count(self, fields: Fields) -> int:
        """Return the number of decoder layers: as many as the encoder's unless given."""
        given = fields.size_or_none("num_decoder_layers", low=1, high=MAX_LAYERS)
        return given or fields.size("num_layers", high=MAX_LAYERS)


def _t5_attention(at: str, fields: Fields) -> Lines:
    width, heads = fields.size("d_model"), fields.size("num_heads")
    inner = heads * fields.size("d_kv")
    return (
        *(line for name in ("q", "k", "v")
          for line in linear(f"{at}.{name}", ATTENTION, inner, width, cut=Cut.EVEN, units=heads)),
        *linear(f"{at}.o", ATTENTION, width, inner, cut=Cut.EVEN, units=heads, axis=1),
    )  # fmt: skip


def _t5_layer(fields: Fields, *, cross: bool) -> Lines:
    width, inner = fields.size("d_model"), fields.size("d_ff")
    gated = (fields.word("feed_forward_proj") or "relu").startswith("gated-")
    place = 2 if cross else 1
    at = f"layer.{place}.DenseReluDense"
    into = ("wi_0", "wi_1") if gated else ("wi",)
    crossing: Lines = ()
    if cross:
        crossing = (*_t5_attention("layer.1.EncDecAttention", fields),
                    *norm("layer.1.layer_norm", width))  # fmt: skip
    return (
        *_t5_attention("layer.0.SelfAttention", fields),
        *norm("layer.0.layer_norm", width),
        *crossing,
        *(line for name in into
          for line in linear(f"{at}.{name}", MLP, inner, width, cut=Cut.EVEN, units=inner)),
        *linear(f"{at}.wo", MLP, width, inner, cut=Cut.EVEN, units=inner, axis=1),
        *norm(f"layer.{place}.layer_norm", width),
    )  # fmt: skip


_BART = BartKin(extra_positions=2, embedding_norm=True, final_norm=False)
_MBART = BartKin(extra_positions=2, embedding_norm=True)
_PEGASUS = BartKin()

PAIRS: dict[str, BartKin | T5Kin] = {
    "whisper": BartKin(positions="max_target_positions", is_whisper=True),
    "bart": _BART,
    "plbart": _BART,
    "mbart": _MBART,
    "pegasus": _PEGASUS,
    "blenderbot": _PEGASUS,
    "blenderbot-small": BartKin(embedding_norm=True, final_norm=False),
    "m2m_100": BartKin(positions=""),
    "t5": T5Kin(),
    "mt5": T5Kin(),
    "umt5": T5Kin(each_layer=True),
}
