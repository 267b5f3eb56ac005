"""The heads behind a latent, from a config."""

from __future__ import annotations

import pytest

from app.readers.latent_heads import LatentHeads, latent_heads

DEEPSEEK_V3: dict[str, object] = {
    "num_attention_heads": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


def test_a_key_is_its_two_parts() -> None:
    """DeepSeek-V3 expands to 128 heads of 192 and 128, also where its config is nested."""
    found = LatentHeads(heads=128, k_dim=192, v_dim=128)
    assert latent_heads(DEEPSEEK_V3) == found
    assert latent_heads({"text_config": DEEPSEEK_V3, "num_attention_heads": 3}) == found


@pytest.mark.parametrize("field", sorted(DEEPSEEK_V3))
@pytest.mark.parametrize("value", [None, 0, -1, True, "128", 128.0, 2**40])
def test_what_the_config_does_not_say_is_not_guessed(field: str, value: object) -> None:
    """A number that is absent, of another type or out of bounds leaves the heads unknown."""
    assert latent_heads({**DEEPSEEK_V3, field: value}) is None
