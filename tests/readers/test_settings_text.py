"""Settings as people type or paste them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import DomainError, Malformed, OutOfRange
from app.readers.settings_text import MAX_CHARACTERS, parse_settings, value_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("max_num_seqs=8", {"max_num_seqs": 8}),
        ("--max-model-len 32768", {"max_model_len": 32_768}),
        ("--max-model-len=32768 --enforce-eager", {"max_model_len": 32_768, "enforce_eager": True}),
        ("--enforce-eager --kv-cache-dtype fp8", {"enforce_eager": True, "kv_cache_dtype": "fp8"}),
        ("a=1\nb=two, c=0.5", {"a": 1, "b": "two", "c": 0.5}),
        ("-c 4096 -fa", {"c": 4_096, "fa": True}),
        ("x=-1 --y -2", {"x": -1, "y": -2}),
        ("flag=true off=False nothing=None", {"flag": True, "off": False, "nothing": None}),
        ("layers_per_stage=[16,32]", {"layers_per_stage": [16, 32]}),
        ("layers_per_stage=16,32", {"layers_per_stage": [16, 32]}),
        ("--layers-per-stage 16,32, b=1", {"layers_per_stage": [16, 32], "b": 1}),
        ("vllm.layers_per_stage=48", {"vllm.layers_per_stage": [48]}),
        ("VLLM_PP_LAYER_PARTITION=16,32", {"layers_per_stage": [16, 32]}),
        ("VLLM_PP_LAYER_PARTITION='16, 32'", {"layers_per_stage": [16, 32]}),
        ("layers_per_stage=16,x", {"layers_per_stage": "16,x"}),
        ("other=16,32", {"other": "16,32"}),
        ("""--speculative-config '{"method": "mtp"}'""", {"speculative_config": {"method": "mtp"}}),
        ("name='with space'", {"name": "with space"}),
        ("a={broken", {"a": "{broken"}),
        ("version=0.20.1", {"version": "0.20.1"}),
        ("a=1 a=2", {"a": 2}),
    ],
)  # fmt: skip
def test_flags_and_names(text: str, found: dict[str, object]) -> None:
    """Flags and name=value, dashes or underscores, numbers as numbers; the last word stands."""
    assert parse_settings(text) == found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("word", Malformed),
        ("--", Malformed),
        ("=3", Malformed),
        ("1a=3", Malformed),
        ("'open", Malformed),
        ("""--a '{"b": 1, "b": 2}'""", Malformed),
        ("n" * 101 + "=1", Malformed),
        (" ".join(f"a{index}=1" for index in range(101)), OutOfRange),
        ("a" * (MAX_CHARACTERS + 1), OutOfRange),
    ],
)
def test_what_is_no_setting(text: str, error: type[DomainError]) -> None:
    """A word that is neither a flag nor name=value is refused, at the field's name."""
    with pytest.raises(error) as refused:
        parse_settings(text, field="given")
    assert refused.value.field == ("given",)


def test_a_value_names_no_key_twice() -> None:
    """Which of the two counts nobody can know; the key is named."""
    with pytest.raises(Malformed, match="given names 'b' twice"):
        value_of('{"b": 1, "b": 2}', field="given")


@given(st.text(max_size=300))
def test_anything_is_read_or_refused(text: str) -> None:
    """Whatever is typed gives settings or a refusal."""
    try:
        found = parse_settings(text)
    except DomainError:
        return
    assert all(name.replace("_", "a").replace(".", "a").isalnum() for name in found)


def test_a_value_alone() -> None:
    """A value may have spaces and quotes where it is given by itself."""
    assert value_of("a b") == "a b"
    assert value_of("007") == 7
    assert value_of("1e5") == "1e5"
