"""Families with latent attention (MLA), their sparse indexers, and what DeepSeek V4 makes of it.

Shapes are those of the model classes of Transformers 5.24.0 (models/<name>/modeling_<name>.py), and
were compared with classes built without weights. Latents and index keys are shared by all heads, so
every tensor rank holds their projections whole.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from app.domain.errors import Conflict, shown
from app.domain.weight_formats import Plain
from app.domain.weight_lines import Component, Cut, Kind, WeightLine
from app.readers.weights.decoder import Decoder
from app.readers.weights.dense import BIASED_GATED, plain
from app.readers.weights.experts import (
    Experts,
    after_dense,
    by_list,
    num_layers,
    shared_own,
    sparse_or_dense,
)
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, linear, norm, vector
from app.readers.weights.moe import DEEPSEEK_EXPERTS
from app.readers.weights.parts import (
    FeedForward,
    Norms,
    Option,
    Part,
    Switch,
    Uniform,
    chosen,
    hidden,
)

ATTENTION = Component.ATTENTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(Uniform):
    """Multi-head latent attention: low-rank queries, and keys and values from one latent.

    Without `q_lora_rank` the queries are projected at once. DeepSeek-V3: 7168 -> 1536 -> 128 heads
    of 192; 7168 -> 512 + 64; 512 -> 128 heads of 128 + 128; 128 heads of 128 -> 7168.
    """

    at: str = "self_attn"
    rank_bias: Option = "attention_bias"
    out_bias: Option = "attention_bias"

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return the projections and the latents' norms."""
        width, heads = hidden(fields), fields.size("num_attention_heads")
        latent, rope = fields.size("kv_lora_rank"), fields.size("qk_rope_head_dim", low=0)
        plain_dim, value_dim = fields.size("qk_nope_head_dim", low=0), value_width(fields)
        bias = chosen(fields, self.rank_bias)
        return (
            *self._queries(fields, width, heads, plain_dim + rope, bias=bias),
            *linear(f"{self.at}.kv_a_proj_with_mqa", ATTENTION, latent + rope, width, bias=bias),
            *norm(f"{self.at}.kv_a_layernorm", latent, component=ATTENTION),
            *linear(f"{self.at}.kv_b_proj", ATTENTION, heads * (plain_dim + value_dim), latent,
                    cut=Cut.EVEN, units=heads),
            *linear(f"{self.at}.o_proj", ATTENTION, width, heads * value_dim, cut=Cut.EVEN,
                    units=heads, axis=1, bias=chosen(fields, self.out_bias)),
        )  # fmt: skip

    def _queries(
        self, fields: Fields, width: int, heads: int, head_dim: int, *, bias: bool
    ) -> Lines:
        rank = fields.size_or_none("q_lora_rank", low=1)
        if rank is None:
            return linear(f"{self.at}.q_proj", ATTENTION, heads * head_dim, width, cut=Cut.EVEN,
                          units=heads)  # fmt: skip
        return (
            *linear(f"{self.at}.q_a_proj", ATTENTION, rank, width, bias=bias),
            *norm(f"{self.at}.q_a_layernorm", rank, component=ATTENTION),
            *linear(f"{self.at}.q_b_proj", ATTENTION, heads * head_dim, rank, cut=Cut.EVEN,
                    units=heads),
        )  # fmt: skip


def value_width(fields: Fields) -> int:
    """Return a value's width; MiniCPM3 names none and has the model's width over its heads."""
    given = fields.size_or_none("v_head_dim", low=1)
    return given or hidden(fields) // fields.size("num_attention_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer(Uniform):
    """DeepSeek sparse attention's indexer: small heads that score earlier positions."""

    at: str = "self_attn.indexer"

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return the index queries, key, key norm and head weights."""
        heads, dim = fields.size("index_n_heads"), fields.size("index_head_dim")
        return (
            *linear(f"{self.at}.wq_b", ATTENTION, heads * dim, fields.size("q_lora_rank")),
            *linear(f"{self.at}.wk", ATTENTION, dim, hidden(fields)),
            *norm(f"{self.at}.k_norm", dim, bias=True, component=ATTENTION),
            *linear(f"{self.at}.weights_proj", ATTENTION, heads, hidden(fields), kind=Kind.GATE),
        )


def indexer_kind(fields: Fields, layer: int) -> str:
    """Return "full" for a layer with an indexer of its own, "shared" for one that borrows.

    `indexer_types`, else `index_topk_pattern` (letters F and S, or words), else every
    `index_topk_freq`-th layer after the first `index_skip_topk_offset` (2).
    """
    words = fields.words("indexer_types", length=num_layers(fields))
    if words is not None:
        return _known(fields, "indexer_types", layer, words[layer])
    _, pattern = fields.find("index_topk_pattern")
    if isinstance(pattern, str):
        if layer >= len(pattern):
            raise Conflict("{field} has {value} letters for {layers} layers",
                           field=fields.at("index_topk_pattern"), value=len(pattern),
                           layers=num_layers(fields))  # fmt: skip
        letters = {"F": "full", "S": "shared"}
        return _known(fields, "index_topk_pattern", layer, letters.get(pattern[layer], ""))
    if pattern is not None:
        words = fields.words("index_topk_pattern", length=num_layers(fields)) or ()
        return _known(fields, "index_topk_pattern", layer, words[layer])
    period = fields.size_or_none("index_topk_freq", low=1) or 1
    offset = fields.size_or_none("index_skip_topk_offset")
    first = 2 if offset is None else offset
    return "shared" if max(layer - first + 1, 0) % period else "full"


def _known(fields: Fields, name: str, layer: int, word: str) -> str:
    if word in {"full", "shared"}:
        return word
    raise Conflict("{field} must be full or shared, got {value}",
                   field=(*fields.at(name), layer), value=shown(word))  # fmt: skip


INDEXED: tuple[Part, ...] = (Latent(), Indexer())
SHARED_INDEXERS = Switch(rule=indexer_kind, parts={"full": (Indexer(),), "shared": ()})


# LongCat: two attentions and two networks a layer, experts beside them


def _longcat_zero_experts(fields: Fields) -> int:
    """Return the router's rows: it also chooses experts that do nothing and hold no weights."""
    return fields.size("n_routed_experts") + fields.count("zero_expert_num")


# DeepSeek V4


def v4_kind(fields: Fields, layer: int) -> str:
    """Return what a layer compresses: nothing, by 4 with an indexer, or by 128.

    `layer_types`, else the ratios in `compress_ratios`, else two heavy layers and then heavy and
    indexed by turns, as in V4-Pro.
    """
    words = fields.words("layer_types")
    if words is not None:
        return _V4_WORDS.get(words[layer], "") if layer < len(words) else ""
    ratios = fields.sizes("compress_ratios", length=num_layers(fields))
    if ratios is not None:
        return _V4_RATIOS.get(ratios[layer], "") if layer < len(ratios) else ""
    return "indexed" if layer >= 2 and layer % 2 else "heavy"  # noqa: PLR2004  # two bootstrap


_V4_WORDS = {
    "sliding_attention": "plain",
    "compressed_sparse_attention": "indexed",
    "heavily_compressed_attention": "heavy",
}
_V4_RATIOS = {0: "plain", 4: "indexed", 128: "heavy"}
_V4_RATES = {"indexed": ("compress_rate_csa", 4), "heavy": ("compress_rate_hca", 128)}


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Attention:
    """DeepSeek V4's attention: one KV head, grouped low-rank output, compressors by layer."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return what the layer compresses."""
        kind = v4_kind(fields, layer)
        if not kind:
            raise Conflict("{field} names no known attention for layer {layer}",
                           field=fields.at("layer_types"), layer=layer)  # fmt: skip
        return kind

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return sinks, projections, and the compressor with its indexer."""
        width, heads, dim = hidden(fields), fields.size("num_attention_heads"), head_width(fields)
        rank, groups = fields.size("q_lora_rank"), fields.size("o_groups")
        out_rank = groups * fields.size("o_lora_rank")
        kind = v4_kind(fields, layer)
        return (
            *vector("attn.attn_sink", ATTENTION, heads, cut=Cut.EVEN, units=heads, fp32=True),
            *linear("attn.wq_a", ATTENTION, rank, width),
            *norm("attn.q_norm", rank, component=ATTENTION),
            *linear("attn.wq_b", ATTENTION, heads * dim, rank, cut=Cut.EVEN, units=heads),
            *linear("attn.wkv", ATTENTION, dim, width),
            *norm("attn.kv_norm", dim, component=ATTENTION),
            *linear("attn.wo_a", ATTENTION, out_rank, heads * dim // groups, cut=Cut.EVEN,
                    units=groups),
            *linear("attn.wo_b", ATTENTION, width, out_rank, cut=Cut.EVEN, units=groups, axis=1),
            *(self._compressor(fields, kind, dim) if kind != "plain" else ()),
        )  # fmt: skip

    def _compressor(self, fields: Fields, kind: str, dim: int) -> Lines:
        # A rate of 4 overlaps windows, so its projections are twice as wide as the head.
        rate = _rate(fields, kind)
        wide = 2 if kind == "indexed" else 1
        lines = _compressing("attn.compressor", fields, rate, wide * dim, dim)
        if kind != "indexed":
            return lines
        heads, index_dim = fields.size("index_n_heads"), fields.size("index_head_dim")
        return (
            *lines,
            *_compressing("attn.indexer.compressor", fields, rate, wide * index_dim, index_dim),
            *linear("attn.indexer.wq_b", ATTENTION, heads * index_dim,
                    fields.size("q_lora_rank")),
            *linear("attn.indexer.weights_proj", ATTENTION, heads, hidden(fields),
                    kind=Kind.GATE),
        )  # fmt: skip


def head_width(fields: Fields) -> int:
    """Return a head's width, which these configs must name."""
    return fields.size("head_dim")


def _rate(fields: Fields, kind: str) -> int:
    """Return the compression of a kind of layer: `compress_rates`, else the older scalar."""
    legacy, default = _V4_RATES[kind]
    given = fields.size_or_none(legacy, low=1)
    if given is None and fields.says("compress_rates"):
        rates = fields.part("compress_rates")
        word = next(word for word, known in _V4_WORDS.items() if known == kind)
        given = rates.size_or_none(word, low=1)
    return given or default


def _compressing(at: str, fields: Fields, rate: int, rows: int, dim: int) -> Lines:
    return (
        *vector(f"{at}.ape", ATTENTION, rate, rows, fp32=True),
        *linear(f"{at}.wkv", ATTENTION, rows, hidden(fields), kind=Kind.GATE),
        *linear(f"{at}.wgate", ATTENTION, rows, hidden(fields), kind=Kind.GATE),
        *norm(f"{at}.norm", dim, component=ATTENTION),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnections(Uniform):
    """The mixing of `hc_mult` residual streams before attention and before the network.

    (2 + hc_mult) * hc_mult rows mix hc_mult widths; Transformers and the checkpoints keep them in
    single precision.
    """

    names: tuple[str, ...] = ("hc_attn", "hc_ffn")

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return function, base and scale for each name."""
        streams = fields.size("hc_mult")
        rows = (2 + streams) * streams
        return tuple(
            line for name in self.names for line in hyper_lines(fields, name, rows, scales=3)
        )


def hyper_lines(fields: Fields, name: str, rows: int, *, scales: int) -> Lines:
    """Return one mixing's function, base and scale."""
    width = fields.size("hc_mult") * hidden(fields)
    return (
        *vector(f"{name}_fn", Component.OTHER, rows, width, fp32=True),
        *vector(f"{name}_base", Component.OTHER, rows, fp32=True),
        *vector(f"{name}_scale", Component.OTHER, scales, fp32=True),
    )


def hyper_head(fields: Fields) -> Lines:
    """Return the mixing that joins the streams before the output."""
    return hyper_lines(fields, "hc_head", fields.size("hc_mult"), scales=1)


def _v4_hashed(fields: Fields, layer: int) -> bool:
    """Return whether a layer chooses experts by token id, from a table: the first few do."""
    number = fields.size_or_none("num_hash_layers")
    return layer < (3 if number is None else number)


_V4_SHARED = shared_own("moe_intermediate_size")
_V4_EXPERTS = Experts(at="ffn", number="n_routed_experts", names=("w1", "w3", "w2"),
                      correction="gate.bias", shared=_V4_SHARED,
                      shared_names=("w1", "w3", "w2"))  # fmt: skip
_V4_HASHED = Experts(at="ffn", number="n_routed_experts", names=("w1", "w3", "w2"),
                     shared=_V4_SHARED, shared_names=("w1", "w3", "w2"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class HashTable(Uniform):
    """V4's table of which experts each token id goes to; a buffer of indices."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return the table."""
        return (
            WeightLine(
                name="ffn.gate.tid2eid",
                component=Component.ROUTER,
                shape=(fields.size("vocab_size"), fields.size("num_experts_per_tok")),
                kind=Kind.VECTOR,
                is_buffer=True,
                format=Plain(dtype="I64"),
            ),
        )


_SPARSE = sparse_or_dense(after_dense, DEEPSEEK_EXPERTS)
_LISTED = sparse_or_dense(by_list, DEEPSEEK_EXPERTS)
_V2_EXPERTS = Experts(number="n_routed_experts", shared=DEEPSEEK_EXPERTS.shared)

LATENT: dict[str, Decoder] = {
    "deepseek_v2": plain(Latent(), sparse_or_dense(after_dense, _V2_EXPERTS)),
    "deepseek_v3": plain(Latent(), _SPARSE),
    "deepseek_v32": plain(Latent(), _LISTED, Norms(), Indexer()),
    "glm_moe_dsa": plain(Latent(), _LISTED, Norms(), SHARED_INDEXERS),
    "glm4_moe_lite": plain(Latent(), _LISTED),
    "mistral4": plain(Latent(), _SPARSE),
    "minicpm3": plain(Latent(), BIASED_GATED),
    "axk1": plain(
        Latent(),
        sparse_or_dense(by_list, DEEPSEEK_EXPERTS), Norms(),
        Switch(rule=by_list, parts={True: (Norms(names=("mlp.post_mlp_layernorm",)),)}),
    ),
    "longcat_flash": plain(
        Latent(at="self_attn.0"),
        Experts(router="router.classifier", number="n_routed_experts", active="moe_topk",
                width="expert_ffn_hidden_size", router_rows=_longcat_zero_experts,
                correction="router.e_score_correction_bias"),
        Norms(names=("input_layernorm.0", "input_layernorm.1", "post_attention_layernorm.0",
                     "post_attention_layernorm.1")),
        Latent(at="self_attn.1"),
        FeedForward(at="mlps.0", width="ffn_hidden_size"),
        FeedForward(at="mlps.1", width="ffn_hidden_size"),
        count=lambda fields: fields.size("num_layers", high=4096),
    ),
    "deepseek_v4": Decoder(
        parts=(
            V4Attention(),
            Switch(rule=_v4_hashed, parts={True: (_V4_HASHED, HashTable()), False: (_V4_EXPERTS,)}),
            Norms(names=("attn_norm", "ffn_norm")),
            HyperConnections(),
        ),
        prefix="layers.{layer}", embedding="embed.weight", final_norm="norm", head="head",
        last=hyper_head,
    ),
}  # fmt: skip

SAME_LATENT = {"kimi_k2": "deepseek_v3", "sarvam_mla": "deepseek_v3"}
