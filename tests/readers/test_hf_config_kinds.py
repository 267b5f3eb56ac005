"""Latent, compressed, shared, uneven and looped layers, and draft layers, from a config."""

from __future__ import annotations

import pytest

from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, DomainError, Missing, OutOfRange, Unsupported, WrongType
from app.domain.state import (
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    Recurrent,
    Shared,
    SlidingWindow,
    StateTensor,
)
from app.readers.hf_config import read_config
from tests.readers.hf_states import BASE, kept_bytes, kinds, states

Config = dict[str, object]
SLIDE, FULL = "sliding_attention", "full_attention"
LATENT: Config = {**BASE, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 4,
                  "v_head_dim": 128, "qk_nope_head_dim": 128, "num_key_value_heads": 32,
                  "q_lora_rank": None}  # fmt: skip


# Latent attention


@pytest.mark.parametrize(
    "model_type",
    ["deepseek_v2", "deepseek_v3", "kimi_k2", "axk1", "glm4_moe_lite", "minicpm3", "youtu",
     "mistral4", "sarvam_mla"],
)  # fmt: skip
def test_latent_layers_keep_rank_and_rope(model_type: str) -> None:
    """A latent layer keeps kv_lora_rank + qk_rope_head_dim, whatever the heads and query rank."""
    state = LatentAttention(latent_dim=512, rope_dim=64)
    assert states({**LATENT, "model_type": model_type}) == [(state,)] * 4
    assert states({**LATENT, "model_type": model_type, "num_key_value_heads": 1}) == [(state,)] * 4


def test_a_latent_type_without_its_latent_is_plain() -> None:
    """DeepSeek-VL2-tiny says `kv_lora_rank: null`: its heads are then ordinary ones."""
    config: Config = {"model_type": "deepseek_v2", "kv_lora_rank": None, "use_mla": False,
                      "hidden_size": 1280, "num_attention_heads": 10, "num_key_value_heads": 10,
                      "num_hidden_layers": 2, "qk_rope_head_dim": 0}  # fmt: skip
    assert states(config) == [(FullAttention(kv_heads=10, k_dim=128, v_dim=128),)] * 2
    off = {**config, "kv_lora_rank": 512}
    assert states(off) == states(config)


def test_a_rank_without_its_rope_part() -> None:
    """The rope part that the file lacks is the class's, aloud; a type without class is refused."""
    config = {key: value for key, value in LATENT.items() if key != "qk_rope_head_dim"}
    reading = read_config({**config, "model_type": "deepseek_v3"})
    assert kept_bytes(reading, 1) == 4 * 576 * 2
    assert [note.text for note in reading.assumptions] == [
        "qk_rope_head_dim is not in the file; deepseek_v3 takes 64"
    ]
    with pytest.raises(Missing) as refused:
        read_config({**config, "model_type": "kimi_k2"})
    assert refused.value.field == ("qk_rope_head_dim",)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "deepseek_v32"}, "1111"),
        ({"model_type": "axk2"}, "1111"),
        ({"model_type": "glm_moe_dsa"}, "1111"),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full", "shared", "full", "shared"]},
         "1010"),
        ({"model_type": "glm_moe_dsa", "index_topk_pattern": "FSSF"}, "1001"),
        ({"model_type": "glm_moe_dsa", "index_topk_pattern": ["full", "shared"] * 2}, "1010"),
        ({"model_type": "glm_moe_dsa", "index_topk_freq": 2}, "1101"),
        ({"model_type": "glm_moe_dsa", "index_topk_freq": 0}, "1111"),
        ({"model_type": "glm_moe_dsa", "index_topk_freq": 4, "index_skip_topk_offset": 1}, "1000"),
        ({"model_type": "hy_v4"}, "1100"),
        ({"model_type": "hy_v4_vl_text", "indexer_types": ["shared"] * 4}, "0000"),
    ],
)  # fmt: skip
def test_which_sparse_layers_keep_index_keys(config: Config, expected: str) -> None:
    """Only layers that choose positions themselves keep index keys: by list, letters or period."""
    found = states({**LATENT, "index_head_dim": 128, **config})
    dims = [own[0].index_dim for own in found if isinstance(own[0], LatentAttention)]
    assert dims == [128 * int(mark) for mark in expected]


def test_longcat_counts_two_attentions_a_layer() -> None:
    """LongCat-Flash has two attentions in each of `num_layers`; num_hidden_layers counts both."""
    config = {**LATENT, "model_type": "longcat_flash"}
    del config["num_hidden_layers"]
    assert kinds({**config, "num_layers": 3}) == "L" * 6
    assert kinds({**config, "num_layers": 3, "num_hidden_layers": 6}) == "L" * 6
    assert kinds({**config, "num_hidden_layers": 6}) == "L" * 6
    assert kinds(config) == "L" * 56


def test_mistral_large4_shares_latents_and_keeps_index_keys() -> None:
    """A layer that reads another's latent still keeps index keys, unless it shares those too."""
    config = {**LATENT, "model_type": "mistral_large4_text", "index_head_dim": 128,
              "kv_source_layers": [0, 0, 2, 2], "no_rope_layers": [1, 1, 0, 1],
              "indexer_types": ["full", "full", "full", "shared"]}  # fmt: skip
    index_only = LatentAttention(latent_dim=0, rope_dim=0, index_dim=128)
    assert states(config) == [
        (LatentAttention(latent_dim=512, rope_dim=64, index_dim=128),),
        (Shared(with_layer=0), index_only),
        (LatentAttention(latent_dim=512, rope_dim=0, index_dim=128),),
        (Shared(with_layer=2),),
    ]
    alone = {**config, "kv_source_layers": None, "no_rope_layers": None, "indexer_types": None}
    assert kinds(alone) == "LLLL"


def test_dots3_windows_have_a_latent_of_their_own() -> None:
    """Sliding layers keep another rank and rope part; sparse ones index keys in fp32."""
    config = {**LATENT, "model_type": "dots3_note_text", "index_head_dim": 128,
              "sliding_window": 64}  # fmt: skip
    indexed = LatentAttention(
        latent_dim=512, rope_dim=64, index_dim=128, index_format=DTYPES["fp32"]
    )
    window = LatentAttention(latent_dim=1024, rope_dim=64, window=64)
    assert states(config) == [(indexed,), (indexed,), (window,), (window,)]
    assert states({**config, "use_sliding_window": False}) == [(indexed,)] * 4
    plain = {**config, "use_dsa": False, "layer_types": [FULL, SLIDE, FULL, SLIDE],
             "swa_kv_lora_rank": 256, "swa_head_dim": 192, "swa_qk_nope_head_dim": 160}  # fmt: skip
    own = LatentAttention(latent_dim=256, rope_dim=32, window=64)
    assert states(plain)[:2] == [(LatentAttention(latent_dim=512, rope_dim=64),), (own,)]
    rope = {**plain, "swa_qk_rope_head_dim": 16}
    assert states(rope)[1] == (LatentAttention(latent_dim=256, rope_dim=16, window=64),)
    assert states({**config, "layer_types": [SLIDE] * 4}) == [(window,)] * 4
    saved = {**config, "layer_types": ["indexed_attention", SLIDE, FULL, SLIDE],
             "per_layer_config": {
                 "1": {"kv_lora_rank": 30, "qk_rope_head_dim": 6},
                 "3": {"kv_lora_rank": 30, "qk_rope_head_dim": 6}}}  # fmt: skip
    assert states(saved)[:3] == [
        (indexed,),
        (LatentAttention(latent_dim=30, rope_dim=6, window=64),),
        (LatentAttention(latent_dim=512, rope_dim=64),),
    ]


# DeepSeek-V4

V4: Config = {**BASE, "model_type": "deepseek_v4", "head_dim": 512, "qk_rope_head_dim": 64,
              "sliding_window": 128, "index_head_dim": 128, "num_hidden_layers": 3,
              "num_key_value_heads": 1, "compress_ratios": [0, 4, 128, 0],
              "num_nextn_predict_layers": 1}  # fmt: skip


def test_deepseek_v4_keeps_a_window_and_compressed_entries() -> None:
    """Every layer keeps a window of one vector; compressed ones an entry a group, and its rest."""
    raw = LatentAttention(latent_dim=448, rope_dim=64, window=128)
    overlap = Recurrent(
        tensors=(
            StateTensor(name="overlap_kv", shape=(4, 640), dtype=DTYPES["bf16"]),
            StateTensor(name="overlap_gate", shape=(4, 640), dtype=DTYPES["fp32"]),
        )
    )
    assert states(V4) == [
        (raw,),
        (
            raw,
            LatentAttention(latent_dim=448, rope_dim=64, index_dim=128, tokens_per_entry=4),
            ChunkedAttention(kv_heads=1, k_dim=1280, v_dim=1280, chunk=4),
            overlap,
        ),
        (
            raw,
            LatentAttention(latent_dim=448, rope_dim=64, tokens_per_entry=128),
            ChunkedAttention(kv_heads=1, k_dim=512, v_dim=512, chunk=128),
        ),
    ]
    assert [layer.states for layer in read_config(V4).draft_layers] == [(raw,)]


@pytest.mark.parametrize(
    ("change", "rates"),
    [
        ({"compress_ratios": None}, [128, 128, 128]),
        ({"compress_ratios": None, "num_hidden_layers": 4}, [128, 128, 128, 4]),
        ({"layer_types": ["heavily_compressed_attention", SLIDE, "compressed_sparse_attention"]},
         [128, None, 4]),
        ({"layer_types": ["heavily_compressed_attention"] * 3,
          "compress_rates": {"heavily_compressed_attention": 6}}, [6, 6, 6]),
        ({"compress_rate_hca": 32, "compress_rate_csa": 8}, [None, 8, 32]),
    ],
)  # fmt: skip
def test_deepseek_v4_says_which_layers_compress(change: Config, rates: list[int | None]) -> None:
    """layer_types, then compress_ratios, then the class's own order say how each layer pools."""
    found = states({**V4, "num_nextn_predict_layers": 0, **change})
    entries = [own[1] if len(own) > 1 else None for own in found]
    assert [getattr(entry, "tokens_per_entry", None) for entry in entries] == rates


def test_a_file_without_a_format_has_its_states_assumed() -> None:
    """Where the file names no format of weights, states of that format are counted as bf16."""
    config = {**V4, "torch_dtype": "float8_e4m3fn"}
    assert [note.code for note in read_config(config).assumptions] == ["state_dtype"]
    half = read_config({**V4, "torch_dtype": "float32"})
    assert kept_bytes(half, 4) - kept_bytes(read_config(V4), 4) == 4 * 640 * 2


# Shared keys and values


def test_last_layers_share_with_the_last_of_their_kind() -> None:
    """Gemma 3n's last layers read the last own layer of the same kind, and keep nothing."""
    config = {**BASE, "model_type": "gemma3n_text", "num_hidden_layers": 7, "head_dim": 256,
              "num_key_value_heads": 2, "sliding_window": 512, "num_kv_shared_layers": 2,
              "layer_types": [SLIDE, SLIDE, FULL, SLIDE, FULL, SLIDE, FULL]}  # fmt: skip
    assert kinds(config) == "SSFSFKK"
    assert states(config)[5:] == [(Shared(with_layer=3),), (Shared(with_layer=4),)]
    assert kinds({**config, "num_kv_shared_layers": 0}) == "SSFSFSF"
    assert kinds({**config, "layer_types": None, "num_kv_shared_layers": 1}) == "SSSSFSK"


def test_gemma4_full_layers_are_wider() -> None:
    """Full layers have `global_head_dim`, and fewer KV heads where keys and values are one."""
    config = {**BASE, "model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 256,
              "num_key_value_heads": 4, "sliding_window": 512}  # fmt: skip
    narrow = SlidingWindow(kv_heads=4, k_dim=256, v_dim=256, window=512)
    assert states(config)[4:] == [
        (narrow,),
        (FullAttention(kv_heads=4, k_dim=512, v_dim=512),),
    ]
    shared = {**config, "global_head_dim": 384, "num_global_key_value_heads": 2}
    assert states(shared)[5] == (FullAttention(kv_heads=4, k_dim=384, v_dim=384),)
    tied = {**shared, "attention_k_eq_v": True}
    assert states(tied)[5] == (FullAttention(kv_heads=2, k_dim=384, v_dim=384),)
    ungated = {**shared, "model_type": "diffusion_gemma_text"}
    assert states(ungated)[5] == (FullAttention(kv_heads=2, k_dim=384, v_dim=384),)
    saved = {**config, "per_layer_config": {"5": {"head_dim": 20, "num_key_value_heads": 2}}}
    assert states(saved)[5] == (FullAttention(kv_heads=2, k_dim=20, v_dim=20),)
    null = {**config, "per_layer_config": {"5": None}}
    assert states(null)[5] == (FullAttention(kv_heads=4, k_dim=512, v_dim=512),)


def test_gemma4_forces_its_last_layer_to_be_full() -> None:
    """A list that ends in a window is mended as the class does, and the answer says so."""
    config = {**BASE, "model_type": "gemma4_text", "num_hidden_layers": 2, "head_dim": 256,
              "num_key_value_heads": 4, "layer_types": [SLIDE, SLIDE]}  # fmt: skip
    assert kinds(config) == "SF"
    codes = [note.code for note in read_config(config).assumptions]
    assert codes == ["class_default", "last_layer_full", "class_default"]


def test_hunyuan_shares_across_layers() -> None:
    """With `use_cla`, each group of `cla_share_factor` layers reads what its first one keeps."""
    config = {**BASE, "model_type": "hunyuan", "num_hidden_layers": 5, "attention_head_dim": 128,
              "num_key_value_heads": 8, "cla_share_factor": 2}  # fmt: skip
    assert kinds(config) == "FFFFF"
    assert kinds({**config, "use_cla": True}) == "FKFKF"
    assert states({**config, "use_cla": True})[3] == (Shared(with_layer=2),)


# Uneven layers


def test_mimo_has_other_heads_where_it_slides() -> None:
    """MiMo-V2's values are narrower than its keys; its sliding layers have heads of their own."""
    config = {**BASE, "model_type": "mimo_v2_flash", "num_hidden_layers": 2, "head_dim": 192,
              "v_head_dim": 128, "num_key_value_heads": 4, "hybrid_layer_pattern": [0, 1],
              "sliding_window": 128}  # fmt: skip
    full = FullAttention(kv_heads=4, k_dim=192, v_dim=128)
    assert states(config) == [
        (full,),
        (SlidingWindow(kv_heads=8, k_dim=192, v_dim=128, window=128),),
    ]
    own = {**config, "swa_num_key_value_heads": 2, "swa_head_dim": 96, "swa_v_head_dim": 64}
    assert states(own)[1] == (SlidingWindow(kv_heads=2, k_dim=96, v_dim=64, window=128),)
    assert kinds({**config, "hybrid_layer_pattern": None, "num_hidden_layers": 7}) == "FSSSSFS"


def test_step_lists_run_on_into_the_draft_layers() -> None:
    """Step-3.7's list names the draft layers too; a dict may give sliding layers other heads."""
    text = {**BASE, "head_dim": 128, "num_attention_groups": 8, "num_hidden_layers": 2,
            "sliding_window": 512, "num_nextn_predict_layers": 2,
            "layer_types": [FULL, SLIDE, SLIDE, FULL]}  # fmt: skip
    reading = read_config({"model_type": "step3p7", "text_config": text})
    assert [layer.states[0].kind for layer in reading.state.layers] == [
        "full_attention", "sliding_window",
    ]  # fmt: skip
    assert [layer.states[0].kind for layer in reading.draft_layers] == [
        "sliding_window", "full_attention",
    ]  # fmt: skip
    other = {**text, "layer_types": [FULL, SLIDE], "attention_other_setting": {
        "num_attention_heads": 96, "num_attention_groups": 4, "head_dim": 64}}  # fmt: skip
    flat: Config = {"model_type": "step3p7", **other}
    assert states(flat)[1] == (SlidingWindow(kv_heads=4, k_dim=64, v_dim=64, window=512),)
    assert len(read_config(flat).draft_layers) == 2


def test_minimax_m3_sparse_layers_keep_an_index_key() -> None:
    """Sparse layers keep one index key beside keys and values, by either spelling."""
    config = {**BASE, "model_type": "minimax_m3_vl_text", "num_hidden_layers": 2, "head_dim": 128,
              "num_key_value_heads": 4}  # fmt: skip
    plain = FullAttention(kv_heads=4, k_dim=128, v_dim=128)
    old = {**config, "sparse_attention_config": {
        "sparse_attention_freq": [0, 1], "sparse_index_dim": 96}}  # fmt: skip
    assert states(old) == [
        (plain,),
        (FullAttention(kv_heads=4, k_dim=128, v_dim=128, index_dim=96),),
    ]
    new = {**config, "layer_types": [FULL, "minimax_m3_sparse"], "index_head_dim": 64}
    assert states(new)[1] == (FullAttention(kv_heads=4, k_dim=128, v_dim=128, index_dim=64),)
    off = {**config, "sparse_attention_config": {
        "sparse_attention_freq": [0, 1], "use_sparse_attention": False}}  # fmt: skip
    assert states(off) == states(config) == [(plain,)] * 2


# Loops


def test_hrm_keeps_a_stack_for_each_pass() -> None:
    """HRM passes a stack H × (L + 1) times; the file gives the stack, or stack and total."""
    config = {**BASE, "model_type": "hrm_text", "head_dim": 128, "H_cycles": 2, "L_cycles": 3}
    assert len(states({**config, "num_hidden_layers": 2})) == 16
    assert len(states({**config, "num_hidden_layers": 16, "num_layers_per_stack": 2})) == 16
    assert len(states(config)) == 128


def test_dory_loops_its_middle_layers() -> None:
    """The middle layers keep what each loop adds, unless the last loop overwrites the others."""
    config = {**BASE, "model_type": "dory", "head_dim": 128, "num_key_value_heads": 4,
              "num_hidden_layers": 4, "n_input_layers": 1, "n_output_layers": 1,
              "n_recurrent_loops": 3, "sliding_window": 64,
              "layer_types": [SLIDE, FULL, SLIDE, FULL]}  # fmt: skip
    assert kinds(config) == "SFSFSFSF"
    assert kinds({**config, "recurrent_kv_cache_mode": "last_loop"}) == "SFSF"
    assert kinds({**config, "n_recurrent_layers": 2}) == "SFSFSFSF"
    assert kinds({**config, "layer_types": None}) == "SSSSSSSF"
    pairs = {**config, "num_hidden_layers": 8, "n_input_layers": 2, "n_output_layers": 2,
             "n_recurrent_layers": 4,
             "layer_types": [SLIDE, "mlp", FULL, "mlp", SLIDE, "mlp", FULL, "mlp"]}  # fmt: skip
    assert kinds(pairs) == "SFSFSFSF"


INKLING: Config = {**BASE, "model_type": "inkling2_loop_text", "num_hidden_layers": 4,
                   "head_dim": 128, "num_key_value_heads": 8, "swa_num_key_value_heads": 4,
                   "swa_head_dim": 64, "sliding_window_size": 32, "conv_kernel_size": 4,
                   "hidden_size": 256, "layer_types": ["hybrid_sliding", "hybrid"] * 2}  # fmt: skip


def test_inkling_keeps_convolutions_beside_attention() -> None:
    """Each layer keeps keys and values, and three columns of four convolutions in fp32."""
    config = {**INKLING, "model_type": "inkling_text"}
    attention, convolutions = states(config)[0]
    assert attention == SlidingWindow(kv_heads=4, k_dim=64, v_dim=64, window=32)
    assert convolutions.fixed_bytes() == (256 + 256 + 256 + 256) * 3 * 4
    assert states(config)[1][0] == FullAttention(kv_heads=8, k_dim=128, v_dim=128)
    assert kinds({**config, "layer_types": None, "num_hidden_layers": 7}) == "SSSSSFS"
    assert kinds({**config, "layer_types": None, "local_layer_ids": [0, 3]}) == "SFFS"
    assert len(states({**config, "conv_kernel_size": 1})[0]) == 1


def test_inkling_passes_its_core_several_times() -> None:
    """Core layers keep a cache for each pass, by flat fields or by `loop_config`."""
    flat = {**INKLING, "loop_layer_index_start": 1, "loop_layer_index_end": 3,
            "loop_num_passes": 2}  # fmt: skip
    assert kinds(flat) == "SFSFSF"
    nested = {**INKLING, "loop_config": {"core_start": 0, "core_end": 2, "num_passes": 3}}
    assert kinds(nested) == "SFSFSFSF"


# Draft layers


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"num_nextn_predict_layers": 1}, 1),
        ({"num_nextn_predict_layers": 0}, 0),
        ({"num_mtp_layers": 2}, 2),
        ({"mtp_num_hidden_layers": 1}, 1),
        ({"num_mtp_modules": 3, "mtp_transformer_layers": 2}, 6),
        ({"num_mtp_modules": 3}, 3),
        ({}, 0),
    ],
)
def test_draft_layers_are_counted_apart(fields: Config, count: int) -> None:
    """Layers of multi-token prediction keep what the last layer keeps, and are no part of it."""
    config = {**BASE, "model_type": "glm4_moe", "num_hidden_layers": 2, "head_dim": 128,
              "num_key_value_heads": 8}  # fmt: skip
    reading = read_config({**config, **fields})
    assert [layer.states for layer in reading.draft_layers] == [
        (FullAttention(kv_heads=8, k_dim=128, v_dim=128),)
    ] * count
    assert reading.state.num_layers == 2
    assert [note.code for note in reading.notes] == ["draft_layers"] * bool(count)


# Refusals


@pytest.mark.parametrize(
    ("config", "error", "field"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": "512"}, WrongType, ("kv_lora_rank",)),
        ({"model_type": "deepseek_v3", "qk_rope_head_dim": None}, Missing, ("qk_rope_head_dim",)),
        ({"model_type": "deepseek_v3", "index_head_dim": 128}, Unsupported, ("index_head_dim",)),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full"]}, Conflict, ("indexer_types",)),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full"] * 3 + ["odd"]}, Unsupported,
         ("indexer_types",)),
        ({"model_type": "glm_moe_dsa", "index_topk_pattern": "FS"}, Conflict,
         ("index_topk_pattern",)),
        ({"model_type": "mistral_large4_text", "kv_source_layers": [0, 0, 9, 9]}, OutOfRange,
         ("kv_source_layers", 2)),
        ({"model_type": "dots3_note_text", "layer_types": [SLIDE] * 3 + ["odd"]}, Unsupported,
         ("layer_types", 3)),
        ({"model_type": "dots3_note_text", "swa_head_dim": 64}, Conflict,
         ("swa_qk_nope_head_dim",)),
        ({"model_type": "deepseek_v4", "compress_ratios": [0, 4]}, Conflict, ("compress_ratios",)),
        ({"model_type": "deepseek_v4", "compress_ratios": [0, 4, 8, 4]}, Unsupported,
         ("compress_ratios",)),
        ({"model_type": "deepseek_v4", "layer_types": ["odd"] * 4}, Unsupported, ("layer_types",)),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 4}, Conflict,
         ("num_kv_shared_layers",)),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 2, "sliding_window": 8,
          "layer_types": [SLIDE, SLIDE, FULL, FULL]}, Conflict, ("num_kv_shared_layers",)),
        ({"model_type": "gemma4_text", "per_layer_config": {"9": {}}}, Conflict,
         ("per_layer_config", "'9'")),
        ({"model_type": "gemma4_text", "per_layer_config": {"x": {}}}, Conflict,
         ("per_layer_config", "'x'")),
        ({"model_type": "gemma4_text", "per_layer_config": {"1": 3}}, WrongType,
         ("per_layer_config", "1")),
        ({"model_type": "hunyuan", "use_cla": True}, Missing, ("cla_share_factor",)),
        ({"model_type": "hunyuan"}, Unsupported, ("kv_lora_rank",)),
        ({"model_type": "hrm_text", "H_cycles": 999, "L_cycles": 999}, OutOfRange, ("H_cycles",)),
        ({"model_type": "dory", "n_input_layers": 3, "n_output_layers": 3}, Conflict,
         ("n_recurrent_layers",)),
        ({"model_type": "dory", "n_input_layers": 1, "n_output_layers": 1,
          "recurrent_kv_cache_mode": "odd"}, Unsupported, ("recurrent_kv_cache_mode",)),
        ({"model_type": "dory", "n_input_layers": 1, "n_output_layers": 1,
          "recurrent_kv_cache_mode": 3}, WrongType, ("recurrent_kv_cache_mode",)),
        ({"model_type": "inkling2_loop_text", "loop_layer_index_start": 3,
          "loop_layer_index_end": 2, "head_dim": 8}, Conflict, ("loop_layer_index_start",)),
        ({"model_type": "glm4_moe", "num_nextn_predict_layers": 10**6}, OutOfRange,
         ("num_nextn_predict_layers",)),
    ],
)  # fmt: skip
def test_contradictions_are_refused(
    config: Config, error: type[DomainError], field: tuple[object, ...]
) -> None:
    """Lists of another length, kinds nobody knows, loops that do not fit: refused by field."""
    common = {**LATENT, "head_dim": 128, "index_head_dim": 128, "sliding_window": 64}
    if config["model_type"] == "hunyuan" and "use_cla" in config:
        common["kv_lora_rank"] = None
    if config["model_type"] in ("deepseek_v3", "glm4_moe"):
        del common["index_head_dim"], common["sliding_window"]
    with pytest.raises(error) as refused:
        read_config({**common, **config})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"num_nextn_predict_layers": 1}, {"draft_passed_over"}),
        ({"mtp_num_hidden_layers": 2}, {"draft_passed_over"}),
        ({"num_mtp_modules": 3}, {"draft_passed_over"}),
        ({"num_nextn_predict_layers": 0}, set()),
        ({"num_nextn_predict_layers": None}, set()),
        ({}, set()),
    ],
)
def test_draft_layers_that_no_rule_covers_are_spoken_of(
    extra: dict[str, object], said: set[str]
) -> None:
    """A plain decoder that names layers of multi-token prediction says that they do not count."""
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    reading = read_config({**config, **extra})
    assert reading.state.num_layers == 2
    assert reading.draft_layers == ()
    assert said <= {note.code for note in reading.assumptions}
    assert ("draft_passed_over" in {note.code for note in reading.assumptions}) is bool(said)
