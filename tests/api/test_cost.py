"""`/cost`: known totals, both ways, the decode step against a bandwidth, refusals by field."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from app.catalog import models

LLAMA: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "kv_dtype": "fp16",
    "prompt_tokens": 1024,
    "output_tokens": 128,
}
# 32 layers with 32 query heads over 8 KV heads of 128, MLP of three matrices, as the model has it.
SHAPE = {
    "hidden_size": 4096, "query_heads": 32, "intermediate_size": 14336, "vocab_size": 128_256,
}  # fmt: skip
UNIFORM = {"layers": 32, "kv_heads": 8, "head_dim": 128}


def ask(client: TestClient, **changes: object) -> dict[str, Any]:
    """Return the answer to the example with fields changed or, where None, left out."""
    body = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    answer = client.post("/api/v1/cost", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_one_step_of_a_known_model(client: TestClient) -> None:
    """Position 1151: 6.98 G products of projections, 302 M of attention, 525 M of logits."""
    step = ask(client)["last_step"]
    assert step["length_tokens"] == 1151
    assert step["with_cache"] == {
        "projection_macs": 6_979_321_856,
        "attention_macs": 2 * 32 * 128 * 32 * 1151,
        "logits_macs": 525_336_576,
        "macs": 7_806_386_176,
        "macs_text": "7.81 GMAC",
        "weights_read_bytes": 15_009_316_864,
        "state_read_bytes": 131_072 * 1151,
        "read_bytes": 15_160_180_736,
        "read_bytes_text": "14.12 GiB",
    }
    assert step["without_cache"]["projection_macs"] == 6_979_321_856 * 1151
    assert step["without_cache"]["attention_macs"] == 262_144 * (1151 * 1152 // 2)


def test_a_whole_generation(client: TestClient) -> None:
    """With the cache each position is computed once; the cache then holds 1151 of them."""
    answer = ask(client)
    assert answer["passes"] == 128
    assert answer["with_cache"]["projection_macs"] == 6_979_321_856 * 1151
    assert answer["without_cache"]["projection_macs"] == 6_979_321_856 * sum(range(1024, 1152))
    assert answer["with_cache"]["attention_macs"] == 262_144 * (1151 * 1152 // 2)
    assert answer["saved_macs"] == answer["without_cache"]["macs"] - answer["with_cache"]["macs"]
    assert answer["cache_bytes"] == 131_072 * 1151
    assert str(answer["with_cache"]["macs"]) in answer["formula"]
    assert answer["assumptions"]
    assert answer["not_counted"]


def test_growth_and_its_curve(client: TestClient) -> None:
    """Per token linear against quadratic, in total quadratic against cubic."""
    answer = ask(client)
    growth = answer["growth"]
    assert growth["length_tokens"] == 512
    assert growth["step_attention_with"] == 2
    assert growth["step_projections_with"] == 1
    assert growth["step_attention_without"] == pytest.approx(4, abs=0.01)
    assert growth["run_attention_without"] == pytest.approx(8, abs=0.05)
    lengths = [point["length_tokens"] for point in answer["curve"]]
    assert lengths == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert answer["curve"][-1]["step_attention_with_macs"] == 262_144 * 1024


def test_a_device_bounds_the_decode_step(client: TestClient) -> None:
    """At 3.35 TB/s one sequence of 4096 cannot pass 215.5 tokens a second: weights weigh most."""
    decode = ask(client, device="h100-sxm-80", decode_tokens=4096)["decode"]
    assert (decode["batch"], decode["length_tokens"]) == (1, 4096)
    assert decode["bandwidth_bytes_per_s"] == 3_350_000_000_000
    assert decode["weights_read_bytes"] == 15_009_316_864
    assert decode["state_read_bytes"] == 536_870_912
    assert decode["tokens_per_s_bound"] == pytest.approx(215.487, abs=0.001)
    assert decode["flops_per_byte"] == pytest.approx(1.1036, abs=1e-4)


def test_a_bandwidth_may_be_given_or_left_out(client: TestClient) -> None:
    """A typed bandwidth gives the same bound; without one there is intensity and no bound."""
    given = ask(client, bandwidth_bytes_per_s=3_350_000_000_000)
    assert given["decode"] == ask(client, device="h100-sxm-80")["decode"]
    assert given["device"] is None
    bare = ask(client)["decode"]
    assert bare["tokens_per_s_bound"] is bare["seconds_per_step"] is None
    assert bare["flops_per_byte"] == given["decode"]["flops_per_byte"]


def test_batches_share_the_weights(client: TestClient) -> None:
    """Every batch reads the weights once and each sequence's state once."""
    rows = ask(client, device="h100-sxm-80")["decode_by_batch"]
    assert [row["batch"] for row in rows] == [1, 4, 16, 64, 256]
    assert {row["weights_read_bytes"] for row in rows} == {15_009_316_864}
    assert [row["state_read_bytes"] for row in rows] == [
        131_072 * 1151 * n for n in (1, 4, 16, 64, 256)
    ]


def test_weights_in_another_format(client: TestClient) -> None:
    """Stored in fp8 the same products read half the bytes, and scales, embeddings kept apart."""
    answer = ask(client, weights={"format": "fp8"})
    assert answer["with_cache"]["macs"] == ask(client)["with_cache"]["macs"]
    read = answer["decode"]["weights_read_bytes"]
    # 6,979,321,856 weights of a byte, 224 scales of 4, and the output matrix at 2 bytes a weight.
    assert read == 6_979_321_856 + 224 * 4 + 2 * 525_336_576
    assert ask(client, weights={"bytes": 10**9})["decode"]["weights_read_bytes"] == 10**9


def test_sizes_may_be_given_by_hand(client: TestClient) -> None:
    """The same sizes by hand count what the catalogue's model does; without any, less."""
    by_hand = ask(client, model=UNIFORM, shape=SHAPE)
    assert by_hand["with_cache"]["macs"] == ask(client)["with_cache"]["macs"]
    assert by_hand["decode"]["weights_read_bytes"] == 15_009_316_864
    assert "weights_16_bit" in [note["code"] for note in by_hand["assumptions"]]
    bare = ask(client, model=UNIFORM)
    assert bare["with_cache"]["projection_macs"] == 0
    assert bare["decode"] is None
    assert {"projections", "decode"} <= {note["code"] for note in bare["not_counted"]}
    assert ask(client, model=UNIFORM, weights={"bytes": 16 * 10**9})["decode"]["macs"] > 0


def test_a_pasted_config_and_a_header(client: TestClient) -> None:
    """A config is counted by its own list of weights; a GGUF header names some sizes."""
    config = {
        "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "hidden_size": 4096, "vocab_size": 128_256,
        "intermediate_size": 14336, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    pasted = ask(client, model={"config": config})
    assert pasted["with_cache"]["macs"] == ask(client)["with_cache"]["macs"]
    header = {
        "general.architecture": "llama", "llama.block_count": 32, "llama.embedding_length": 4096,
        "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
        "llama.context_length": 8192, "llama.feed_forward_length": 14336,
    }  # fmt: skip
    from_header = ask(client, model={"gguf": header})
    attention = ask(client)["with_cache"]["attention_macs"]
    assert from_header["with_cache"]["attention_macs"] == attention
    assert "mlp" in [note["code"] for note in from_header["not_counted"]]


def test_experts_are_those_of_one_token(client: TestClient) -> None:
    """A mixture multiplies and reads the experts of one token, and says so."""
    answer = ask(client, model={"id": "Qwen/Qwen3-30B-A3B"})
    assert answer["last_step"]["with_cache"]["projection_macs"] < 4 * 10**9
    assert "one_tokens_experts" in [note["code"] for note in answer["assumptions"]]


def test_a_table_entry_is_counted_by_the_sizes_it_names(client: TestClient) -> None:
    """Where no list of weights can be made, the file's own sizes count, and the answer says so."""
    answer = ask(client, model={"id": "facebook/opt-30b"})
    assert "sizes_named" in [note["code"] for note in answer["assumptions"]]
    # 48 layers of 4 × 7168² + 2 × 7168 × 28672.
    step = answer["last_step"]["with_cache"]
    assert step["projection_macs"] == 48 * (4 * 7168**2 + 2 * 7168 * 28672)


def test_every_model_of_the_catalogue_is_counted_or_says_why(client: TestClient) -> None:
    """Of each family one model: an answer, or a refusal that names a field; never a 500."""
    families: dict[str, str] = {}
    for model_id, row in models.index().items():
        if row["readable"]:
            families.setdefault(row["family"], model_id)
    assert len(families) > 30
    counted = 0
    for model_id in families.values():
        answer = client.post("/api/v1/cost", json={**LLAMA, "model": {"id": model_id}})
        assert answer.status_code in {200, 422}, (model_id, answer.text)
        counted += answer.status_code == 200
        if answer.status_code == 200:
            assert answer.json()["last_step"]["with_cache"]["macs"] > 0
    assert counted > 0.9 * len(families)


def test_long_generations_are_exact_and_quick(client: TestClient) -> None:
    """Ten million tokens and as many of prompt: a closed form, exact beyond 64 bits."""
    answer = ask(client, prompt_tokens=10**7, output_tokens=10**7)
    last = 2 * 10**7 - 1
    assert answer["with_cache"]["attention_macs"] == 262_144 * (last * (last + 1) // 2)
    assert answer["without_cache"]["attention_macs"] > 2**64


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"prompt_tokens": 0}, ["prompt_tokens"]),
        ({"prompt_tokens": True}, ["prompt_tokens"]),
        ({"output_tokens": 10**7 + 1}, ["output_tokens"]),
        ({"output_tokens": None}, ["output_tokens"]),
        ({"batch": 0}, ["batch"]),
        ({"decode_tokens": 0}, ["decode_tokens"]),
        ({"device": "abacus"}, ["device"]),
        ({"device": "a2"}, ["device"]),
        ({"device": "h100-sxm-80", "bandwidth_bytes_per_s": 1}, ["bandwidth_bytes_per_s"]),
        ({"bandwidth_bytes_per_s": 0}, ["bandwidth_bytes_per_s"]),
        ({"weights": {"format": "fp3"}}, ["weights", "format"]),
        ({"weights": {"bytes": 0}}, ["weights", "bytes"]),
        ({"model": UNIFORM, "weights": {"format": "awq_int4"}}, ["weights", "format"]),
        (
            {"model": {"layers": 1, "kv_heads": 1, "head_dim": 5}, "shape": {"hidden_size": 5},
             "weights": {"format": "mxfp4"}},
            ["weights", "format"],
        ),
        ({"shape": {"hidden_size": 0}}, ["shape", "hidden_size"]),
        ({"shape": {"query_heads": 12}}, ["shape", "query_heads"]),
        ({"model": {"id": "deepseek-ai/DeepSeek-V3"}, "shape": {}}, ["shape", "query_heads"]),
        ({"model": {"id": "deepseek-ai/DeepSeek-V3", "draft_layers": True}},
         ["model", "draft_layers"]),
        ({"model": {"id": "nobody/nothing"}}, ["model", "id"]),
        ({"kv_dtype": "fp17"}, ["kv_dtype"]),
    ],
)  # fmt: skip
def test_refusals_name_their_field(
    changes: dict[str, Any], loc: list[str], client: TestClient
) -> None:
    """A spoiled request is refused at the field that is at fault."""
    body = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    answer = client.post("/api/v1/cost", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", *loc]
