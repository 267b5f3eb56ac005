"""`/parallel`: worked values, weights of a rank, refusals; the command line prints the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app as cli

UNIFORM = {"layers": 32, "kv_heads": 8, "head_dim": 128}
GOOD: dict[str, Any] = {"model": UNIFORM, "kv_dtype": "bf16", "lengths": [131_072]}
GIB = 2**30


def ask(client: TestClient, **more: Any) -> dict[str, Any]:
    """Return an answer."""
    answer = client.post("/api/v1/parallel", json={**GOOD, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_sixteen_ranks_over_eight_heads(client: TestClient) -> None:
    """Each of eight heads lies on two of sixteen ranks: the total is twice the single copy."""
    answer = ask(client, tensor_parallel=16)
    assert answer["total_bytes"] == 2 * answer["single_bytes"] == 2 * 131_072 * 131_072
    assert answer["replicated_bytes"] == 131_072 * 131_072
    assert answer["naive_bytes"] == 131_072 * 131_072 // 16
    first = answer["ranks"][3]
    assert (first["kv_heads"], first["replicas"], first["layers"]) == ([1], 2, [0, 31])
    assert answer["why"][0]["code"] == "copied_heads"
    assert answer["formula"]
    assert answer["assumptions"]
    assert answer["not_counted"]


def test_deepseek_on_eight_ranks(client: TestClient) -> None:
    """DeepSeek V3 holds 70,272 B a token on each of eight ranks; interleaved, one in eight."""
    model = {"id": "deepseek-ai/DeepSeek-V3"}
    answer = ask(client, model=model, tensor_parallel=8)
    assert {rank["bytes_per_token"] for rank in answer["ranks"]} == {70_272}
    shared = ask(client, model=model, tensor_parallel=8, decode_context_parallel=8)
    assert {rank["effective_bytes"] for rank in shared["ranks"]} == {70_272 * 131_072 // 8}
    assert shared["replicated_bytes"] == 0


def test_the_largest_llama(client: TestClient) -> None:
    """Llama 3.1 405B at 131,072 tokens: 63 GiB in all, 7.875 GiB a rank; 94.5 GiB of weights."""
    answer = ask(client, model={"id": "meta-llama/Llama-3.1-405B"}, tensor_parallel=8)
    assert answer["total_bytes"] == 63 * GIB
    assert {rank["effective_bytes"] for rank in answer["ranks"]} == {63 * GIB // 8}
    assert answer["weights_basis"] == "computed"
    assert answer["weights_total_bytes"] == 811_706_777_600
    assert {rank["weights_bytes"] // 10**7 for rank in answer["ranks"]} == {10147}


def test_the_ends_of_a_pipeline_hold_their_tables(client: TestClient) -> None:
    """The first stage holds the embedding, the last the output; a stage between holds less."""
    answer = ask(client, model={"id": "meta-llama/Llama-3.1-8B"}, pipeline_parallel=4)
    first, second, third, last = [rank["weights_bytes"] for rank in answer["ranks"]]
    table = 128_256 * 4096 * 2
    assert first - second == table
    assert last - third == table + 4096 * 2
    assert first + second + third + last == 8_030_261_248 * 2


@pytest.mark.parametrize(
    ("weights", "each"),
    [
        ({"bytes": 1000}, 125),
        ({"bytes": 1001}, 126),
        ({"bytes_per_rank": 77}, 77),
        ({"parameters": 800, "format": "fp8"}, 100),
        ({"parameters": 800}, 200),
    ],
)
def test_weights_as_given(client: TestClient, weights: dict[str, Any], each: int) -> None:
    """Bytes and parameters are dealt out evenly, rounded up; those of a rank are as given."""
    answer = ask(client, tensor_parallel=8, weights=weights)
    assert {rank["weights_bytes"] for rank in answer["ranks"]} == {each}


def test_experts_are_dealt_out_or_cut(client: TestClient) -> None:
    """Dealt out whole over eight ranks or cut by eight: the experts' bytes are the same."""
    model = {"id": "deepseek-ai/DeepSeek-V3"}
    cut = ask(client, model=model, tensor_parallel=8)
    dealt = ask(client, model=model, tensor_parallel=8, expert_parallel=8)
    assert cut["ranks"][0]["weights_bytes"] == dealt["ranks"][0]["weights_bytes"]
    whole = ask(client, model=model, tensor_parallel=1)
    with_experts = ask(client, model=model, tensor_parallel=1, expert_parallel=8)
    assert whole["ranks"][0]["weights_bytes"] > 4 * with_experts["ranks"][0]["weights_bytes"]


def test_a_format_that_does_not_divide(client: TestClient) -> None:
    """Rows of 2880 do not cut into whole groups of 32 by four: the total is dealt out evenly."""
    answer = ask(client, model={"id": "openai/gpt-oss-120b"}, tensor_parallel=4)
    each = -(-answer["weights_total_bytes"] // 4)
    assert {rank["weights_bytes"] for rank in answer["ranks"]} == {each}
    assert {"weights_not_cut", "weights_evenly"} <= {note["code"] for note in answer["assumptions"]}


def test_parameters_that_the_catalogue_lists(client: TestClient) -> None:
    """Where the shapes are not known, the listed parameters count, at 16 bits, and it says so."""
    answer = ask(client, model={"id": "state-spaces/mamba-2.8b-hf"})
    assert answer["weights_total_bytes"] == 2 * 2_768_345_600
    assert "weights_listed" in [note["code"] for note in answer["assumptions"]]
    narrow = ask(client, model={"id": "state-spaces/mamba-2.8b-hf"}, weights={"format": "fp8"})
    assert narrow["weights_total_bytes"] == 2_768_345_600


def test_neither_shapes_nor_parameters(client: TestClient) -> None:
    """Where nothing is known the weights are left out, and asked for where they are needed."""
    model = {"id": "ai21labs/AI21-Jamba-1.5-Large"}
    assert ask(client, model=model)["weights_total_bytes"] is None
    answer = client.post("/api/v1/fit", json={"model": model, "device": "h200-141"})
    assert answer.json()["detail"][0]["loc"] == ["body", "weights"]


def test_a_config_whose_shapes_are_unknown(client: TestClient) -> None:
    """A pasted config of an unknown family is read for its state; its weights are asked for."""
    config = {"architectures": ["BaichuanForCausalLM"], "num_hidden_layers": 2,
              "num_attention_heads": 4, "hidden_size": 64, "vocab_size": 100,
              "intermediate_size": 128}  # fmt: skip
    answer = client.post("/api/v1/fit", json={"model": {"config": config}, "device": "l4"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][:3] == ["body", "model", "config"]


def test_layers_that_do_not_match(client: TestClient) -> None:
    """With draft layers counted, the layers are not the weights': bytes go evenly."""
    model = {"id": "deepseek-ai/DeepSeek-V3", "draft_layers": True}
    answer = ask(client, model=model, pipeline_parallel=2)
    assert [row["layers"] for row in answer["ranks"]] == [[0, 30], [31, 61]]
    assert len({row["weights_bytes"] for row in answer["ranks"]}) == 1


def test_a_model_by_its_numbers_has_no_weights(client: TestClient) -> None:
    """Without a config the weights are left out, and the answer says why."""
    answer = ask(client)
    assert answer["ranks"][0]["weights_bytes"] is None
    assert "weights_unknown" in [note["code"] for note in answer["assumptions"]]


@pytest.mark.parametrize(
    ("spoiled", "loc"),
    [
        ({"tensor_parallel": 0}, ["body", "tensor_parallel"]),
        ({"tensor_parallel": 7}, ["body", "tensor_parallel"]),
        ({"pipeline_parallel": 64}, ["body", "pipeline_parallel"]),
        ({"pipeline_parallel": True}, ["body", "pipeline_parallel"]),
        ({"decode_context_parallel": 2}, ["body", "decode_context_parallel"]),
        ({"layers_per_stage": [16, 17], "pipeline_parallel": 2}, ["body", "layers_per_stage"]),
        ({"layers_per_stage": [0]}, ["body", "layers_per_stage", 0]),
        ({"weights": {"bytes": 1, "parameters": 1}}, ["body", "weights"]),
        ({"weights": {"parameters": 1, "format": "awq_int4"}}, ["body", "weights", "format"]),
        ({"model": {"id": "meta-llama/Llama-3.1-8B"}, "weights": {"format": "fp17"}},
         ["body", "weights", "format"]),
        ({"weights": {"format": "fp8"}}, ["body", "weights"]),
        ({"lengths": [-1]}, ["body", "lengths", 0]),
    ],
)  # fmt: skip
def test_nonsense_is_refused(client: TestClient, spoiled: dict[str, Any], loc: list[Any]) -> None:
    """What cannot be split, or contradicts itself, is refused at the field at fault."""
    answer = client.post("/api/v1/parallel", json={**GOOD, **spoiled})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == loc


def test_the_command_line_prints_the_same(client: TestClient) -> None:
    """`--json` prints exactly what the API answers; the table names every rank."""
    words = ["parallel", "--layers=32", "--kv-heads=8", "--head-dim=128", "--kv-dtype=bf16",
             "--lengths=131072", "--tensor-parallel=2", "--pipeline-parallel=2",
             "--layers-per-stage=20,12", "--weights=2GiB"]  # fmt: skip
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == 0, done.output
    body = {
        **GOOD,
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "layers_per_stage": [20, 12],
        "weights": {"bytes": 2 * GIB},
        "lengths": [{"length": 131_072, "count": 1}],
    }
    assert done.stdout.strip() == client.post("/api/v1/parallel", json=body).text
    table = CliRunner().invoke(cli, words)
    assert table.exit_code == 0
    assert "4 ranks of one replica" in table.stdout


def test_weights_of_a_file(tmp_path: Path) -> None:
    """A safetensors or GGUF file is weighed by its header; a file that is neither is refused."""
    tensors = {"a": {"dtype": "BF16", "shape": [100], "data_offsets": [0, 200]}}
    header = json.dumps(tensors).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(200))
    words = ["parallel", "--layers=2", "--kv-heads=8", "--head-dim=128", "--lengths=1", "--json",
             "--tensor-parallel=2"]  # fmt: skip
    done = CliRunner().invoke(cli, [*words, f"--weights=@{path}"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ranks"][0]["weights_bytes"] == 100
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    empty = CliRunner().invoke(cli, [*words, f"--weights=@{gguf}"])
    assert json.loads(empty.stdout)["ranks"][0]["weights_bytes"] == 0
    broken = tmp_path / "broken"
    broken.write_bytes(b"x")
    for name in (broken, tmp_path / "nowhere"):
        assert CliRunner().invoke(cli, [*words, f"--weights=@{name}"]).exit_code == 2


@pytest.mark.parametrize(
    "words", [["--tensor-parallel=7"], ["--layers-per-stage=a"], ["--weights=3 apples"]]
)
def test_the_command_line_refuses_in_one_line(words: list[str]) -> None:
    """Bad input ends with exit code 2 and one line."""
    base = ["parallel", "--layers=32", "--kv-heads=8", "--head-dim=128", "--lengths=1"]
    done = CliRunner().invoke(cli, [*base, *words])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("stages", [1, 2])
def test_weights_that_are_shown_are_not_left_out(client: TestClient, stages: int) -> None:
    """The omissions name the weights only where no rank's weights are shown."""
    body = {"kv_dtype": "bf16", "lengths": [1024], "pipeline_parallel": stages}
    shown = client.post(
        "/api/v1/parallel", json=body | {"model": {"id": "meta-llama/Llama-3.1-8B"}}
    ).json()
    unknown = client.post("/api/v1/parallel", json=body | {"model": UNIFORM}).json()
    assert shown["weights_total_bytes"] > 0
    assert "weights" not in {note["code"] for note in shown["not_counted"]}
    assert unknown["weights_total_bytes"] is None
    assert "weights" in {note["code"] for note in unknown["not_counted"]}


def test_lengths_times_stages_are_bounded(client: TestClient) -> None:
    """Different lengths × stages × kinds of states over the bound are refused by name."""
    lengths = [{"length": length, "count": 1} for length in range(1, 20_001)]
    body = {"model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "bf16", "lengths": lengths}
    answer = client.post("/api/v1/parallel", json=body | {"pipeline_parallel": 32})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "lengths"]
    assert "ask for 640000 sums" in answer.json()["detail"][0]["msg"]
