"""What holds for the log of any engine: settings are checked, other engines' lines are named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.domain.errors import DomainError
from app.engines.model import EngineModel
from tests.engines.logs.asking import advice, ask, ask_each, figure_of, model_named, verdicts

LLAMA = "meta-llama/Llama-3.1-8B"
QWEN = "Qwen/Qwen3-8B"
VLLM = (
    "Available KV cache memory: 40.0 GiB\nGPU KV cache size: 327,680 tokens\n"
    "Maximum concurrency for 131,072 tokens per request: 2.50x"
)
SGLANG = "KV Cache is allocated. #tokens: 100000, K size: 6.10 GB, V size: 6.10 GB"
LLAMA_CPP = (
    "llama_kv_cache: size =  512.00 MiB (  4096 cells,  32 layers,  1/1 seqs),"
    " K (f16):  256.00 MiB, V (f16):  256.00 MiB"
)
TENSORRT_LLM = "Number of blocks in KV cache primary pool: 1000"
OLLAMA = 'msg="kv cache" device=CUDA0 size="1.9 GiB"'


@pytest.mark.parametrize("model", [None, LLAMA])
@pytest.mark.parametrize(
    ("log", "settings"),
    [
        (VLLM, {"foo": 1}),
        (SGLANG, {"foo": 0}),
        (SGLANG, {"tp_size": 0}),
        (SGLANG, {"version": "9.9.9"}),
        (LLAMA_CPP, {"foo": 1}),
        (LLAMA_CPP, {"num_ctx": 4096}),
        (LLAMA_CPP, {"cache_type_k": "q3"}),
        (TENSORRT_LLM, {"foo": 1}),
        (TENSORRT_LLM, {"tokens_per_block": 0}),
        (OLLAMA, {"foo": 1}),
        (OLLAMA, {"num_ctx": 0}),
    ],
)
def test_a_setting_is_checked_or_refused(
    log: str, settings: dict[str, object], model: str | None
) -> None:
    """A name or a value that the engine does not take is refused, model or none, also a 0."""
    with pytest.raises(DomainError) as error:
        ask(log, model, **settings)
    assert error.value.field == (next(iter(settings)),)


@pytest.mark.parametrize(("log", "name"), [(VLLM, "swap_space"), (SGLANG, "mem_fraction_static")])
def test_a_setting_of_nought_is_kept(log: str, name: str) -> None:
    """A 0 that the engine takes is among the settings of the answer."""
    assert ask(log, LLAMA, **{name: 0}).settings[name] == 0


def test_settings_of_no_engine_are_said_to_be_unchecked() -> None:
    """Where no line shows an engine, nothing can be held against a setting, and that is said."""
    found = ask("nothing of an engine", foo=1)
    assert [note.code for note in found.missing] == ["unknown_engine", "settings_unchecked"]
    assert [note.code for note in ask("nothing of an engine").missing] == ["unknown_engine"]


def test_other_engines_are_named() -> None:
    """Of three engines' lines one is explained; the others are counted."""
    found = ask(f"{VLLM}\n{SGLANG}\n{LLAMA_CPP}", LLAMA)
    assert found.engine == "vllm"
    (note,) = [note for note in found.remarks if note.code == "other_engines"]
    assert note.params == {"others": "llama.cpp (1), SGLang (1)", "engine": "vLLM"}


def test_ollama_and_llama_cpp_are_one_log() -> None:
    """Ollama starts llama.cpp: its lines there are of the same start."""
    found = ask(f"{OLLAMA}\n{LLAMA_CPP}", LLAMA)
    assert found.engine == "ollama"
    assert "other_engines" not in {note.code for note in found.remarks}


@pytest.mark.parametrize("the", ["", "the "])
def test_a_cache_that_was_not_allocated_is_llama_cpps(the: str) -> None:
    """The error alone shows whose it is."""
    assert ask(f"failed to allocate buffer for {the}kv cache", LLAMA).engine == "llama_cpp"


def test_an_error_of_memory_in_a_log_of_sglang() -> None:
    """What was asked for beyond what was free, as a share of the device: 1 of 79.1 GiB."""
    found = ask(
        f"{SGLANG}\nCUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
        " 79.10 GiB of which 1.00 GiB is free.", LLAMA,
    )  # fmt: skip
    assert figure_of(found, "failed_allocation").difference == "1.00 GiB"
    assert "2.00 GiB were asked for, 1.00 GiB were free" in advice(found)["lower_utilization"]
    (change,) = [item.change for item in found.advice if item.change.code == "lower_utilization"]
    assert change.text == "--mem-fraction-static lower by at least 0.013"


def test_padded_states_alone_find_the_settings() -> None:
    """1.49 % of Qwen3-Next's states is what the rules of some releases pad, not of the newest."""
    found = ask(
        "Padding mamba page size by 1.49% to ensure that mamba page size and attention page size"
        " are exactly equal.", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    )  # fmt: skip
    assert verdicts(found) == {"state_page_padding": True}
    assert figure_of(found, "state_page_padding").computed == "1.49 %"


TWO_MODELS = (
    f"vllm serve {LLAMA}\nvLLM API server version 0.20.2\n{VLLM}\n"
    "vllm serve {second}\nvLLM API server version 0.20.2\nAvailable KV cache memory: 36.0 GiB\n"
    "GPU KV cache size: 262,144 tokens\n"
    "Maximum concurrency for 40,960 tokens per request: 6.40x"
)


def _known(names: Sequence[str]) -> EngineModel | None:
    return model_named(QWEN) if QWEN in names else None


def test_each_start_is_of_the_model_that_it_names() -> None:
    """36 layers of 8 heads keep 147,456 B a token: 36 GiB hold 262,144 of them."""
    found = ask_each(TWO_MODELS.format(second=QWEN), LLAMA, _known)
    assert [item.agrees for item in found.figures] == [True] * 6
    assert found.model_name == f"{LLAMA}, {QWEN}"


def test_a_start_of_a_model_that_is_not_known() -> None:
    """It is not judged by the other start's model, and its name is told."""
    found = ask_each(TWO_MODELS.format(second="nobody/none"), LLAMA, _known)
    assert [item.agrees for item in found.figures] == [True, True, True, None, True, True]
    assert [note.params.get("name") for note in found.missing] == ["nobody/none"]
    assert found.model_name == LLAMA


def test_a_given_model_is_that_of_every_start() -> None:
    """Whoever names the model has the word: the second start's figures are not Llama's."""
    found = ask(TWO_MODELS.format(second=QWEN), LLAMA)
    assert found.model_name == LLAMA
    assert found.disagrees
