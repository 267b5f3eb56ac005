"""What holds for every command: its help, the API's own answer, and one line on bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from app.cli import app

LLAMA = "meta-llama/Llama-3.1-8B"
MODEL = {"id": LLAMA}
LOG = "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 327,680 tokens\n"
TRACE = "timestamp,input_length,output_length\n0,100,10\n1,200,20\n"
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip

# A command's words, the call, and what the call is given: a query, a body, or a form and a file.
GETS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "models": (
        ["gemma", "--family", "gemma3", "--kind", "sliding_window", "--readable",
         "--min-parameters", "1000000000", "--max-parameters", "40000000000",
         "--sort", "bytes_per_token", "--descending", "--offset", "1", "--limit", "3"],
        "models",
        {"q": "gemma", "family": "gemma3", "kind": "sliding_window", "readable": True,
         "min_parameters": 1_000_000_000, "max_parameters": 40_000_000_000,
         "sort": "bytes_per_token", "descending": True, "offset": 1, "limit": 3},
    ),
    "devices": (["h100"], "devices", {"q": "h100"}),
}  # fmt: skip
POSTS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "per-token": (
        ["--model", LLAMA, "--kv-dtype", "q8_0/q4_0"],
        "per-token",
        {"model": MODEL, "kv_dtype": {"k": "q8_0", "v": "q4_0"}},
    ),
    "ledgers": (
        ["--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--element-bytes", "2",
         "--lengths", "17,31,32", "--block-size", "16"],
        "ledgers",
        {"model": {"layers": 32, "kv_heads": 8, "head_dim": 128}, "element_bytes": 2,
         "lengths": [17, 31, 32], "block_size": 16},
    ),
    "fragmentation": (
        ["--model", LLAMA, "--lengths", "17,31,32", "--max-length", "2048", "--memory", "1GiB"],
        "fragmentation",
        {"model": MODEL, "lengths": [17, 31, 32], "max_length_tokens": 2048,
         "memory_bytes": 1_073_741_824},
    ),
    "sharing": (
        ["--model", LLAMA, "--groups", "32 -> 2 x 1"],
        "sharing",
        {"model": MODEL, "groups": [{"prefix_tokens": 32, "branches": [1, 1]}]},
    ),
    "hashes": (
        ["--scheme", "vllm", "--tokens", "1 2 3 4 5", "--block-size", "4", "--hash-seed", "0"],
        "prefix-hashes",
        {"scheme": "vllm", "tokens": [1, 2, 3, 4, 5], "block_size": 4, "hash_seed": "0"},
    ),
    "pool": (
        ["--num-blocks", "8", "--block-size", "4", "--events", "allocate a 1..8\nfree a"],
        "block-pool",
        {"num_blocks": 8, "block_size": 4,
         "events": [{"op": "allocate", "request": "a", "tokens": [1, 2, 3, 4, 5, 6, 7, 8]},
                    {"op": "free", "request": "a"}]},
    ),
    "parallel": (
        ["--model", LLAMA, "--lengths", "17", "--tensor-parallel", "16", "--weights", "fp8"],
        "parallel",
        {"model": MODEL, "lengths": [17], "tensor_parallel": 16, "weights": {"format": "fp8"}},
    ),
    "fit": (
        ["--model", LLAMA, "--device", "h100-sxm-80", "--context", "8192"],
        "fit",
        {"model": MODEL, "device": "h100-sxm-80", "context_tokens": 8192},
    ),
    "compare": (
        ["model=meta-llama/Llama-3.1-8B&kv=bf16", "/fit?kv=fp8&context_tokens=8192&concurrency=16"],
        "compare",
        {"calculations": [
            {"model": MODEL, "kv_dtype": kv, "device": "h100-sxm-80", "utilisation": 0.92,
             "batch_tokens": 8192, "max_sequences": 256, "context_tokens": 8192,
             "concurrency": 16}
            for kv in ("bf16", "fp8")
        ]},
    ),
    "plan": (
        ["llama_cpp", "--model", LLAMA, "-s", "n_ctx=8192"],
        "engines/llama_cpp/plan",
        {"model": MODEL, "settings": {"n_ctx": 8192}},
    ),
    "explain": (["-", "--model", LLAMA], "engines/explain", {"log": LOG, "model": MODEL}),
    "cost": (
        ["--model", LLAMA, "--prompt-tokens", "100", "--output-tokens", "10"],
        "cost",
        {"model": MODEL, "prompt_tokens": 100, "output_tokens": 10},
    ),
}  # fmt: skip
FILES: dict[str, tuple[str, str, dict[str, str]]] = {
    "inspect": ("config.json", "models/inspect", {}),
    "traces": ("log.csv", "traces", {}),
}
# Asked and compared with its call in tests/commands/test_accuracy.py, for it asks every case.
ELSEWHERE = {"accuracy", "serve"}
RUBBISH = [
    ("models", ["--sort", "weight"], "sort: Input should be 'id', 'parameters'"),
    ("models", ["--kind", "magic"], "kind: Input should be 'full_attention'"),
    ("models", ["--limit", "0"], "limit: Input should be greater than or equal to 1"),
    ("devices", ["--no-such-option"], "No such option: --no-such-option"),
    ("accuracy", ["--outcome", "perfect"], "--outcome: one of exact"),
    ("per-token", ["--layers", "many"], "'--layers': Input should be a valid integer"),
    ("ledgers", ["--model", LLAMA, "--lengths", "17,-1"], "a length is not negative"),
    ("fragmentation", ["--model", LLAMA, "--lengths", "17"], "Missing option '--max-length'"),
    ("sharing", ["--model", LLAMA, "--sequences", "1 2", "--own-tokens", "3"], "need --samples"),
    ("hashes", ["--tokens", "1 2 x"], "tokens"),
    ("pool", ["--num-blocks", "8", "--events", "juggle a"], "juggle"),
    ("parallel", ["--model", LLAMA, "--lengths", "17", "--tensor-parallel", "0"],
     "tensor_parallel: Input should be greater than or equal to 1"),
    ("fit", ["--model", LLAMA, "--memory", "much"], "memory_bytes must be an amount"),
    ("compare", ["/fit", "nonsense"], "'nonsense' is no field of the page /fit"),
    ("compare", ["/fit", ""], "a calculation is an address or a query of the page /fit"),
    ("plan", ["tgi", "--model", LLAMA], "engine: one of vllm, llama_cpp"),
    ("explain", ["/no/such/file"], "No such file or directory"),
    ("cost", ["--model", LLAMA, "--bandwidth", "fast"], "bandwidth must be an amount"),
    ("inspect", ["config.json", "--revision", "main"], "belong to a model of the Hub"),
    ("traces", ["/no/such/file"], "No such file or directory"),
    ("serve", ["--port", "99999"], "should be less than or equal to 65535"),
]  # fmt: skip


def run(*words: str) -> Result:
    """Return what a command printed and how it ended."""
    return CliRunner().invoke(app, list(words), input=LOG)


def names() -> list[str]:
    """Return the names of all commands."""
    found = [command.name for command in app.registered_commands]
    return [name for name in found if name is not None]


def test_the_tables_have_every_command() -> None:
    """A command that is added has to stand below too."""
    assert len(names()) == 18
    assert {*GETS, *POSTS, *FILES, *ELSEWHERE} == set(names())
    assert {name for name, _, _ in RUBBISH} == set(names())


@pytest.mark.parametrize("name", names())
def test_help(name: str) -> None:
    """Every command says what it does and lists its options."""
    done = run(name, "--help")
    assert done.exit_code == 0
    assert "Options" in done.stdout
    assert "--help" in done.stdout


@pytest.mark.parametrize("name", sorted(GETS))
def test_a_listing_is_the_api_s(name: str, client: TestClient) -> None:
    """--json prints exactly what the call answers, by default too."""
    words, call, query = GETS[name]
    done = run(name, *words, "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.rstrip("\n") == client.get(f"/api/v1/{call}", params=query).text
    plain = run(name, "--json")
    assert json.loads(plain.stdout) == client.get(f"/api/v1/{call}").json()


@pytest.mark.parametrize("name", sorted(POSTS))
def test_a_computation_is_the_api_s(name: str, client: TestClient) -> None:
    """--json prints exactly what the call answers."""
    words, call, body = POSTS[name]
    done = run(name, *words, "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.rstrip("\n") == client.post(f"/api/v1/{call}", json=body).text


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_s_answer_is_the_api_s(name: str, tmp_path: Path, client: TestClient) -> None:
    """--json prints exactly what the call answers to the same file."""
    file, call, form = FILES[name]
    path = tmp_path / file
    path.write_text(json.dumps(CONFIG) if file.endswith(".json") else TRACE, encoding="utf-8")
    done = run(name, str(path), "--json")
    assert done.exit_code == 0, done.stderr
    asked = client.post(f"/api/v1/{call}", files={"file": (file, path.read_bytes())}, data=form)
    assert done.stdout.rstrip("\n") == asked.text


@pytest.mark.parametrize(("name", "words", "said"), RUBBISH)
def test_bad_input_is_one_line(name: str, words: list[str], said: str) -> None:
    """Exit code 2, one line on standard error, nothing on standard output, no traceback."""
    done = run(name, *words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["modelz"], "error: No such command 'modelz'. Did you mean 'models'?\n"),
        (["--nope"], "error: No such option: --nope\n"),
        (["traces"], "error: Missing argument 'file'.\n"),
    ],
)
def test_what_is_no_command_is_one_line_too(words: list[str], said: str) -> None:
    """Commands, options and arguments that are wrong or missing are refused alike."""
    done = run(*words)
    assert done.exit_code == 2
    assert done.stderr == said


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless file here")
@pytest.mark.parametrize(
    "words",
    [
        ["per-token", "--config", "/dev/zero"],
        ["ledgers", "--model", LLAMA, "--lengths-file", "/dev/zero"],
        ["sharing", "--model", LLAMA, "--sequences-file", "/dev/zero"],
        ["compare", "/fit", "@/dev/zero"],
    ],
)
def test_a_file_without_an_end_is_refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more is read than the bound and one byte."""
    monkeypatch.setattr("app.cli.MAX_FILE_BYTES", 2**20)
    done = run(*words)
    assert done.exit_code == 2
    assert done.stderr == "error: /dev/zero: must be at most 1048576 bytes\n"


def test_without_words_the_help_is_shown() -> None:
    """Nothing asked is answered with what there is."""
    done = run()
    assert done.exit_code == 2
    assert "per-token" in done.output


def test_no_figure_of_a_table_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However narrow the screen, every digit and every name is printed whole."""
    monkeypatch.setenv("COLUMNS", "40")
    done = run("models", "gemma-3-27b-it", "--family", "gemma3", "--limit", "1")
    assert "google/gemma-3-27b-it" in done.stdout
    assert "full_attention, sliding_window" in done.stdout
    wide = run("plan", "all", "--model", "google/gemma-3-27b-it", "--available", "40GiB")
    assert "…" not in wide.stdout
    assert "11173199872" in wide.stdout
