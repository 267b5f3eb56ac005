"""`/fit` and `/devices`: worked values, every line's basis, inverse questions, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.api.fit import answer_fit
from app.api.fit_advice import Patience
from app.api.fit_schemas import FitRequest
from app.cli import app as cli
from app.readers.traces import TraceCancelled

GIB = 2**30
UNIFORM = {"layers": 32, "kv_heads": 8, "head_dim": 128}
GOOD: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "kv_dtype": "bf16",
    "device": "h100-sxm-80",
    "utilisation": 0.9,
    "context_tokens": 8192,
    "concurrency": 16,
}


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    """Return an answer."""
    answer = client.post("/api/v1/fit", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_every_line_has_its_basis(client: TestClient) -> None:
    """Weights are computed, the driver's memory measured, what no formula gives assumed."""
    answer = ask(client, **GOOD, reserve_bytes=GIB)
    bases = {line["name"]: line["basis"] for line in answer["lines"]}
    assert bases == {
        "memory": "measured", "weights": "computed", "activations": "assumed",
        "framework": "assumed", "communication": "computed", "cuda_graphs": "assumed",
        "reserve": "given", "kv": "computed",
    }  # fmt: skip
    lines = {line["name"]: line for line in answer["lines"]}
    assert lines["weights"]["low_bytes"] == 16_060_522_496
    assert lines["kv"]["low_bytes"] == 16 * 8192 * 131_072
    counted = ("weights", "activations", "framework", "cuda_graphs", "reserve")
    taken = sum(lines[name]["high_bytes"] for name in counted)
    assert answer["kv_bytes_available"] == answer["usable_bytes"] - taken
    assert answer["max_concurrency"] == answer["kv_bytes_available"] // (8192 * 131_072)
    assert answer["max_concurrency"] < answer["max_concurrency_high"]
    assert answer["fits"] is True
    assert "It fits" in answer["verdict"]
    assert answer["formula"]
    assert {note["code"] for note in answer["not_counted"]} & {"weights", "activations"} == set()


def test_measured_lines_leave_no_range(client: TestClient) -> None:
    """With a log's figure for every assumed line the answer is one number."""
    answer = ask(
        client, **{**GOOD, "device": None, "memory_bytes": 80 * GIB, "cuda_graphs": False},
        measured={"activations": GIB, "framework": GIB // 4, "weights": 15 * GIB},
    )  # fmt: skip
    assert (
        answer["kv_bytes_available"]
        == answer["kv_bytes_available_high"]
        == (72 * GIB - 15 * GIB - GIB - GIB // 4)
    )
    assert answer["max_concurrency"] == answer["max_concurrency_high"] == 55


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"model": {"id": "meta-llama/Llama-3.1-405B"}, "tensor_parallel": 8,
          "measured": {"state": 5_121_748_500}}, 79_392),
        ({"model": {"id": "moonshotai/Kimi-K2-Instruct"}, "tensor_parallel": 8, "block_size": 64,
          "measured": {"state": 50_251_117_363}}, 715_072),
        ({"model": {"id": "moonshotai/Kimi-K2-Instruct"}, "tensor_parallel": 8, "block_size": 64,
          "decode_context_parallel": 8, "measured": {"state": 50_254_036_992}}, 5_721_088),
        ({"model": {"id": "mistralai/Mistral-Small-4-119B-2603"},
          "measured": {"state": 18_667_192_320}}, 810_208),
    ],
)  # fmt: skip
def test_what_servers_printed(client: TestClient, body: dict[str, Any], tokens: int) -> None:
    """The longest context in the room of a log is what the log printed."""
    answer = ask(client, kv_dtype="bf16", **body)
    assert answer["max_context_tokens"] == tokens
    assert {line["name"]: line["basis"] for line in answer["lines"]}["state"] == "measured"


def test_an_engine_reserves_for_windows(client: TestClient) -> None:
    """A request of 131,072 tokens takes 4.54 GiB of vLLM's pool, not the 9 of all layers."""
    answer = ask(
        client, model={"id": "openai/gpt-oss-120b"}, kv_dtype="bf16", device="h100-sxm-80",
        utilisation=0.95, context_tokens=131_072, batch_tokens=1024, engine="vllm",
        engine_version="0.11.0", measured={"state": 1_836_098_519},
    )  # fmt: skip
    assert answer["request_bytes"] == 18 * 2048 * 131_072 + 18 * 2048 * 73 * 16
    assert answer["fits"] is False
    assert answer["max_concurrency"] == 0


@pytest.mark.parametrize("dtype", [None, "bf16", "fp16"])
@pytest.mark.parametrize("version", ["0.6.6", "0.7.3", "0.9.2", "0.11.0"])
def test_a_release_that_names_no_16_bit_format(
    client: TestClient, version: str, dtype: str | None
) -> None:
    """A cache of 16 bits is planned in a release without a name for it, as `auto` keeps it.

    29,008 tokens in whole blocks of 131,072 B a token.
    """
    answer = ask(
        client, model={"id": "meta-llama/Llama-3.1-8B"}, memory_bytes=24 * GIB, engine="vllm",
        engine_version=version, context_tokens=29_000, utilisation=0.9,
        **({} if dtype is None else {"kv_dtype": dtype}),
    )  # fmt: skip
    assert answer["request_bytes"] == 29_008 * 131_072
    # Llama runs in bfloat16 anyway; 0.11.0 has a name for that alone.
    says = dtype == "fp16"
    assert ("--dtype float16" in answer["engine_command"]) is says
    assert ("kv_dtype_by_model" in {note["code"] for note in answer["assumptions"]}) is says


def test_an_older_release_in_eight_bits(client: TestClient) -> None:
    """Every release names fp8, so it is asked for by name."""
    answer = ask(client, **{**GOOD, "kv_dtype": "fp8"}, engine="vllm", engine_version="0.7.3")
    assert answer["request_bytes"] == 8192 * 65_536
    assert "--kv-cache-dtype fp8" in answer["engine_command"]


def test_an_older_release_whose_checkpoint_has_its_own_format(client: TestClient) -> None:
    """Where `auto` is what the checkpoint switches on, 16 bits cannot be had of 0.9.2."""
    config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "hidden_size": 4096, "vocab_size": 128_256,
              "intermediate_size": 14_336, "torch_dtype": "bfloat16",
              "quantization_config": {"quant_method": "compressed-tensors",
                                      "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
              }  # fmt: skip
    body = {**GOOD, "model": {"config": config}, "engine": "vllm", "measured": {"state": 16 * GIB}}
    refused = client.post("/api/v1/fit", json={**body, "engine_version": "0.9.2"})
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", "kv_dtype"]
    assert "bfloat16 is not a format of vLLM 0.9.2" in refused.json()["detail"][0]["msg"]
    assert ask(client, **{**body, "engine_version": "0.11.0"})["request_bytes"] == 8192 * 131_072


def test_an_engine_that_lacks_memory(client: TestClient) -> None:
    """An available memory of −2.14 GiB is taken as it is printed: nothing fits, and so much lacks.

    Measured: https://github.com/vllm-project/vllm/issues/23278.
    """
    lacking = -2_297_807_503
    answer = ask(
        client, model={"id": "openai/gpt-oss-120b"}, kv_dtype="bf16", device="h100-sxm-80",
        utilisation=0.9, context_tokens=131_072, engine="vllm", engine_version="0.11.0",
        measured={"state": lacking, "weights": 70_834_748_129}, lengths=[1024, 2048], advise=True,
    )  # fmt: skip
    assert answer["kv_bytes_lacking"] == 2_297_807_503
    assert answer["kv_bytes_available"] == answer["max_concurrency"] == 0
    assert answer["max_context_tokens"] == answer["drawn"]["at_percentile"] == 0
    assert answer["fits"] is False
    assert "--kv-cache-memory-bytes" not in answer["engine_command"]
    # 0.9 of what the card reports, less these weights, would be 5.28 GiB: 7.42 GiB went elsewhere.
    assert answer["usable_bytes"] == 76_516_989_862
    alone = ask(client, model={"id": "openai/gpt-oss-120b"}, kv_dtype="bf16",
                measured={"state": -1})  # fmt: skip
    assert alone["kv_bytes_lacking"] == 1
    assert alone["lines"][0]["low_bytes"] == 0
    enough = ask(client, **GOOD)
    assert enough["kv_bytes_lacking"] == 0


@pytest.mark.parametrize("name", ["weights", "activations", "framework"])
def test_no_other_line_is_below_zero(client: TestClient, name: str) -> None:
    """Only room can lack; a line that is taken cannot be less than nothing."""
    answer = client.post("/api/v1/fit", json={**GOOD, "measured": {name: -1}})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "measured", name]


def test_the_command_line_takes_what_lacks() -> None:
    """A log's room below 0 is read as it is printed; another line's is not."""
    words = ["fit", "--model", "openai/gpt-oss-120b", "--kv-dtype", "bf16", "--json"]
    done = CliRunner().invoke(cli, [*words, "--measured", "state=-2.14GiB"])
    assert done.exit_code == 0, done.output
    assert '"kv_bytes_lacking":2297807503' in done.stdout
    refused = CliRunner().invoke(cli, [*words, "--measured", "weights=-2.14GiB"])
    assert refused.exit_code == 2
    assert "measured.weights" in refused.stderr


def test_the_fewest_devices_and_what_would_help(client: TestClient) -> None:
    """Eight requests of 131,072 tokens on Llama 3.1 70B need eight 80 GB devices, not four."""
    answer = ask(
        client, model={"id": "meta-llama/Llama-3.1-70B"}, kv_dtype="bf16", device="h100-sxm-80",
        context_tokens=131_072, concurrency=8, tensor_parallel=4, advise=True,
    )  # fmt: skip
    assert answer["fits"] is False
    assert answer["fewest_devices"] == {"devices": 8, "tensor_parallel": 8, "pipeline_parallel": 1}
    fields = [change["field"] for change in answer["changes"]]
    assert fields[:5] == ["utilisation", "batch_tokens", "kv_dtype", "context_tokens",
                          "concurrency"]  # fmt: skip
    assert answer["smallest_change"]["field"] == "context_tokens"
    assert answer["smallest_change"]["value"] == answer["max_context_tokens"]
    assert all(change["buys"] and change["costs"] for change in answer["changes"])
    on_eight = ask(
        client, model={"id": "meta-llama/Llama-3.1-70B"}, kv_dtype="bf16", device="h100-sxm-80",
        context_tokens=131_072, concurrency=8, tensor_parallel=8,
    )  # fmt: skip
    assert on_eight["fits"] is True


def test_no_fewer_devices_do(client: TestClient) -> None:
    """On one device fewer the load fits in no split; on those named it does."""
    body = {**GOOD, "model": {"id": "Qwen/Qwen2.5-14B"}, "device": "rtx-4090", "concurrency": 8}
    found = ask(client, **body, advise=True)["fewest_devices"]
    split = {key: found[key] for key in ("tensor_parallel", "pipeline_parallel")}
    assert ask(client, **{**body, **split})["fits"] is True
    fewer = found["devices"] - 1
    assert fewer >= 1
    for tensor in range(1, fewer + 1):
        if fewer % tensor:
            continue
        split = {"tensor_parallel": tensor, "pipeline_parallel": fewer // tensor}
        answer = client.post("/api/v1/fit", json={**body, **split})
        assert answer.status_code == 422 or answer.json()["fits"] is not True


@pytest.mark.parametrize(
    "more",
    [
        {"measured": {"weights": GIB}},
        {"weights": {"bytes_per_rank": GIB}},
        {"weights": {"bytes": 64 * 80 * GIB}},
        {"weights": {"bytes": 60 * 72 * GIB}, "model": UNIFORM},
    ],
)
def test_no_number_of_devices(client: TestClient, more: dict[str, Any]) -> None:
    """Figures of one rank say nothing of others, and no more than 64 devices are tried."""
    assert ask(client, **{**GOOD, **more}, advise=True)["fewest_devices"] is None


def test_advice_knows_what_is_settled(client: TestClient) -> None:
    """What is already as far as it goes, or given, is not proposed again."""
    body = {**GOOD, "kv_dtype": "fp8", "utilisation": 0.98, "batch_tokens": 2048, "count": 1,
            "concurrency": 10**6}  # fmt: skip
    fields = [change["field"] for change in ask(client, **body, advise=True)["changes"]]
    assert fields == ["concurrency"]
    given = {**GOOD, "measured": {"state": GIB}, "concurrency": 10**6}
    fields = [change["field"] for change in ask(client, **given, advise=True)["changes"]]
    assert fields == ["kv_dtype", "concurrency"]


def test_each_change_does_what_it_says(client: TestClient) -> None:
    """Asking again with a change gives the figures that the change promised."""
    body = {**GOOD, "device": "rtx-4090", "concurrency": 64}
    answer = ask(client, **body, advise=True)
    assert answer["changes"]
    for change in answer["changes"]:
        after = ask(client, **{**body, change["field"]: change["value"]})
        assert after["fits"] == change["fits"]
        assert after["max_concurrency"] == change["max_concurrency"]


def test_drawn_lengths(client: TestClient) -> None:
    """Requests of drawn lengths: between what the longest and what the mean allow."""
    lengths = [{"length": 512, "count": 90}, {"length": 8192, "count": 10}]
    drawn = ask(client, **GOOD, lengths=lengths, percentile=99)["drawn"]
    assert drawn["by_longest"] < drawn["at_percentile"] < drawn["by_mean"]
    sure = ask(client, **GOOD, lengths=lengths, percentile=100)["drawn"]
    assert sure["at_percentile"] == sure["by_longest"] == ask(client, **GOOD)["max_concurrency"]
    many = ask(client, **{**GOOD, "engine": "vllm"}, lengths=list(range(1, 6000)))["drawn"]
    assert many["by_longest"] < many["at_percentile"] <= many["by_mean"]


def test_drawn_lengths_are_bounded(client: TestClient) -> None:
    """Seventeen stages that all differ are too many for lengths drawn at random."""
    rows = [{"kind": "full_attention", "kv_heads": 1, "k_dim": width, "v_dim": 1}
            for width in range(1, 18)]  # fmt: skip
    body = {"model": {"layer_states": rows}, "measured": {"state": GIB}, "lengths": [5],
            "pipeline_parallel": 17}  # fmt: skip
    answer = client.post("/api/v1/fit", json=body)
    assert answer.json()["detail"][0]["loc"] == ["body", "lengths"]
    fewer = {**body, "model": {"layer_states": rows[:16]}, "pipeline_parallel": 16}
    assert ask(client, **fewer)["drawn"]["by_longest"] == GIB // (16 * 2 * 17)


def test_tiers_and_transfers(client: TestClient) -> None:
    """8 GiB of a long request over 25 GB/s take at least 344 ms; a shared link takes all."""
    body = {**GOOD, "context_tokens": 65_536}
    answer = ask(
        client, **body,
        tiers=[{"name": "host", "capacity_bytes": 64 * GIB, "bandwidth_bytes_per_s": 25 * 10**9}],
        transfer={"bandwidth_bytes_per_s": 50 * 10**9, "tokens": 32_768},
    )  # fmt: skip
    assert answer["offload"] == [
        {"name": "host", "requests": 8, "tokens": 8 * 65_536, "moved_bytes_per_request": 8 * GIB,
         "moved_bytes_text": "8 GiB", "least_nanoseconds": 343_597_384},
    ]  # fmt: skip
    assert answer["transfer"]["moved_bytes_per_request"] == 4 * GIB
    assert answer["transfer"]["least_nanoseconds"] == 85_899_346
    two = ask(
        client, **body, tensor_parallel=2,
        tiers=[{"name": "disk", "capacity_bytes": 64 * GIB, "bandwidth_bytes_per_s": 10**9,
                "shared": True}],
    )  # fmt: skip
    assert two["offload"][0]["moved_bytes_per_request"] == 8 * GIB
    assert two["transfer"] is None


def test_replicas_and_stages(client: TestClient) -> None:
    """Replicas multiply requests; of uneven stages the fuller one decides."""
    answer = ask(
        client, model={"layers": 48, "kv_heads": 4, "head_dim": 128}, kv_dtype="bf16",
        measured={"state": 33 * GIB}, pipeline_parallel=2, layers_per_stage=[16, 32],
        data_parallel=4, context_tokens=262_144,
    )  # fmt: skip
    assert [stage["request_bytes"] for stage in answer["stages"]] == [8 * GIB, 16 * GIB]
    assert (answer["deciding_rank"], answer["max_concurrency"]) == (1, 2)
    assert (answer["total_concurrency"], answer["devices"]) == (8, 8)


def test_a_state_that_does_not_grow(client: TestClient) -> None:
    """A recurrent model's states are a line of their own, and no context is too long."""
    answer = ask(client, model={"id": "state-spaces/mamba-2.8b-hf"}, device="h100-sxm-80",
                 context_tokens=4096)  # fmt: skip
    assert answer["context_unbounded"] is True
    names = [line["name"] for line in answer["lines"]]
    assert names[-2:] == ["kv", "recurrent_states"]


def test_the_engine_s_command(client: TestClient) -> None:
    """The settings as vLLM's own command line; nothing is said that it takes anyway."""
    answer = ask(client, **GOOD, tensor_parallel=2)
    assert answer["engine_command"] == (
        "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-model-len 8192 "
        "--max-num-batched-tokens 8192 --max-num-seqs 256 --gpu-memory-utilization 0.9"
    )
    assert ask(client, **{**GOOD, "kv_dtype": "q8_0"})["engine_command"] is None
    assert ask(client, model=UNIFORM, measured={"state": 1})["engine_command"] is None


def test_a_config_stands_for_its_model(client: TestClient) -> None:
    """A pasted config is weighed by its shapes."""
    config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "hidden_size": 4096, "vocab_size": 128_256,
              "intermediate_size": 14_336}  # fmt: skip
    answer = ask(client, **{**GOOD, "model": {"config": config}})
    lines = {line["name"]: line for line in answer["lines"]}
    assert lines["weights"]["low_bytes"] == 16_060_522_496


@pytest.mark.parametrize(
    ("spoiled", "loc", "words"),
    [
        ({"utilisation": 1.5}, ["body", "utilisation"], "less than or equal to 1"),
        ({"utilisation": 0}, ["body", "utilisation"], "greater than 0"),
        ({"device": "abacus"}, ["body", "device"], "known devices"),
        ({"device": None}, ["body", "device"], "missing"),
        ({"memory_bytes": 1}, ["body", "device"], "give one"),
        ({"tensor_parallel": 0}, ["body", "tensor_parallel"], ""),
        ({"tensor_parallel": 7}, ["body", "tensor_parallel"], "neither divides"),
        ({"pipeline_parallel": 64}, ["body", "pipeline_parallel"], "empty"),
        ({"count": 1, "tensor_parallel": 2}, ["body", "count"], "need 2 devices"),
        ({"context_tokens": 0}, ["body", "context_tokens"], ""),
        ({"concurrency": True}, ["body", "concurrency"], ""),
        ({"concurrency": 10**9, "context_tokens": 10**9}, ["body", "concurrency"], "8 PiB"),
        ({"lengths": []}, ["body", "lengths"], "at least one"),
        ({"percentile": 20}, ["body", "percentile"], ""),
        ({"model": UNIFORM}, ["body", "weights"], "missing"),
        ({"weights": {"bytes": 1}, "measured": {"weights": 1}}, ["body", "weights"], "give one"),
        ({"engine": "vllm", "kv_dtype": "q8_0"}, ["body", "kv_dtype"], "this engine"),
        ({"engine": "vllm", "kv_dtype": {"k": "fp8", "v": "bf16"}}, ["body", "kv_dtype"],
         "one format"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(
    client: TestClient, spoiled: dict[str, Any], loc: list[Any], words: str
) -> None:
    """What makes no sense is answered in a sentence at the field at fault."""
    body = {key: value for key, value in {**GOOD, **spoiled}.items() if value is not None}
    answer = client.post("/api/v1/fit", json=body)
    assert answer.status_code == 422
    detail = answer.json()["detail"][0]
    assert detail["loc"] == loc
    assert words in detail["msg"]


def test_memory_below_the_weights(client: TestClient) -> None:
    """Weights above the memory are an answer, not a refusal: a sentence with both figures."""
    answer = ask(client, **{**GOOD, "model": {"id": "meta-llama/Llama-3.1-405B"}})
    assert answer["fits"] is False
    assert answer["deciding_line"] == "weights"
    assert answer["max_concurrency"] == answer["max_context_tokens"] == 0
    assert "755.96 GiB" in answer["verdict"]


def test_devices(client: TestClient) -> None:
    """Devices are listed by their words, with basis and sources; an unknown word finds none."""
    answer = client.get("/api/v1/devices?q=h100").json()
    assert answer["total"] == len(answer["devices"]) >= 3
    assert all(row["sources"] for row in answer["devices"])
    assert {row["memory_basis"] for row in client.get("/api/v1/devices").json()["devices"]} == {
        "measured", "assumed",
    }  # fmt: skip
    assert client.get("/api/v1/devices?q=abacus").json()["devices"] == []


def test_the_command_line_prints_the_same(client: TestClient) -> None:
    """`--json` prints exactly what the API answers; the table names every line."""
    words = ["fit", "--model=meta-llama/Llama-3.1-8B", "--kv-dtype=bf16", "--device=h100-sxm-80",
             "--utilisation=0.9", "--context=8192", "--concurrency=16"]  # fmt: skip
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == client.post("/api/v1/fit", json=GOOD).text
    table = CliRunner().invoke(cli, [*words, "--advise", "--concurrency=999"])
    assert table.exit_code == 0
    assert "activations" in table.stdout
    assert "kv_dtype" in table.stdout
    devices = CliRunner().invoke(cli, ["devices", "h100", "--json"])
    assert devices.stdout.strip() == client.get("/api/v1/devices?q=h100").text
    assert "h100-sxm-80" in CliRunner().invoke(cli, ["devices", "h100"]).stdout


def test_the_command_line_takes_a_log_s_figures(client: TestClient) -> None:
    """Measured amounts are typed with their units."""
    done = CliRunner().invoke(
        cli, ["fit", "--model=meta-llama/Llama-3.1-8B", "--kv-dtype=bf16", "--memory=80GiB",
              "--measured=state=4GiB", "--lengths=100,200", "--context=8192", "--eager",
              "--reserve=1GiB", "--max-sequences=8", "--json"]
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    body = {"model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "bf16", "context_tokens": 8192,
            "memory_bytes": 80 * GIB, "measured": {"state": 4 * GIB}, "cuda_graphs": False,
            "reserve_bytes": GIB, "max_sequences": 8,
            "lengths": [{"length": 100, "count": 1}, {"length": 200, "count": 1}]}  # fmt: skip
    assert done.stdout.strip() == client.post("/api/v1/fit", json=body).text


@pytest.mark.parametrize("word", ["--device=abacus", "--utilisation=1.5", "--measured=luck=1",
                                  "--memory=some"])  # fmt: skip
def test_the_command_line_refuses_in_one_line(word: str) -> None:
    """Bad input ends with exit code 2 and one line."""
    done = CliRunner().invoke(cli, ["fit", "--model=meta-llama/Llama-3.1-8B", word])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1


LONG_LOAD = {
    "model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "bf16", "device": "h100-sxm-80",
    "context_tokens": 131072, "concurrency": 1000, "advise": True,
}  # fmt: skip


def test_advice_does_not_depend_on_drawn_lengths() -> None:
    """Whether the load fits is asked of its own length: drawn lengths change no advice."""
    drawn = [{"length": length, "count": 1} for length in range(1, 2000)]
    without = answer_fit(FitRequest.model_validate(LONG_LOAD))
    found = answer_fit(FitRequest.model_validate(LONG_LOAD | {"lengths": drawn}))
    assert found.drawn is not None
    assert len(found.changes) > 3
    assert found.changes == without.changes
    assert found.fewest_devices == without.fewest_devices


def test_advice_ends_when_its_time_is_over() -> None:
    """What was found by then is answered, and a sentence says that the search was cut."""
    request = FitRequest.model_validate(LONG_LOAD)
    found = answer_fit(request, Patience(ends_at=0))
    assert found.changes == []
    assert found.fewest_devices is None
    assert found.assumptions[-1].code == "advice_cut"
    assert "ended after 2 s" in found.assumptions[-1].text


def test_advice_stops_for_whoever_has_gone() -> None:
    """The callback before each try may raise, and then nothing more is tried."""

    def gone() -> None:
        raise TraceCancelled

    with pytest.raises(TraceCancelled):
        answer_fit(FitRequest.model_validate(LONG_LOAD), Patience(look=gone))


def test_a_change_that_wins_nothing_is_left_out() -> None:
    """With the activations measured, a smaller batch gains nothing and is not advised."""
    measured = LONG_LOAD | {"measured": {"activations": 2**30}}
    found = answer_fit(FitRequest.model_validate(measured))
    assert "utilisation" in [change.field for change in found.changes]
    assert "batch_tokens" not in [change.field for change in found.changes]


def test_formula_of_weights_that_leave_no_room() -> None:
    """A room below nothing counts as nothing, and the formula says so."""
    body = LONG_LOAD | {"device": "rtx-4090", "model": {"id": "meta-llama/Llama-3.1-70B"}}
    found = answer_fit(FitRequest.model_validate(body | {"advise": False}))
    assert found.formula.startswith("⌊max(0, -")
    assert found.formula.endswith("⌋ = 0")


def codes(found: dict[str, Any]) -> set[str]:
    """Return the codes of an answer's assumptions."""
    return {note["code"] for note in found["assumptions"]}


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"engine_version": "0.20.1"}, "version_unused"),
        ({"expert_parallel": 4}, "no_experts"),
        ({"expert_parallel": 4, "weights": {"bytes": GIB}}, "experts_unused"),
        ({"model": {"id": "mistralai/Mixtral-8x7B-v0.1"}, "expert_parallel": 3}, "uneven_experts"),
    ],
)
def test_a_setting_that_changes_nothing_is_said(
    client: TestClient, more: dict[str, Any], code: str
) -> None:
    """A setting without effect, or with another than asked for, is never dropped silently."""
    assert code not in codes(ask(client, **GOOD))
    assert code in codes(ask(client, **GOOD | more))


def test_an_unknown_release_is_refused_at_its_field(client: TestClient) -> None:
    """The refusal stands at the request's own field and says which releases are known."""
    answer = client.post("/api/v1/fit", json=GOOD | {"engine": "vllm", "engine_version": "banana"})
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert problem["loc"] == ["body", "engine_version"]
    assert problem["msg"].startswith("engine_version 'banana' is not a known vLLM release")
    assert "0.6.0 … 0.33.0" in problem["msg"]


@pytest.mark.parametrize("field", ["utilisation", "percentile"])
def test_text_is_no_number(client: TestClient, field: str) -> None:
    """A share in quotes is refused; a whole number is one."""
    lengths = {"lengths": [512, 1024]}
    answer = client.post("/api/v1/fit", json=GOOD | lengths | {field: "0.5"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", field]
    whole = {"utilisation": 1, "percentile": 90}[field]
    assert client.post("/api/v1/fit", json=GOOD | lengths | {field: whole}).status_code == 200


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "yes"])
def test_words_that_are_no_json_are_named(client: TestClient, text: str) -> None:
    """The refusal says where reading stopped, and that NaN and Infinity are no JSON."""
    answer = client.post("/api/v1/fit", content=f'{{"utilisation": {text}}}',
                         headers={"content-type": "application/json"})  # fmt: skip
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert (problem["loc"], problem["type"]) == (["body"], "json_invalid")
    assert "line 1 column 1" in problem["msg"]
    assert "NaN, Infinity and bare words are no JSON values" in problem["msg"]


def test_the_verdict_names_lines_in_words(client: TestClient) -> None:
    """A sentence says “State of the load”, not the name that JSON has for the line."""
    found = ask(client, **GOOD | {"concurrency": 10_000})
    assert found["deciding_line"] == "state"
    assert "the largest line is “State of the load”" in found["verdict"]
