"""The commands of plans and of logs: the API's answers, and exit codes that a script can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from app.cli import app

LLAMA = "meta-llama/Llama-3.1-8B"
LOG = "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 327,680 tokens\n"


def run(*words: str, given: str | bytes | None = None) -> Result:
    """Return what a command printed and how it ended."""
    return CliRunner().invoke(app, list(words), input=given)


def test_a_plan(client: TestClient) -> None:
    """--json prints exactly the API's answer; the table has its figures."""
    words = ["plan", "vllm", "--model", LLAMA, "--available", "40GiB",
             "--settings", "--max-model-len 131072"]  # fmt: skip
    asked = client.post(
        "/api/v1/engines/vllm/plan",
        json={"model": {"id": LLAMA}, "available_bytes": 42_949_672_960,
              "settings": {"max_model_len": 131_072}},
    )  # fmt: skip
    printed = run(*words, "--json")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == asked.json()
    table = run(*words).stdout
    assert "327680" in table
    assert "prints: GPU KV cache size: 327,680 tokens, Maximum concurrency" in table


def test_a_run_of_transformers(client: TestClient) -> None:
    """A length is a prompt and one step; equal layers stand in one row; --json is the API's."""
    words = ["plan", "transformers", "--model", LLAMA, "--context", "8k", "--kv-dtype", "bf16"]
    asked = client.post(
        "/api/v1/engines/transformers/plan",
        json={"model": {"id": LLAMA},
              "settings": {"prompt_tokens": 8191, "decode_steps": 1, "dtype": "bf16"}},
    )  # fmt: skip
    printed = run(*words, "--json")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == asked.json()
    table = run(*words).stdout
    assert "32 × 33554432 B = 1073741824 B" in table
    assert "0-31" in table
    assert "keys 1×8×8192×128 bfloat16, values 1×8×8192×128 bfloat16" in table
    assert "the model needs 1073741824 B, kept beyond it 0 B" in table
    one = run("plan", "transformers", "--model", LLAMA, "--context", "1", "--json")
    assert json.loads(one.stdout)["decode_steps"] == 0


def test_a_version_is_text_whatever_it_looks_like() -> None:
    """1.2 is a release of TensorRT-LLM, not the number six fifths."""
    words = ["plan", "tensorrt_llm", "--model", LLAMA, "--available", "40GiB", "--json"]
    for more in (["-s", "version=1.2"], ["--settings", "--version 1.2"]):
        assert json.loads(run(*words, *more).stdout)["version"] == "1.2"
    both = run("plan", "all", "--model", LLAMA, "--available", "40GiB", "--context", "8k",
               "-s", "tensorrt_llm.version=1.2", "--json")  # fmt: skip
    assert json.loads(both.stdout)["engines"][3]["version"] == "1.2"


@pytest.mark.parametrize(
    ("engine", "figure"),
    [("llama_cpp", "1073741824"), ("sglang", "327680"), ("tensorrt_llm", "294912")],
)
def test_plans_of_the_others(engine: str, figure: str) -> None:
    """Each engine takes the length and the format by its own names."""
    done = run("plan", engine, "--model", LLAMA, "--available", "40GiB", "--context", "8k",
               "--kv-dtype", "fp16")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert figure in done.stdout


def test_all_engines(client: TestClient) -> None:
    """Without an engine's name all are compared, as the API does."""
    words = ["plan", "all", "--model", LLAMA, "--available", "40GiB", "--kv-dtype", "bf16",
             "--context", "128k", "--lengths", "1k,8k"]  # fmt: skip
    asked = client.post(
        "/api/v1/engines/side-by-side",
        json={"model": {"id": LLAMA}, "available_bytes": 42_949_672_960, "kv_dtype": "bf16",
              "context_tokens": 131_072, "lengths": [1_024, 8_192]},
    )  # fmt: skip
    assert json.loads(run(*words, "--json").stdout) == asked.json()
    table = run(*words).stdout
    assert [line.split()[0] for line in table.splitlines()[2:7]] == [
        "vLLM", "llama.cpp", "SGLang", "TensorRT-LLM", "Transformers",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["--settings", "--max-model-len 8192 tp=2"],
        ["--settings", "--max-model-len 8192 -tp 2"],
        ["--settings", "--max-model-len 8192 --tp 2"],
        ["-s", "max_model_len=8192", "-s", "tp=2"],
        ["--context", "8k", "--tensor-parallel", "2"],
    ],
)
def test_ranks_by_any_of_their_names(words: list[str]) -> None:
    """Two tensor ranks halve what a token takes, however they are asked for."""
    done = run("plan", "vllm", "--model", LLAMA, "--available", "40GiB", *words, "--json")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["request"]["slope_bytes"] == 65_536
    assert answer["kv_cache_tokens"] == 655_360


def test_ranks_of_all_engines() -> None:
    """Of all engines, those without such ranks say so; a setting names its engine."""
    words = ["plan", "all", "--model", LLAMA, "--available", "40GiB", "--tensor-parallel", "2",
             "-s", "vllm.version=0.11.0", "--context", "8k"]  # fmt: skip
    done = run(*words)
    assert done.exit_code == 0, done.stderr
    assert "0.11.0" in done.stdout
    assert "llama.cpp: llama.cpp has no setting for tensor_parallel" in done.stdout
    assert done.stdout.splitlines()[1].split()[-3:] == ["fixed", "slope", "from"]


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", None),
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8", 327_680),
    ],
)
def test_models_by_the_names_that_logs_have(model: str, tokens: int | None) -> None:
    """A plan finds a model by the same names as the explanation of a log does."""
    done = run("plan", "vllm", "--model", model, "--available", "40GiB", "--json")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["kv_cache_tokens"] > 0
    if tokens is not None:
        assert answer["kv_cache_tokens"] == tokens
        assert "model_by_name" in {note["code"] for note in answer["assumptions"]}


@pytest.mark.parametrize("given", ["", " \n\t\n"])
def test_an_empty_log_is_a_mistake(given: str, tmp_path: Path) -> None:
    """Nothing to explain ends with 2 and one line, by standard input and by file."""
    path = tmp_path / "empty.log"
    path.write_text(given, encoding="utf-8")
    for word, said in (("-", "error: the log is empty\n"), (str(path), "is empty\n")):
        done = run("explain", word, given=given)
        assert done.exit_code == 2
        assert done.stderr.endswith(said)
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "nope", "--model", LLAMA], "engine: one of"),
        (["plan", "transformers", "--model", LLAMA, "--available", "1GiB"], "available: Trans"),
        (["plan", "transformers", "--model", LLAMA, "--kv-dtype", "fp8"], "settings.dtype fp8"),
        (["plan", "transformers", "--model", LLAMA, "--lengths", "1k"], "all engines only"),
        (
            ["plan", "transformers", "--model", LLAMA, "--context", "8k", "-s", "prompt_tokens=3"],
            "prompt_tokens: given by an option, 8191, and as a setting, 3",
        ),
        (["plan", "vllm", "--model", LLAMA, "--context", "1k,8k"], "context must be one number"),
        (
            ["plan", "vllm", "--model", LLAMA, "--context", "8k", "-s", "max_model_len=3"],
            "max_model_len: given by an option, 8192, and as a setting, 3",
        ),
        (
            ["plan", "vllm", "--model", LLAMA, "--tensor-parallel", "2", "-s", "tp=4"],
            "tensor_parallel_size: given by an option, 2, and as a setting, 4",
        ),
        (["plan", "vllm", "--model", LLAMA, "-s", "version=0.33"], "'0.33' is not a known vLLM"),
        (["plan", "vllm", "--model", LLAMA, "--settings", "version=5"], "'5' is not a known vLLM"),
        (["plan", "vllm"], "give the model"),
        (["plan", "vllm", "--model", "no/such"], "no/such"),
        (["plan", "vllm", "--model", LLAMA, "--available", "much"], "available must be"),
        (["plan", "vllm", "--model", LLAMA, "--settings", "word"], "flags or name=value"),
        (["plan", "vllm", "--model", LLAMA, "-s", "word"], "give name=value"),
        (["plan", "vllm", "--model", LLAMA, "-s", "nope=1"], "settings.nope"),
        (["plan", "vllm", "--model", LLAMA, "--kv-dtype", "q8_0"], "no cache in q8_0"),
        (["plan", "vllm", "--model", LLAMA, "--kv-dtype", "fp17"], "fp17"),
        (["plan", "vllm", "--model", LLAMA, "--lengths", "1k"], "all engines only"),
        (["plan", "vllm", "--model", LLAMA, "--context", "oops"], "oops"),
        (["plan", "all", "--model", LLAMA], "give the memory"),
        (["plan", "all", "--model", LLAMA, "--available", "1GiB", "-s", "a=1"], "one engine"),
        (
            ["plan", "all", "--model", LLAMA, "--available", "1GiB", "-s", "vllm.a=1"],
            "settings.vllm.a",
        ),
        (["plan", "all", "--model", LLAMA, "--available", "1GiB", "-s", "nope.a=1"], "settings"),
        (
            ["plan", "all", "--model", LLAMA, "--available", "1GiB", "--context", "99999999999"],
            "context must be between 1 and 4194304, got '99999999999'",
        ),
        (
            ["plan", "vllm", "--model", LLAMA, "--context", "99999999999"],
            "context must be between 1 and 2147483647",
        ),
        (["plan", "llama_cpp", "--model", LLAMA, "--tensor-parallel", "2"], "tensor_parallel"),
        (
            ["plan", "vllm", "--model", LLAMA, "-s", "tp=2", "-s", "tensor_parallel_size=2"],
            "given twice",
        ),
        (["explain", "-", "--model", LLAMA, "-s", "tp=0"], "settings.tensor_parallel_size"),
        (
            ["explain", "-", "--model", LLAMA, "--settings", "tp=2 tensor_parallel_size=2"],
            "given twice",
        ),
        (["explain", "/no/such/file"], "No such file"),
        (["explain", "-", "--config", "-"], "only one of"),
        (["explain", "-", "--model", LLAMA, "-s", "nope=1"], "settings.nope"),
        (["explain", "-", "--engine", "nope"], "engine"),
    ],
)
def test_mistakes_end_with_two(words: list[str], said: str) -> None:
    """One line on standard error, and exit code 2."""
    done = run(*words, given=LOG)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


# Logs


def test_a_log_that_agrees(tmp_path: Path, client: TestClient) -> None:
    """A file or standard input; 0 where all figures agree; --json is the API's answer."""
    path = tmp_path / "start.log"
    path.write_text(LOG, encoding="utf-8")
    asked = client.post("/api/v1/engines/explain", json={"log": LOG, "model": {"id": LLAMA}})
    for words, given in ((["explain", str(path)], None), (["explain", "-"], LOG)):
        done = run(*words, "--model", LLAMA, "--json", given=given)
        assert done.exit_code == 0
        assert json.loads(done.stdout) == asked.json()
    text = run("explain", str(path), "--model", LLAMA).stdout
    assert "kv_cache_tokens: printed 327,680 tokens; computed 327,680 tokens; agrees" in text
    assert "change: --kv-cache-dtype fp8" in text


def test_a_log_that_disagrees() -> None:
    """Exit code 1, in tables and in JSON alike."""
    wrong = LOG.replace("327,680", "300,000")
    for more in ([], ["--json"]):
        done = run("explain", "-", "--model", LLAMA, *more, given=wrong)
        assert done.exit_code == 1
        assert "300,000" in done.stdout
    assert "DISAGREES" in run("explain", "-", "--model", LLAMA, given=wrong).stdout


def test_a_log_that_cannot_be_checked() -> None:
    """Nothing that disagrees is no disagreement: 0, and what is missing is said."""
    done = run("explain", "-", given=LOG)
    assert done.exit_code == 0
    assert "missing: the log names no model" in done.stdout
    assert LLAMA in done.stdout
    nothing = run("explain", "-", given="hello")
    assert nothing.exit_code == 0
    assert "no engine known" in nothing.stdout


def test_bytes_that_are_no_text() -> None:
    """A log is read around what is no UTF-8."""
    done = run("explain", "-", "--model", LLAMA, given=b"\xff\xfe\x00\n" + LOG.encode())
    assert done.exit_code == 0
    assert "agrees" in done.stdout


def test_settings_and_wishes() -> None:
    """Settings may be repeated or in one text, and wishes are answered."""
    done = run("explain", "-", "--model", LLAMA, "-s", "max_model_len=131072", "--settings",
               "tp=1", "--want-context", "131072", "--want-concurrency", "2",
               "--json", given=LOG)  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["settings"]["max_model_len"] == 131_072
    assert answer["advice"][0]["change"] == "--kv-cache-memory-bytes 34359738368"
