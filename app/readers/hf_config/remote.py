"""Decoders whose code comes with the checkpoint: other names for the same sizes.

Each rule is that of the modelling file in the model's own repository (model id → modeling_*.py).
These types have no class in Transformers, so the file itself must say all that matters.
"""

from __future__ import annotations

from app.domain.errors import Conflict, Unsupported
from app.domain.state import MAX_HEADS, Layer
from app.readers.hf_config.attention import (
    HeadShape,
    grouped,
    head_width,
    multi_head,
    must_divide,
    one_if_multi_query,
    shared_heads,
    split_width,
)
from app.readers.hf_config.draft import like_the_last
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import from_max_window_layers, sliding, windowed

_LIKE_LLAMA = (
    "Yi", "aquila", "aquila3", "internlm2", "minicpm", "minicpmv", "minicpmo", "orion", "xverse",
    "PanguEmbedded", "deepseek", "molmo", "arctic", "phi3_v", "phi4mm", "bluelm", "stablelm_epoch",
    "bailing_moe", "skywork",
)  # fmt: skip
_MULTI_HEAD = ("baichuan", "internlm", "qwen", "jais", "btlm", "stablelm_alpha")
_GPT = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"}


def _chatglm(fields: Fields) -> HeadShape:
    """Return ChatGLM's heads: `multi_query_group_num` of them where `multi_query_attention`."""
    width = head_width(fields, "kv_channels")
    fields.seen("multi_query_group_num")
    if fields.flag("multi_query_attention"):
        kv_heads = fields.heads("multi_query_group_num")
        must_divide(fields.heads(), kv_heads, fields.at("multi_query_group_num"), "KV heads")
    else:
        kv_heads = fields.heads()
    return HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _baichuan_like(fields: Fields) -> HeadShape:
    """Return every head's own key and value; Qwen-1 has a width, `kv_channels`."""
    if fields.says("num_key_value_heads"):
        return grouped(fields)
    width = head_width(fields, "kv_channels", "head_dim")
    return HeadShape(kv_heads=fields.heads(), k_dim=width, v_dim=width)


def _phi_msft(fields: Fields) -> HeadShape:
    width = split_width(fields)
    return HeadShape(kv_heads=shared_heads(fields, "n_head_kv"), k_dim=width, v_dim=width)


def _refined_web(fields: Fields) -> HeadShape:
    """Return Falcon's heads under its first name: `n_head_kv` (40B), else one (7B)."""
    fields.seen("multi_query")
    if fields.says("n_head_kv"):
        return _phi_msft(fields)
    return one_if_multi_query(fields)


def _codeshell(fields: Fields) -> HeadShape:
    width = split_width(fields)
    fields.seen("num_query_groups")
    if fields.flag("group_query_attention"):
        kv_heads = shared_heads(fields, "num_query_groups")
    else:
        kv_heads = fields.heads()
    return HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _hf_olmo(fields: Fields) -> HeadShape:
    width = split_width(fields)
    fields.seen("multi_query_attention")
    if fields.says("n_kv_heads"):
        kv_heads = shared_heads(fields, "n_kv_heads")
    else:
        kv_heads = 1 if fields.flag("multi_query_attention") else fields.heads()
    return HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _phi3small_layers(fields: Fields) -> list[Layer]:
    """Return Phi-3-small's layers: its sparse ones read every n-th block, other blocks by head.

    Between them the heads read every position, so every position is kept.
    """
    fields.assume(
        "sparse_reads_all",
        "the block-sparse layers read blocks that differ from head to head; all positions are kept",
    )
    fields.seen(
        "blocksparse_homo_head_pattern", "blocksparse_vert_stride", "blocksparse_num_local_blocks",
        "blocksparse_block_size", "blocksparse_triton_kernel_block_size",
        "dense_attention_every_n_layers",
    )  # fmt: skip
    if fields.flag("blocksparse_homo_head_pattern"):
        raise Unsupported(
            "{field} is true: which positions the sparse layers never read is not modelled",
            field=fields.at("blocksparse_homo_head_pattern"),
        )
    return [Layer(states=(grouped(fields).full(),))] * fields.layers()


def _openelm_layers(fields: Fields) -> list[Layer]:
    """Return OpenELM's layers: each has its own number of KV heads."""
    count = fields.layers()
    width = fields.dim("head_dim")
    kv_heads = fields.integers("num_kv_heads", length=count, low=1, high=MAX_HEADS)
    heads = fields.integers("num_query_heads", length=count, low=1, high=MAX_HEADS)
    if kv_heads is None:
        raise fields.missing("num_kv_heads")
    for index, number in enumerate(heads or ()):
        must_divide(number, kv_heads[index], fields.at("num_kv_heads", index), "KV heads")
    made = {
        number: Layer(states=(HeadShape(kv_heads=number, k_dim=width, v_dim=width).full(),))
        for number in set(kv_heads)
    }
    return [made[number] for number in kv_heads]


def _deci_layers(fields: Fields) -> list[Layer]:
    """Return the layers of a pruned Nemotron: blocks without attention, or with fewer KV heads."""
    count = fields.layers()
    width = head_width(fields)
    blocks = fields.items("block_configs", length=count)
    if blocks is None:
        raise fields.missing("block_configs")
    return [
        _deci_layer(fields, fields.nested(block, fields.at("block_configs", index)), width)
        for index, block in enumerate(blocks)
    ]


def _deci_layer(fields: Fields, block: Fields, width: int) -> Layer:
    attention = block.part("attention")
    if attention is None:
        raise block.missing("attention")
    if attention.flag("no_op") or attention.flag("replace_with_linear"):
        return Layer(states=())
    for name in ("sparsify", "num_sink_tokens", "use_prefill_window_in_sink_attention"):
        if attention.value(name) not in (None, False):
            raise Unsupported(
                "{field} is set, and such a block is not modelled", field=attention.at(name)
            )
    group = attention.integer("n_heads_in_group", high=MAX_HEADS)
    kv_heads = must_divide(fields.heads(), group, attention.at("n_heads_in_group"), "groups")
    shape = HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)
    window = attention.integer_or_none("window_length")
    return Layer(states=(shape.full() if window is None else sliding(shape, window),))


def _grok(fields: Fields) -> HeadShape:
    width = fields.dim("key_size")
    return HeadShape(kv_heads=shared_heads(fields, "num_kv_heads"), k_dim=width, v_dim=width)


def _minicpm_check(fields: Fields) -> HeadShape:
    """Return plain heads; MiniCPM4's sparse reading keeps all positions (`sparse_config`)."""
    if fields.says("kv_lora_rank"):
        raise Conflict(
            "{field} is set, and {model_type} has no latent attention",
            field=fields.at("kv_lora_rank"),
            model_type=fields.model_type,
        )
    if fields.says("sparse_config"):
        raise Unsupported(
            "{field} is set, and what its sparse layers keep is not modelled",
            field=fields.at("sparse_config"),
        )
    return grouped(fields)


_mimo = windowed(from_max_window_layers)

FAMILIES: tuple[Family, ...] = (
    Family(
        name="grouped",
        model_types=_LIKE_LLAMA,
        layers=windowed(heads=_minicpm_check),
        defaults={"num_key_value_heads": None, "head_dim": None, "sliding_window": None},
        reads=frozenset({"drop_vision_last_layer"}),
        source="modelling files that follow Llama's, each in its model's repository",
    ),
    Family(
        name="multi_head",
        model_types=_MULTI_HEAD[:3],
        layers=windowed(heads=_baichuan_like),
        source="https://huggingface.co/Qwen/Qwen-7B modeling_qwen.py and kin",
    ),
    Family(
        name="multi_head",
        model_types=_MULTI_HEAD[3:],
        layers=windowed(heads=multi_head),
        aliases=_GPT,
        source="https://huggingface.co/inceptionai/jais-13b modeling_jais.py",
    ),
    Family(
        name="chatglm",
        model_types=("chatglm",),
        layers=windowed(heads=_chatglm),
        aliases={"num_hidden_layers": "num_layers"},
        source="https://huggingface.co/THUDM/chatglm3-6b modeling_chatglm.py",
    ),
    Family(
        name="phi-msft",
        model_types=("phi-msft",),
        layers=windowed(heads=_phi_msft),
        aliases=_GPT,
        source="https://huggingface.co/microsoft/phi-2 modeling_phi.py",
    ),
    Family(
        name="falcon",
        model_types=("RefinedWeb", "RefinedWebModel"),
        layers=windowed(heads=_refined_web),
        aliases={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        source="https://huggingface.co/tiiuae/falcon-40b modelling_RW.py",
    ),
    Family(
        name="codeshell",
        model_types=("codeshell",),
        layers=windowed(heads=_codeshell),
        aliases=_GPT,
        source="https://huggingface.co/WisdomShell/CodeShell-7B modeling_codeshell.py",
    ),
    Family(
        name="gpt_refact",
        model_types=("gpt_refact",),
        layers=windowed(heads=one_if_multi_query),
        aliases=_GPT,
        source="https://huggingface.co/smallcloudai/Refact-1_6B-fim modeling_gpt_refact.py",
    ),
    Family(
        name="hf_olmo",
        model_types=("hf_olmo",),
        layers=windowed(heads=_hf_olmo),
        aliases={"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                 "hidden_size": "d_model"},
        source="https://huggingface.co/allenai/OLMo-7B",
    ),
    Family(
        name="phi3small",
        model_types=("phi3small",),
        layers=_phi3small_layers,
        source="https://huggingface.co/microsoft/Phi-3-small-8k-instruct modeling_phi3_small.py",
    ),
    Family(
        name="openelm",
        model_types=("openelm",),
        layers=_openelm_layers,
        aliases={"num_hidden_layers": "num_transformer_layers"},
        source="https://huggingface.co/apple/OpenELM-3B modeling_openelm.py",
    ),
    Family(
        name="nemotron-nas",
        model_types=("nemotron-nas", "deci"),
        layers=_deci_layers,
        source="https://arxiv.org/abs/2411.19146; "
        "https://huggingface.co/nvidia/Llama-3_3-Nemotron-Super-49B-v1 modeling_decilm.py",
    ),
    Family(
        name="mimo",
        model_types=("mimo",),
        layers=_mimo,
        draft=like_the_last(_mimo),
        defaults={"use_sliding_window": False, "sliding_window": 4096},
        source="https://huggingface.co/XiaomiMiMo/MiMo-7B-Base modeling_mimo.py",
    ),
    Family(
        name="grok",
        model_types=("grok-1",),
        layers=windowed(heads=_grok),
        aliases={"num_hidden_layers": "num_layers", "num_attention_heads": "num_q_heads"},
        source="https://github.com/xai-org/grok-1 run.py",
    ),
)  # fmt: skip
