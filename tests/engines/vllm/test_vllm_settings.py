"""Settings named as vLLM's flags: each is checked by name, type and bound."""

from __future__ import annotations

from fractions import Fraction

import pytest

from app.domain.errors import Conflict, DomainError, OutOfRange, Unknown, WrongType
from app.engines.vllm.settings import KV_CACHE_DTYPES, read_settings

FLAGS = ("async_scheduling", "disable_hybrid_kv_cache_manager", "enable_prefix_caching")
INTEGERS = (
    "block_size", "data_parallel_size", "decode_context_parallel_size", "kv_cache_memory_bytes",
    "max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override", "num_speculative_tokens",
    "pipeline_parallel_size", "swap_space", "tensor_parallel_size",
)  # fmt: skip


def test_nothing_said_is_the_newest_release_on_one_device() -> None:
    """What is left out takes the release's own value."""
    found = read_settings({})
    assert found.release.name == "0.33.0"
    assert (found.tensor_parallel, found.pipeline_parallel, found.context_parallel) == (1, 1, 1)
    assert found.kv_cache_dtype == "auto"
    assert found.hybrid_manager
    assert found.device_major == 9


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [True, "8", 1.0, [1]])
def test_numbers_are_whole_numbers(name: str, value: object) -> None:
    """Neither booleans nor strings nor floats stand for one."""
    with pytest.raises(WrongType, match=name):
        read_settings({name: value})


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [-1, 2**60])
def test_numbers_are_bounded(name: str, value: int) -> None:
    """Each has its own bound, named in the error."""
    with pytest.raises(OutOfRange, match=name):
        read_settings({name: value})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [1, "true", 0.0])
def test_flags_are_booleans(name: str, value: object) -> None:
    """A flag is true or false."""
    with pytest.raises(WrongType, match=name):
        read_settings({name: value})


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"max_num_sequences": 4}, Unknown, "max_num_sequences is not a setting"),
        ({"version": "9.9.9"}, Unknown, "known are 0.6.0"),
        ({"version": 33}, WrongType, "version must be a string"),
        ({"kv_cache_dtype": "fp3"}, Unknown, "known are auto"),
        ({"kv_cache_dtype": 8}, WrongType, "kv_cache_dtype must be a string"),
        ({"dtype": "int8"}, Unknown, "dtype"),
        ({"device_capability": "7.0"}, Unknown, "known are 8.0"),
        ({"speculative_method": "eagle"}, Unknown, "mtp, ngram"),
        ({"mamba_cache_mode": "some"}, Unknown, "none, align, all"),
        ({"mamba_ssm_cache_dtype": "fp8"}, Unknown, "mamba_ssm_cache_dtype"),
        ({"max_model_len": 0}, OutOfRange, "max_model_len"),
        ({"max_model_len": -2}, OutOfRange, "max_model_len"),
        ({"max_model_len": "long"}, WrongType, "max_model_len"),
        ({"max_model_len": True}, WrongType, "max_model_len"),
        ({"gpu_memory_utilization": 0}, OutOfRange, "above 0 and at most 1"),
        ({"gpu_memory_utilization": 1.1}, OutOfRange, "above 0 and at most 1"),
        ({"gpu_memory_utilization": float("nan")}, OutOfRange, "above 0 and at most 1"),
        ({"gpu_memory_utilization": "0.9"}, WrongType, "must be a number"),
        ({"gpu_memory_utilization": True}, WrongType, "must be a number"),
        ({"layers_per_stage": 4}, WrongType, "layers_per_stage"),
        ({"layers_per_stage": []}, WrongType, "layers_per_stage"),
        ({"layers_per_stage": [1] * 5000}, WrongType, "layers_per_stage"),
        ({"layers_per_stage": [4, -1]}, OutOfRange, "layers_per_stage"),
        (
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 3},
            Conflict,
            "must divide tensor_parallel_size",
        ),
        (
            {
                "tensor_parallel_size": 4,
                "decode_context_parallel_size": 2,
                "version": "0.10.0",
            },
            Conflict,
            "no decode context parallelism",
        ),
        ({"kv_cache_dtype": "nvfp4", "version": "0.19.1"}, Conflict, "not a format of vLLM 0.19.1"),
        ({"mamba_cache_mode": "all"}, Conflict, "removed in vLLM 0.32.0"),
    ],
)
def test_what_is_not_known_is_refused(
    settings: dict[str, object], error: type[DomainError], text: str
) -> None:
    """The error names the setting and what is known."""
    with pytest.raises(error, match=text):
        read_settings(settings)


def test_a_name_that_is_no_string_is_refused() -> None:
    """A mapping may hold anything."""
    with pytest.raises(Unknown, match="7"):
        read_settings({7: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("value", ["auto", -1])
def test_a_length_may_be_what_fits(value: object) -> None:
    """Auto and -1 are the same, as on the command line."""
    assert read_settings({"max_model_len": value}).max_model_len == -1


def test_a_share_is_the_decimal_as_written() -> None:
    """0.9 is nine tenths, not the binary number near it."""
    assert read_settings({"gpu_memory_utilization": 0.9}).gpu_memory_utilization == Fraction(9, 10)


@pytest.mark.parametrize("name", sorted(KV_CACHE_DTYPES))
def test_every_format_is_known_to_the_newest_release(name: str) -> None:
    """A format that came once stays."""
    assert read_settings({"kv_cache_dtype": name}).kv_cache_dtype == name
