"""What a config says its model needs, against caches that Transformers 5.24 really held.

Measured: tests/data/transformers_caches.json.gz (small models) and transformers_released.json.gz
(released checkpoints' own configs at 9,001 positions). The two differ only where the engine keeps
more than the model needs, and each such type is named here.
"""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import Unsupported
from app.readers.hf_config import read_config
from app.readers.hf_config.compressed import FAMILIES as COMPRESSED
from app.readers.hf_config.family import Family
from app.readers.hf_config.latent import FAMILIES as LATENT
from app.readers.hf_config.loops import FAMILIES as LOOPS
from app.readers.hf_config.odd import FAMILIES as ODD
from app.readers.hf_config.periodic import FAMILIES as PERIODIC
from app.readers.hf_config.plain import FAMILIES as PLAIN
from app.readers.hf_config.registry import FAMILIES
from app.readers.hf_config.remote import FAMILIES as REMOTE
from app.readers.hf_config.sharing import FAMILIES as SHARING
from app.readers.hf_config.uneven import FAMILIES as UNEVEN
from tests.readers.hf_states import kept_bytes, measured

ATTENTION: tuple[Family, ...] = (
    *PLAIN, *ODD, *PERIODIC, *LATENT, *COMPRESSED, *SHARING, *UNEVEN, *LOOPS, *REMOTE,
)  # fmt: skip
FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

# Where the engine keeps more than the model can still use, and why.
MORE_IN_THE_ENGINE = {
    "gpt_neo": "local layers keep every position",
    "falcon-new-decoder": "keys and values are copied to all heads before they are cached",
    "mistral-window-1": "the slice [-0:] keeps everything",
    "llama4": "a chunk is kept like a window, across its boundary",
    "deepseek_v4": "keys and values of purely sliding layers are two equal tensors",
    "inkling": "convolutions keep as many columns as their kernel is wide",
}
# Where the engine reads a stray field that says nothing of the model, which is refused here.
REFUSED = {"llama+attention_chunk_size": "attention_chunk_size"}
MORE_RELEASED = {
    "llama4": "a chunk is kept like a window, across its boundary",
    "deepseek_v4": "keys and values of purely sliding layers are two equal tensors",
    "falcon": "keys and values are copied to all heads before they are cached",
}


def _innermost(config: dict[str, Any]) -> str:
    text = config.get("text_config")
    return _innermost(text) if isinstance(text, dict) else str(config.get("model_type"))


def test_readings_of_small_models_are_what_was_cached() -> None:
    """Every measured model of attention layers keeps what its config says, to the byte."""
    file = measured("transformers_caches")
    cases, configs = file["cases"], file["configs"]
    assert isinstance(cases, list)
    assert isinstance(configs, list)
    seen, more, refused = 0, set(), set()
    for case in cases:
        config = {**configs[case["config"]], "dtype": case["dtype"]}
        family = FAMILIES.get(_innermost(config))
        if not case["scenario"].startswith("dynamic") or family not in ATTENTION:
            continue
        variant = case["id"].split("/")[0]
        if variant in REFUSED:
            with pytest.raises(Unsupported, match=REFUSED[variant]):
                read_config(config)
            refused.add(variant)
            continue
        reading = read_config(config, encoder_tokens=case.get("encoder_tokens"))
        tokens = case["prompt_tokens"] + case["decode_steps"]
        ours = case["batch"] * kept_bytes(reading, tokens, FORMATS[case["dtype"]])
        reason = next((name for name in MORE_IN_THE_ENGINE if variant.startswith(name)), None)
        if reason is None:
            assert ours == case["total_bytes"], case["id"]
        else:
            assert ours <= case["total_bytes"], case["id"]
            if ours < case["total_bytes"]:
                more.add(reason)
        seen += 1
    assert seen > 400
    assert more == set(MORE_IN_THE_ENGINE)
    assert refused == set(REFUSED)


def test_readings_of_released_checkpoints_are_what_was_cached() -> None:
    """Every released config of attention layers keeps what was measured at its full size."""
    cases = measured("transformers_released")["cases"]
    assert isinstance(cases, list)
    seen, more = 0, set()
    for case in cases:
        family = FAMILIES.get(case["text_model_type"]) or FAMILIES.get(_innermost(case["config"]))
        if family not in ATTENTION:
            continue
        reading = read_config(case["config"], encoder_tokens=case.get("encoder_tokens"))
        tokens = case["prompt_tokens"] + case["decode_steps"]
        ours = case["batch"] * kept_bytes(reading, tokens, FORMATS[case["dtype"]])
        if ours == case["total_bytes"]:
            seen += 1
        else:
            assert ours < case["total_bytes"], case["id"]
            more.add(reading.family)
    assert seen > 90
    assert more == set(MORE_RELEASED)
