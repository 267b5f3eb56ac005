"""One model through every engine: the parts of each row add up, whatever the model is."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.dtypes import DTYPES
from app.domain.errors import DomainError, Missing, Unsupported
from app.engines.llama_cpp.settings import MAX_SEQUENCES
from app.engines.model import EngineModel
from app.engines.request_cost import GrowingPart, RequestCost
from app.engines.side_by_side import (
    Question,
    SideBySide,
    default_lengths,
    format_settings,
    side_by_side,
    slope_of,
)
from app.engines.side_by_side.slots import most_slots
from tests.engines.logs.asking import model_named

GIB = 2**30


def ask(
    model: str,
    *,
    gib: int = 40,
    context: int = 32_768,
    lengths: tuple[int, ...] = (),
    **more: object,
) -> SideBySide:
    """Return a model's rows, at three lengths unless others are given."""
    question = Question(
        model=model_named(model), available_bytes=gib * GIB, context_tokens=context,
        lengths=lengths or (1_024, context // 2, context), **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return side_by_side(question, {})


@pytest.mark.parametrize(
    "model",
    [
        "meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "openai/gpt-oss-20b",
        "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct", "zai-org/GLM-4.5",
    ],
)  # fmt: skip
def test_parts_add_up(model: str) -> None:
    """Need and what is spent beyond it are the request; the still part and the slope nearly are."""
    found = ask(model)
    assert [row.engine for row in found.rows] == [
        "vllm", "llama_cpp", "sglang", "tensorrt_llm", "transformers",
    ]  # fmt: skip
    for row in found.rows:
        assert row.refusal is None
        assert row.request_bytes is not None
        assert row.need_bytes is not None
        assert row.need_bytes + sum(part.bytes for part in row.excess) == row.request_bytes
        assert row.still_bytes is not None
        assert row.slope is not None
        rest = row.request_bytes - row.still_bytes - row.slope * found.context_tokens
        # What is left is the unused end of a last block, of at most some thousand tokens.
        assert 0 <= rest <= row.slope * 4_096
        assert [length for length, _ in row.lengths] == [1_024, 16_384, 32_768]
        sizes = [size for _, size in row.lengths]
        assert None not in sizes
        assert sizes == sorted(size for size in sizes if size is not None)


@pytest.mark.parametrize("context", [300, 1_024, 8_192, 131_072])
@pytest.mark.parametrize(
    "model",
    [
        "meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "openai/gpt-oss-20b",
        "mistralai/Mistral-7B-v0.1", "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
    ],
)  # fmt: skip
def test_the_fixed_part_and_the_slope_hold_from_the_length_that_is_stated(
    model: str, context: int
) -> None:
    """From there to the longest request they are its bytes, but for a begun block; below not."""
    stated = {row.engine: row.holds_from_tokens for row in ask(model, context=context).rows}
    since = {engine: length for engine, length in stated.items() if length is not None}
    assert len(since) == 5
    tried = sorted(
        {
            tokens
            for length in since.values()
            for tokens in (length - 64, length, length + 1, (length + context) // 2, context)
            if 1 <= tokens <= context
        }
    )
    for row in ask(model, context=context, lengths=tuple(tried)).rows:
        assert row.still_bytes is not None
        assert row.slope is not None
        sizes = dict(row.lengths)
        for tokens in tried:
            size = sizes[tokens]
            assert size is not None
            rest = size - row.still_bytes - row.slope * tokens
            if tokens >= since[row.engine]:
                assert 0 <= rest <= row.slope * 4_096, (row.engine, tokens)
            elif tokens == since[row.engine] - 64:
                assert rest < 0, (row.engine, tokens)


def test_where_windows_are_full() -> None:
    """Gemma 3's windows of 1,024: vLLM keeps 2 × 8,192 in flight, llama.cpp 512 cells more."""
    since = {
        row.engine: row.holds_from_tokens
        for row in ask("google/gemma-3-27b-it", context=131_072).rows
    }
    assert since == {
        "vllm": 17_407, "llama_cpp": 1_281, "sglang": 1_024, "tensorrt_llm": 1,
        "transformers": 1_023,
    }  # fmt: skip


@pytest.mark.parametrize("gib", [1, 40])
@pytest.mark.parametrize(
    "model",
    [
        "meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "mistralai/Mistral-7B-v0.1",
        "meta-llama/Llama-3.1-405B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "openai/gpt-oss-20b",
    ],
)  # fmt: skip
def test_tokens_held_mean_the_same_in_every_row(model: str, gib: int) -> None:
    """They are what the whole memory holds of requests of the length asked for."""
    found = ask(model, gib=gib, context=131_072)
    assert len(found.rows) == 5
    for row in found.rows:
        if row.tokens is None:
            assert row.concurrency is None
            assert row.stopped is not None
            continue
        assert row.concurrency is not None
        assert row.tokens == int(row.concurrency * 131_072)
        assert row.tokens < 2**30


def remarks(found: SideBySide) -> dict[str, dict[str, str]]:
    """Return what is remarked, by engine and code."""
    return {row.engine: {note.code: note.text for note in row.remarks} for row in found.rows}


def test_what_an_engine_counts_itself_is_said_in_its_words() -> None:
    """Whole contexts and runs, pools of windows; what bounds nothing is no figure."""
    gemma = remarks(ask("google/gemma-3-27b-it", context=131_072))
    assert gemma["vllm"] == {}
    assert "n_ctx could be up to 516096" in gemma["llama_cpp"]["one_context"]
    assert "a pool of 81284 tokens" in gemma["sglang"]["own_window_pool"]
    assert "whole runs only" in gemma["transformers"]["whole_runs"]
    mistral = remarks(ask("mistralai/Mistral-7B-v0.1"))
    assert list(mistral["llama_cpp"]) == ["any_context"]
    small = remarks(ask("Qwen/Qwen3-0.6B", gib=1_000, context=128))
    assert "256 slots" in small["llama_cpp"]["most_slots"]
    large = remarks(ask("meta-llama/Llama-3.1-405B", context=131_072))
    assert "the longest that fits has 83220 tokens" in large["transformers"]["whole_runs_to"]


def test_what_an_older_release_prints_is_said_where_it_counts_otherwise() -> None:
    """Release 0.11.0 prints blocks of all groups as tokens: of 11 groups, less than it holds."""
    question = Question(
        model=model_named("google/gemma-3-27b-it"), available_bytes=40 * GIB,
        context_tokens=131_072, lengths=(1_024,),
    )  # fmt: skip
    found = side_by_side(question, {"vllm": {"version": "0.11.0"}})
    row = found.rows[0]
    assert row.version == "0.11.0"
    assert row.concurrency is not None
    assert row.tokens == int(row.concurrency * 131_072)
    assert "it prints" in remarks(found)["vllm"]["prints_tokens"]
    assert "versions_chosen" in {note.code for note in found.notes}


def test_ranks_go_to_the_engines_that_have_them() -> None:
    """16 ranks keep one head each, in vLLM of every second token; the others say what they lack."""
    ranks = {"tensor_parallel": 16, "decode_context_parallel": 2}
    found = ask("meta-llama/Llama-3.1-8B", ranks=ranks)
    slopes = {row.engine: row.slope for row in found.rows}
    assert slopes == {
        "vllm": 8_192, "llama_cpp": 131_072, "sglang": 16_384, "tensorrt_llm": 16_384,
        "transformers": 131_072,
    }  # fmt: skip
    said = remarks(found)
    assert "tensor_parallel, decode_context_parallel" in said["llama_cpp"]["ranks_not_taken"]
    assert "tensor_parallel" in said["transformers"]["ranks_not_taken"]
    assert "decode_context_parallel" in said["sglang"]["ranks_not_taken"]
    assert "tensor_parallel" not in said["sglang"]["ranks_not_taken"]
    assert {row.engine for row in found.rows if row.need_bytes is None} == {
        "sglang", "tensorrt_llm",
    }  # fmt: skip
    assert "each_rank" in {note.code for note in found.notes}


def test_copies_of_a_server_are_said() -> None:
    """Data parallel ranks of SGLang are whole servers: the row is that of one."""
    plain = ask("meta-llama/Llama-3.1-8B")
    copied = ask("meta-llama/Llama-3.1-8B", ranks={"data_parallel": 4})
    assert remarks(plain)["sglang"] == {}
    assert list(remarks(copied)["sglang"]) == ["copies_of_server"]
    for one, other in zip(plain.rows, copied.rows, strict=True):
        assert one.tokens == other.tokens


def test_more_memory_holds_no_less() -> None:
    """Twice the budget holds at least twice the requests, less one that is cut off."""
    small, large = ask("google/gemma-3-27b-it", gib=20), ask("google/gemma-3-27b-it", gib=40)
    for one, two in zip(small.rows, large.rows, strict=True):
        assert one.concurrency is not None
        assert two.concurrency is not None
        assert two.concurrency >= 2 * int(one.concurrency)
        assert one.request_bytes == two.request_bytes


@given(st.integers(1, 2_000), st.integers(1, 200_000))
@settings(max_examples=12)
def test_rows_are_consistent_for_any_budget(mib: int, context: int) -> None:
    """Tokens are never more than the budget holds, at any budget and length."""
    question = Question(
        model=model_named("meta-llama/Llama-3.1-8B"), available_bytes=mib * 2**20,
        context_tokens=min(context, 131_072), lengths=(1,),
    )  # fmt: skip
    for row in side_by_side(question, {}).rows:
        if row.tokens is not None:
            assert row.tokens * 131_072 <= mib * 2**20


def test_a_length_beyond_the_longest_has_no_figure() -> None:
    """Beyond the longest request an engine takes nothing in, and the row says nothing."""
    question = Question(
        model=model_named("meta-llama/Llama-3.1-8B"), available_bytes=40 * GIB,
        context_tokens=4_096, lengths=(4_096, 8_192),
    )  # fmt: skip
    for row in side_by_side(question, {}).rows:
        assert dict(row.lengths)[8_192] is None


def test_a_model_of_unknown_layers() -> None:
    """Without layers there is nothing to compare."""
    question = Question(model=EngineModel(), available_bytes=GIB, context_tokens=1, lengths=(1,))
    with pytest.raises(Missing):
        side_by_side(question, {})


def test_a_setting_that_somebody_typed() -> None:
    """A setting that an engine does not have is a mistake, named with the engine."""
    question = Question(
        model=model_named("meta-llama/Llama-3.1-8B"), available_bytes=GIB, context_tokens=128,
        lengths=(1,),
    )  # fmt: skip
    with pytest.raises(DomainError) as refused:
        side_by_side(question, {"sglang": {"nope": 1}})
    assert refused.value.field == ("settings", "sglang", "nope")


CONTRADICTIONS: list[tuple[str, dict[str, object], str, str]] = [
    ("vllm", {"max_model_len": 100}, "max_model_len", "100 contradicts context_tokens 8192"),
    ("vllm", {"max_model_len": "auto"}, "max_model_len", "'auto' contradicts context_tokens 8192"),
    ("vllm", {"kv_cache_dtype": "fp8"}, "kv_cache_dtype", "'fp8' contradicts kv_dtype bf16"),
    ("vllm", {"kv_cache_memory_bytes": 1}, "kv_cache_memory_bytes", "contradicts available_bytes"),
    ("vllm", {"tp": 4}, "tensor_parallel_size", "4 contradicts tensor_parallel 2"),
    ("llama_cpp", {"n_ctx": 1}, "n_ctx", "1 contradicts context_tokens 8192"),
    ("llama_cpp", {"ctx_size": 1}, "n_ctx", "1 contradicts context_tokens 8192"),
    ("llama_cpp", {"type_v": "q8_0"}, "cache_type_v", "'q8_0' contradicts kv_dtype bf16"),
    ("llama_cpp", {"n_parallel": 4}, "n_seq_max", "is chosen here"),
    ("sglang", {"context_length": 4096}, "context_length", "4096 contradicts context_tokens"),
    ("sglang", {"free_after_load_gib": 9}, "free_after_load_gib", "contradicts available_bytes"),
    ("tensorrt_llm", {"max_seq_len": 8193}, "max_seq_len", "8193 contradicts context_tokens"),
    ("tensorrt_llm", {"kv_cache_dtype": "int8"}, "kv_cache_dtype", "contradicts kv_dtype bf16"),
    ("transformers", {"dtype": "fp32"}, "dtype", "'fp32' contradicts kv_dtype bf16"),
    ("transformers", {"prompt_tokens": 8192}, "prompt_tokens", "is chosen here"),
    ("sglang", {"tp": 2, "tp_size": 2}, "tp_size", "given twice"),
    ("sglang", {"tp": 2, "tensor_parallel_size": 2}, "tp_size", "given twice"),
]


def asked_twice(more: dict[str, dict[str, object]]) -> SideBySide:
    """Ask for 8,192 tokens in bf16 over two tensor ranks, and for more by engine."""
    question = Question(
        model=model_named("meta-llama/Llama-3.1-8B"), available_bytes=40 * GIB,
        context_tokens=8192, lengths=(8192,), key=DTYPES["bf16"], ranks={"tensor_parallel": 2},
    )  # fmt: skip
    return side_by_side(question, more)


@pytest.mark.parametrize(("engine", "more", "name", "said"), CONTRADICTIONS)
def test_a_setting_that_contradicts_the_question_is_refused(
    engine: str, more: dict[str, object], name: str, said: str
) -> None:
    """All engines answer one question: a setting that asks another names both fields."""
    with pytest.raises(DomainError, match=said) as refused:
        asked_twice({engine: more})
    assert refused.value.field == ("settings", engine, name)


def test_a_setting_that_repeats_the_question_changes_nothing() -> None:
    """The same length, format or ranks may be said again."""
    again: dict[str, dict[str, object]] = {
        "vllm": {"max_model_len": 8192, "kv_cache_dtype": "bfloat16", "tensor_parallel_size": 2},
        "llama_cpp": {"n_ctx": 8192, "cache_type_k": "bf16"},
        "sglang": {"context_length": 8192, "tp": 2},
        "tensorrt_llm": {"max_seq_len": 8192},
        "transformers": {"dtype": "bfloat16"},
    }
    assert asked_twice(again).rows == asked_twice({}).rows


def test_a_null_leaves_the_question_as_it_is() -> None:
    """A setting of null is one that is not given: it takes no format, ranks or version away."""
    nulls: dict[str, dict[str, object]] = {
        "vllm": {"kv_cache_dtype": None, "tensor_parallel_size": None, "version": None},
        "llama_cpp": {"cache_type_k": None},
        "sglang": {"kv_cache_dtype": None, "tp_size": None, "dp_size": None},
        "tensorrt_llm": {"kv_cache_dtype": None, "tp_size": None},
        "transformers": {"dtype": None},
    }
    found, plain = asked_twice(nulls), asked_twice({})
    assert found.rows == plain.rows
    assert found.notes == plain.notes


def test_a_format_of_one_engine_is_no_contradiction_where_none_is_asked_for() -> None:
    """Left out, the format is each engine's own, and may be set for one of them."""
    question = Question(
        model=model_named("meta-llama/Llama-3.1-8B"), available_bytes=40 * GIB,
        context_tokens=8192, lengths=(8192,),
    )  # fmt: skip
    found = side_by_side(question, {"vllm": {"kv_cache_dtype": "fp8"}})
    assert found.rows[0].request_bytes == 8192 * 65_536
    assert found.rows[0].need_bytes == 8192 * 131_072


def test_a_format_of_its_own_for_values() -> None:
    """Only llama.cpp keeps keys and values in two formats."""
    found = ask("meta-llama/Llama-3.1-8B", key=DTYPES["fp16"], value=DTYPES["bf16"])
    refused = {row.engine for row in found.rows if row.refusal is not None}
    assert refused >= {"vllm", "sglang", "tensorrt_llm"}
    assert "llama_cpp" not in refused


@pytest.mark.parametrize(
    ("engine", "key", "value", "expected"),
    [
        ("vllm", "bf16", None, {"kv_cache_dtype": "bfloat16"}),
        ("vllm", "fp8", "fp8", {"kv_cache_dtype": "fp8"}),
        ("sglang", "fp8", None, {"kv_cache_dtype": "fp8_e4m3"}),
        ("tensorrt_llm", "nvfp4", None, {"kv_cache_dtype": "nvfp4"}),
        ("llama_cpp", "q8_0", "q4_0", {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        ("llama_cpp", "fp16", None, {"cache_type_k": "f16", "cache_type_v": "f16"}),
    ],
)
def test_formats_by_their_own_names(
    engine: str, key: str, value: str | None, expected: dict[str, object]
) -> None:
    """Each engine names a format in its own words."""
    found = format_settings(engine, DTYPES[key], None if value is None else DTYPES[value])
    assert found == expected


def test_formats_that_are_not_there() -> None:
    """A format that an engine lacks is refused; none at all is its own default."""
    with pytest.raises(Unsupported):
        format_settings("vllm", DTYPES["q8_0"], None)
    with pytest.raises(Unsupported):
        format_settings("llama_cpp", DTYPES["fp16"], DTYPES["fp8"])
    assert format_settings("sglang", None, None) == {}


def test_the_slope_leaves_out_what_stops_growing() -> None:
    """Only parts without an end count towards the slope, also where many tokens make one entry."""
    cost = RequestCost(
        parts=(
            GrowingPart(name="a", bytes_per_entry=100, tokens_per_entry=1),
            GrowingPart(name="b", bytes_per_entry=100, tokens_per_entry=1, most_entries=7),
            GrowingPart(name="c", bytes_per_entry=10, tokens_per_entry=4),
        ),
        fixed_bytes=0,
    )
    assert slope_of(cost) == Fraction(205, 2)


@pytest.mark.parametrize(
    ("context", "lengths"),
    [(131_072, [1_024, 8_192, 131_072]), (1_024, [64, 1_024]), (1, [1])],
)
def test_three_lengths_to_compare_at(context: int, lengths: list[int]) -> None:
    """A short one, a sixteenth and the longest, each once."""
    assert list(default_lengths(context)) == lengths


@pytest.mark.parametrize(
    ("sizes", "available", "slots"),
    [
        (lambda slots: 100 * slots, 99, 0),
        (lambda slots: 100 * slots, 1_000, 10),
        (lambda slots: 100 * slots, 10**9, MAX_SEQUENCES),
        (lambda slots: 100 + max(slots - 3, 0) * 50, 400, 9),
        (lambda slots: 100 * slots + (slots > 4) * 1_000, 1_000, 4),
        (lambda _slots: 100, 100, MAX_SEQUENCES),
    ],
    ids=["none", "even", "all", "later", "step", "flat"],
)
def test_the_most_slots(sizes: Callable[[int], int], available: int, slots: int) -> None:
    """The most slots that fit are found at once where each takes the same, and else by search."""
    assert most_slots(sizes, available) == slots
