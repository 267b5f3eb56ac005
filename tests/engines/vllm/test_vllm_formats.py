"""Bytes of a row in every cache format, and which one a checkpoint switches on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.domain.errors import Unsupported
from app.domain.state import FullAttention, LatentAttention, Layer, ModelState
from app.engines.vllm import plan
from app.engines.vllm.kv_formats import format_named, format_of_checkpoint, turboquant_slot_bytes
from app.engines.vllm.specs import FullSpec, MlaSpec

HEADS = FullSpec(block_size=1, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16")
LATENT = MlaSpec(block_size=1, k_dim=576, dtype="bfloat16")
GIB = 2**30


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        ("auto", 8 * 512),
        ("bfloat16", 8 * 512),
        ("float16", 8 * 512),
        ("fp8", 8 * 256),
        ("fp8_e5m2", 8 * 256),
        ("fp8_inc", 8 * 256),
        ("nvfp4", 8 * 144),
        ("int8_per_token_head", 8 * 264),
        ("fp8_per_token_head", 8 * 264),
        ("int4_per_token_head", 8 * 136),
        ("turboquant_k8v4", 8 * 196),
        ("turboquant_4bit_nc", 8 * 134),
        ("turboquant_k3v4_nc", 8 * 118),
        ("turboquant_3bit_nc", 8 * 102),
    ],
)
def test_bytes_of_a_token_of_eight_heads(name: str, size_bytes: int) -> None:
    """128 wide keys and values: packed rows carry their scales with them."""
    assert format_named(name, "bfloat16").pack(HEADS).page_bytes == size_bytes


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        ("auto", 1152),
        ("bfloat16", 1152),
        ("fp8", 576),
        ("fp8_e4m3", 576),
        ("fp8_ds_mla", 656),
        ("nvfp4_ds_mla", 352),
    ],
)
def test_bytes_of_a_latent(name: str, size_bytes: int) -> None:
    """576 elements: 512 fp8 values, 16 bytes of scales and 128 of rotary values are 656."""
    assert format_named(name, "bfloat16").pack(LATENT).page_bytes == size_bytes


@pytest.mark.parametrize("name", ["nvfp4", "int8_per_token_head", "turboquant_k8v4"])
def test_latents_have_no_such_format(name: str) -> None:
    """These pack heads."""
    with pytest.raises(Unsupported, match=f"no latent cache in {name}"):
        format_named(name, "bfloat16").pack(LATENT)


@pytest.mark.parametrize("name", ["fp8_ds_mla", "nvfp4_ds_mla"])
def test_heads_have_no_latent_format(name: str) -> None:
    """And these pack latents."""
    with pytest.raises(Unsupported, match="latent caches alone"):
        format_named(name, "bfloat16").pack(HEADS)


def test_nvfp4_needs_keys_as_wide_as_values() -> None:
    """It keeps keys and values as heads apart of one width."""
    uneven = FullSpec(block_size=1, kv_heads=8, k_dim=192, v_dim=128, dtype="bfloat16")
    with pytest.raises(Unsupported, match="different widths"):
        format_named("nvfp4", "bfloat16").pack(uneven)


@pytest.mark.parametrize(
    ("name", "dim", "size_bytes"),
    [("turboquant_k8v4", 64, 100), ("turboquant_3bit_nc", 64, 54), ("turboquant_3bit_nc", 96, 78)],
)
def test_turboquant_slots_are_even(name: str, dim: int, size_bytes: int) -> None:
    """Keys (with a 2-byte norm unless 8 bits), values, 4 bytes of scales, rounded up to even."""
    assert turboquant_slot_bytes(name, dim) == size_bytes


def test_turboquant_leaves_the_outer_layers_of_a_dense_model() -> None:
    """The first and last two stay in the model's type; the block covers their smallest page."""
    state = ModelState.uniform(layers=8, kv_heads=8, head_dim=128)
    got = plan({}, state, {"kv_cache_dtype": "turboquant_k8v4", "max_model_len": 4096}, GIB)
    sizes = [spec.unpadded_page_bytes for spec in got.layer_specs[0].values()]
    plain, packed = got.block_size * 4096, got.block_size * 8 * 196
    assert sizes == [plain] * 2 + [packed] * 4 + [plain] * 2
    assert got.block_size == 32


SCHEME = {"type": "float", "num_bits": 8, "dynamic": False}


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        (None, "auto"),
        ("fp8", "auto"),
        ({"quant_method": "fp8"}, "auto"),
        ({"quant_method": 8}, "auto"),
        ({"quant_method": "compressed-tensors"}, "auto"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME}, "fp8"),
        ({"quant_method": "compressed_tensors", "kv_cache_scheme": SCHEME}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_scheme": SCHEME}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_scheme": SCHEME | {"dynamic": True}}, "auto"),
        ({"quant_method": "modelopt", "kv_cache_scheme": SCHEME | {"num_bits": 4}}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_scheme": SCHEME | {"type": "int"}}, "auto"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt_fp4", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, "auto"),
        ({"quant_method": "modelopt"}, "auto"),
        (
            {
                "producer": {"name": "modelopt"},
                "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
            },
            "fp8_e4m3",
        ),
        (
            {"producer": {"name": "other"}, "quantization": {"kv_cache_quant_algo": "FP8"}},
            "auto",
        ),
    ],
)
def test_a_checkpoint_may_switch_the_cache_to_fewer_bits(quantization: object, name: str) -> None:
    """ModelOpt and compressed-tensors files say so in their quantization_config."""
    assert format_of_checkpoint({"quantization_config": quantization}) == name


def test_a_flag_goes_before_the_checkpoint() -> None:
    """A format asked for is not overruled."""
    config = {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}
    state = ModelState.uniform(layers=1, kv_heads=8, head_dim=128)
    asked: Mapping[str, object] = {"kv_cache_dtype": "bfloat16"}
    assert plan(config, state, {}, GIB).kv_cache_dtype == "fp8_e4m3"
    assert plan(config, state, asked, GIB).kv_cache_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("config", "settings", "size_bytes"),
    [
        ({"torch_dtype": "float16"}, {}, 2),
        ({"dtype": "torch.bfloat16"}, {}, 2),
        ({"torch_dtype": "float32"}, {}, 2),
        ({}, {}, 2),
        ({}, {"dtype": "float"}, 4),
        ({"torch_dtype": "bfloat16"}, {"dtype": "float32"}, 4),
    ],
)
def test_the_models_type_is_the_caches(
    config: dict[str, object], settings: dict[str, object], size_bytes: int
) -> None:
    """Checkpoints in float32 run in 16 bits unless float32 is asked for."""
    state = ModelState.of_layers([Layer(states=(FullAttention(kv_heads=1, k_dim=64, v_dim=64),))])
    got = plan(config, state, settings, GIB)
    assert got.groups[0].page_size_bytes == 16 * 128 * size_bytes


@pytest.mark.parametrize(
    ("capability", "name", "index_dim", "block", "kept"),
    [
        ("8.0", "auto", 0, 16, "auto"),
        ("8.9", "fp8", 0, 16, "fp8"),
        ("9.0", "auto", 0, 16, "auto"),
        ("9.0", "fp8", 0, 64, "fp8"),
        ("10.0", "auto", 0, 32, "auto"),
        ("12.0", "auto", 0, 16, "auto"),
        ("9.0", "auto", 128, 64, "auto"),
        ("9.0", "fp8", 128, 64, "fp8_ds_mla"),
        ("9.0", "fp8_e4m3", 128, 64, "fp8_e4m3"),
        ("10.0", "auto", 128, 64, "auto"),
        ("10.0", "fp8", 128, 64, "fp8"),
        ("12.0", "auto", 128, 64, "fp8_ds_mla"),
    ],
)
def test_the_device_decides_a_latents_block(
    capability: str, name: str, index_dim: int, block: int, kept: str
) -> None:
    """The backend of each device has its own block, and its own packed form for sparse latents."""
    latent = LatentAttention(latent_dim=512, rope_dim=64, index_dim=index_dim)
    state = ModelState.of_layers([Layer(states=(latent,))])
    got = plan({}, state, {"device_capability": capability, "kv_cache_dtype": name}, GIB)
    assert (got.block_size, got.kv_cache_dtype) == (block, kept)


@pytest.mark.parametrize(
    ("version", "capability", "block"),
    [
        ("0.17.0", "9.0", 64),
        ("0.17.0", "10.0", 128),
        ("0.9.2", "10.0", 16),
        ("0.17.0", "8.0", 16),
        ("0.7.3", "9.0", 16),
    ],
)
def test_earlier_releases_forced_a_latents_block(version: str, capability: str, block: int) -> None:
    """Before backends were asked, the platform set it."""
    state = ModelState.of_layers([Layer(states=(LatentAttention(latent_dim=512, rope_dim=64),))])
    got = plan({}, state, {"device_capability": capability, "version": version}, GIB)
    assert got.block_size == block


@pytest.mark.parametrize(
    ("settings", "index_dim", "text"),
    [
        ({"device_capability": "8.0", "kv_cache_dtype": "fp8"}, 0, "below compute capability 8.9"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, 0, "needs sparse attention"),
        ({"device_capability": "8.9"}, 128, "below compute capability 9.0"),
    ],
)
def test_a_device_without_such_a_backend_is_refused(
    settings: dict[str, object], index_dim: int, text: str
) -> None:
    """The engine would not start either."""
    latent = LatentAttention(latent_dim=512, rope_dim=64, index_dim=index_dim)
    with pytest.raises(Unsupported, match=text):
        plan({}, ModelState.of_layers([Layer(states=(latent,))]), settings, GIB)
