"""Settings are read where a log shows them: dictionaries, calls, commands."""

from __future__ import annotations

import pytest

from app.engines.logs.arguments import Arguments, model_names, read_arguments
from app.engines.logs.text import LogText


def read(log: str) -> Arguments:
    """Return what a log's argument lines say."""
    return read_arguments(LogText(log))


def test_a_dictionary_of_arguments() -> None:
    """The line of arguments that differ from the defaults gives names and values."""
    found = read(
        "INFO 11-12 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-8B', "
        "'max_model_len': 32768, 'gpu_memory_utilization': 0.95, 'enable_prefix_caching': False}"
    )
    assert found.text("model") == "Qwen/Qwen3-8B"
    assert found.integer("max_model_len") == 32_768
    assert found.number("gpu_memory_utilization") == 0.95
    assert found.flag("enable_prefix_caching") is False


def test_a_call_of_arguments() -> None:
    """A call with names and equal signs is read alike."""
    found = read("server_args=ServerArgs(model_path='Qwen/QwQ-32B', tp_size=4, page_size=1)")
    assert found.text("model_path") == "Qwen/QwQ-32B"
    assert found.integer("tp_size") == 4


def test_a_command() -> None:
    """Flags of a command line, with a space or an equal sign; one without a value is true."""
    found = read(
        "$ vllm serve org/model --tensor-parallel-size 2 --max-model-len=8192 "
        "--no-enable-prefix-caching --enforce-eager"
    )
    assert found.text("model") == "org/model"
    assert found.integer("tensor_parallel_size") == 2
    assert found.integer("max_model_len") == 8_192
    assert found.flag("enable_prefix_caching") is False
    assert found.flag("enforce_eager") is True


def test_a_count_of_layers_is_no_model() -> None:
    """Ollama's layers.model counts layers; a model that is named beside it is named by its name."""
    counted = 'layers.model=81 memory.required.kv="19.5 GiB" --ctx-size 64000 --parallel 1'
    assert read(counted).text("model") is None
    assert read(counted).integer("parallel") == 1
    named = read(counted + " --model /models/llama-3.1-70b.gguf")
    assert named.text("model") == "/models/llama-3.1-70b.gguf"


def test_the_first_word_stands() -> None:
    """Of two values for one name the first stays."""
    found = read("vllm serve a/b --max-model-len 1024\nvllm serve c/d --max-model-len 2048")
    assert found.integer("max_model_len") == 1_024


@pytest.mark.parametrize("value", ["None", "null", ""])
def test_nothing_said(value: str) -> None:
    """None is no value."""
    assert Arguments(values={"model": value}).text("model") is None


def test_numbers_out_of_bounds() -> None:
    """A number that is too long, negative or no number at all is none."""
    odd = Arguments(values={"a": "9" * 40, "b": "-3", "c": "x", "d": "maybe"})
    assert [odd.integer(name) for name in "abc"] == [None, None, None]
    assert odd.number("a") is None
    assert odd.flag("d") is None


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("Qwen/Qwen3-8B", ["Qwen/Qwen3-8B", "Qwen3-8B"]),
        ("/data/models/Qwen3-8B", ["models/Qwen3-8B", "Qwen3-8B"]),
        (
            "/models/hub/models--Qwen--Qwen3-8B/snapshots/abc",
            ["Qwen/Qwen3-8B", "snapshots/abc", "abc"],
        ),
        (r"C:\models\Qwen3-8B", ["models/Qwen3-8B", "Qwen3-8B"]),
    ],
)
def test_names_of_a_model(value: str, names: list[str]) -> None:
    """A path's end may name the model, and a cache folder of the Hub names its id."""
    assert model_names(Arguments(values={"model": value}), ("model",)) == names


def test_a_line_without_end_is_bounded() -> None:
    """A line of megabytes is looked at for so many characters, and no further."""
    found = read("non-default args: {" + "'aa': 1, " * 400_000 + "'model': 'x/y'}")
    assert found.text("model") is None
    assert found.integer("aa") == 1


@pytest.mark.parametrize(
    "line",
    [
        (
            "INFO 10-10 12:00:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config:"
            " model='Qwen/Qwen3-14B', speculative_config=None, tokenizer='Qwen/Qwen3-14B'"
        ),
        (
            "INFO 01-10 12:00:00 llm_engine.py:1] Initializing an LLM engine (v0.6.6) with config:"
            ' model="Qwen/Qwen3-14B", speculative_config=None'
        ),
        "INFO 10-10 12:00:00 [gpu_model_runner.py:2602] Starting to load model Qwen/Qwen3-14B...",
        "Starting to load model /data/Qwen/Qwen3-14B... 2 ranks",
        "INFO 10-10 12:00:00 [utils.py:1] vLLM server version 0.14.0, serving model Qwen/Qwen3-14B",
        (
            "(APIServer pid=1) INFO 10-10 [utils.py:293]   █▄█▀ █     █     █     █  model"
            "   Qwen/Qwen3-14B"
        ),
        "model   Qwen/Qwen3-14B",
        "vllm serve Qwen/Qwen3-14B --max-model-len 8192",
        "vllm serve --model Qwen/Qwen3-14B",
        "Namespace(model='Qwen/Qwen3-14B', port=8000)",
    ],
)
def test_what_names_the_model(line: str) -> None:
    """The engine's own configuration, its loader, its greeting and its command name the model."""
    assert model_names(read(line), ("model",))[-2:] == ["Qwen/Qwen3-14B", "Qwen3-14B"]


@pytest.mark.parametrize(
    "line", ["the model   was slow today", "serving models of old", "config: model: none given"]
)
def test_a_sentence_names_no_model(line: str) -> None:
    """Words about a model are no name of one."""
    assert read(line).text("model") in (None, "none")
