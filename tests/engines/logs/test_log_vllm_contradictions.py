"""Lines of vLLM that cannot all be right, and values that no rule knows: nothing agrees by itself.

A block of Llama 3.1 8B is 2 MiB on one rank; of Llama 3.1 70B, 655,360 B on each of eight, so that
1,048,576 tokens take 40 GiB there.
"""

from __future__ import annotations

import pytest

from app.domain.errors import Conflict, DomainError
from tests.engines.logs.asking import ask, figure_of, reasons, remarks, verdicts

LLAMA = "meta-llama/Llama-3.1-8B"
LARGE = "meta-llama/Llama-3.1-70B"
AT_ONCE = "Maximum concurrency for 131,072 tokens per request:"
START = (
    "Available KV cache memory: 40.0 GiB\nGPU KV cache size: 327,680 tokens\n"
    "Maximum concurrency for 131,072 tokens per request: 2.50x"
)


def _ranks(sizes: list[str]) -> str:
    return "\n".join(
        f"(Worker_TP{rank} pid=1) Available KV cache memory: {size} GiB"
        for rank, size in enumerate(sizes)
    )


@pytest.mark.parametrize(
    ("tokens", "times", "computed"),
    [
        ("291,264", "2.22", "2.22 × 131,072 = 290,979"),
        ("163,840", "1.25", "1.25 × 131,072 = 163,84"),
    ],
)
def test_each_tokens_line_has_its_own_concurrency(tokens: str, times: str, computed: str) -> None:
    """Of two starts without a model, each pair of lines is held together, and no other."""
    found = ask(f"GPU KV cache size: {tokens} tokens\n{AT_ONCE} {times}x\n{START}")
    first, second = (item for item in found.figures if item.name == "kv_cache_tokens")
    assert (first.computed or "").startswith(computed)
    assert second.computed == "2.50 × 131,072 = 327,680 tokens"
    assert all(item.agrees for item in found.figures if item.name != "available_memory")


def test_a_tokens_line_does_not_go_with_the_next_start() -> None:
    """291,264 tokens are not 2.50 requests of 131,072, which the line after the next one is of."""
    found = ask(f"GPU KV cache size: 291,264 tokens\n{START}")
    first = figure_of(found, "kv_cache_tokens")
    assert (first.agrees, first.computed) == (None, None)


def test_no_pool_is_cut_from_nothing() -> None:
    """A negative memory holds no block: a tokens line beside it is wrong, or of another start."""
    found = ask("Available KV cache memory: -3.2 GiB\nGPU KV cache size: 327,680 tokens", LLAMA)
    assert verdicts(found) == {"available_memory": None, "kv_cache_tokens": False}
    assert reasons(found, "kv_cache_tokens") == {"no_room"}


def test_a_start_after_one_that_had_nothing_left() -> None:
    """The next start is judged by its own memory, and agrees."""
    found = ask(f"Available KV cache memory: -3.2 GiB\n{START}", LLAMA)
    assert [item.agrees for item in found.figures] == [None, True, True, True]
    assert "several_starts" in remarks(found)


def test_another_memory_after_a_pool_is_another_start() -> None:
    """40 GiB and then 20 of the same length: two pools, each with its own blocks."""
    found = ask(
        f"{START}\nAvailable KV cache memory: 20.0 GiB\nGPU KV cache size: 163,840 tokens\n"
        f"{AT_ONCE} 1.25x", LLAMA,
    )  # fmt: skip
    assert [item.agrees for item in found.figures] == [True] * 6
    memories = [item.computed for item in found.figures if item.name == "available_memory"]
    assert memories == ["40.00 GiB = 20,480 × 2,097,152 B", "20.00 GiB = 10,240 × 2,097,152 B"]


def test_every_rank_in_the_log_leaves_none_to_assume() -> None:
    """Eight ranks print 12 to 46 GiB: no other is smaller, and no format is made up for 40 GiB."""
    sizes = ["40.00", "41.00", "42.00", "43.00", "44.00", "45.00", "46.00", "12.00"]
    found = ask(f"{_ranks(sizes)}\nGPU KV cache size: 1,048,576 tokens", LARGE)
    assert found.settings["kv_cache_dtype"] == "auto"
    assert verdicts(found)["kv_cache_tokens"] is False
    assert {item.agrees for item in found.figures if item.name == "available_memory"} == {None}
    assert reasons(found, "available_memory") == {"measured", "other_pool"}


def test_memory_far_above_the_pool_is_not_explained() -> None:
    """30.00 GiB hold the pool of 20.00 and leave a third: no more than a fifth was measured."""
    ranks = _ranks(["20.00", "24.00", "30.00", "21.00"])
    found = ask(f"{ranks}\nGPU KV cache size: 655,360 tokens", LLAMA, tensor_parallel_size=4)
    memories = [item for item in found.figures if item.name == "available_memory"]
    assert [item.agrees for item in memories] == [True, True, None, True]
    assert {note.code for note in memories[2].reasons} == {"spare_unexplained"}


def test_memory_is_not_borne_out_by_itself() -> None:
    """40.00 GiB beside a pool of 24.00 on eight ranks: nothing agrees with either."""
    found = ask("Available KV cache memory: 40.00 GiB\nGPU KV cache size: 629,152 tokens", LARGE,
                tensor_parallel_size=8)  # fmt: skip
    assert verdicts(found) == {"available_memory": None, "kv_cache_tokens": False}


@pytest.mark.parametrize(
    "line",
    ["non-default args: {'kv_cache_dtype': 'fp3_magic'}",
     "Using fp3_magic data type to store kv cache"],
)  # fmt: skip
def test_a_format_that_nobody_knows_is_named(line: str) -> None:
    """What depends on it is not checked, and no other settings are made up for it."""
    found = ask(f"{line}\n{START.replace('40.0', '20.0')}", LLAMA)
    assert [note.params.get("value") for note in found.missing] == ["fp3_magic"]
    assert found.inferred == {}
    assert figure_of(found, "available_memory").agrees is None


def test_without_a_model_both_it_and_the_value_are_missing() -> None:
    """Naming the value alone would leave its reader to find out that a model is wanted, too."""
    found = ask(f"non-default args: {{'kv_cache_dtype': 'fp3_magic'}}\n{START}")
    assert [note.code for note in found.missing] == ["no_model", "unknown_value"]


def test_a_given_format_goes_before_one_that_nobody_knows() -> None:
    """The request's word stands, and everything is checked with it."""
    found = ask(f"non-default args: {{'kv_cache_dtype': 'fp3_magic'}}\n{START}", LLAMA,
                kv_cache_dtype="auto")  # fmt: skip
    assert [item.agrees for item in found.figures] == [True] * 3
    assert found.missing == ()


def test_pytorch_names_a_format_too() -> None:
    """torch.float8_e4m3fn is fp8_e4m3: half the bytes, twice the tokens."""
    found = ask(
        "non-default args: {'kv_cache_dtype': 'torch.float8_e4m3fn'}\n"
        "Available KV cache memory: 40.0 GiB\nGPU KV cache size: 655,360 tokens", LLAMA,
    )  # fmt: skip
    assert found.settings["kv_cache_dtype"] == "fp8_e4m3"
    assert verdicts(found) == {"available_memory": True, "kv_cache_tokens": True}


def test_a_release_before_all_that_are_known() -> None:
    """0.2.1 is older than the rules taken, and printed no lines of this form."""
    found = ask(f"vLLM API server version 0.2.1\n{START}", LLAMA)
    assert "release_before" in {note.code for note in found.assumptions}
    (note,) = [note for note in found.remarks if note.code == "forms_of_others"]
    assert note.params == {"forms": "0.14.0–0.27.1", "said": "0.2.1"}


def test_a_release_after_all_that_are_known() -> None:
    """The newest rules known before it are taken, and said to be."""
    found = ask(f"vLLM API server version 0.34.0\n{START}", LLAMA)
    assert "release_between" in {note.code for note in found.assumptions}


def test_more_memory_than_the_share_leaves() -> None:
    """21.6 less 15.0, 1.0 and 0.1 leave 5.50 GiB for the cache, not 40: 34.50 beyond."""
    found = ask(
        f"{START}\nDesired GPU memory utilization is (0.9, 21.6 GiB). Actual usage is 15.0 GiB for"
        " weight, 1.0 GiB for peak activation, 0.1 GiB for non-torch memory, and 0.5 GiB for"
        " CUDAGraph memory.", LLAMA,
    )  # fmt: skip
    item = figure_of(found, "budget")
    assert (item.agrees, item.computed, item.difference) == (False, "5.50 GiB", "34.50 GiB")


@pytest.mark.parametrize(("size", "agrees"), [("5.5", True), ("5.0", None)])
def test_what_the_share_leaves(size: str, agrees: bool | None) -> None:  # noqa: FBT001 - a table's cell
    """5.50 GiB are left; less where a term is not printed, which shows nothing."""
    found = ask(
        f"Available KV cache memory: {size} GiB\nDesired GPU memory utilization is (0.9, 21.6 GiB)."
        " Actual usage is 15.0 GiB for weight, 1.0 GiB for peak activation, 0.1 GiB for non-torch"
        " memory, and 0.5 GiB for CUDAGraph memory.", LLAMA,
    )  # fmt: skip
    assert verdicts(found).get("budget") is agrees


@pytest.mark.parametrize(("share", "agrees"), [("71.19", True), ("50.00", False)])
def test_the_share_is_the_product(share: str, agrees: bool) -> None:  # noqa: FBT001 - a table's cell
    """79.10 × 0.90 = 71.19 GiB, whatever else is in the line."""
    found = ask(
        "the current vLLM instance can use total_gpu_memory (79.10GiB) x gpu_memory_utilization"
        f" (0.90) = {share}GiB", LLAMA,
    )  # fmt: skip
    assert verdicts(found)["device_share"] is agrees


@pytest.mark.parametrize("where", ["given", "log"])
def test_swap_space_is_as_it_is_said(where: str) -> None:
    """8 GiB over blocks of 2 MiB are 4,096 of the host."""
    line = "# GPU blocks: 20480, # CPU blocks: 4096"
    if where == "given":
        found = ask(line, LLAMA, swap_space=8)
    else:
        found = ask(f"non-default args: {{'swap_space': 8.0}}\n{line}", LLAMA)
    item = figure_of(found, "cpu_blocks")
    assert (item.agrees, item.computed) == (True, "4,096 blocks")
    assert "8 GiB of swap space" in item.reasons[0].text


@pytest.mark.parametrize(
    "settings",
    [{"foo": 1}, {"gpu_memory_utilization": 1.5}, {"max_model_len": {"a": 1}},
     {"version": "9.9.9"}, {"version": 0.33}, {"version": 5}],
)  # fmt: skip
@pytest.mark.parametrize("model", [None, LLAMA])
def test_settings_are_checked_with_and_without_a_model(
    settings: dict[str, object], model: str | None
) -> None:
    """A name, a type or a value that no release takes is refused, whatever can be planned."""
    with pytest.raises(DomainError) as error:
        ask(START, model, **settings)
    assert error.value.field == (next(iter(settings)),)


def test_settings_that_contradict_each_other_without_a_model() -> None:
    """3 does not divide 4 in any release; the mode all is one of some."""
    with pytest.raises(Conflict):
        ask(START, tensor_parallel_size=4, decode_context_parallel_size=3)
    assert ask(START, mamba_cache_mode="all", decode_context_parallel_size=2).figures


BY_HAND = (
    "Overriding num_gpu_blocks={profiled} with num_gpu_blocks_override=512\n"
    "Available KV cache memory: 40.0 GiB\nGPU KV cache size: 8,192 tokens\n"
    "Maximum concurrency for 131,072 tokens per request: 0.06x"
)


def test_blocks_that_are_set_by_hand() -> None:
    """512 blocks hold 8,192 tokens; the memory is held against the 20,480 that it gave before."""
    found = ask(BY_HAND.format(profiled=20_480), LLAMA)
    assert [item.agrees for item in found.figures] == [True] * 3
    assert reasons(found, "available_memory") == {"blocks_by_hand", "profiled_blocks"}


def test_blocks_that_the_memory_did_not_give() -> None:
    """40 GiB are not 10,000 blocks of 2 MiB; nothing else depends on that."""
    found = ask(BY_HAND.format(profiled=10_000), LLAMA)
    assert verdicts(found) == {
        "available_memory": False, "kv_cache_tokens": True, "max_concurrency": True,
    }  # fmt: skip


@pytest.mark.parametrize(("blocks", "agrees"), [(512, True), (20_480, False)])
def test_the_first_engines_blocks_set_by_hand(blocks: int, agrees: bool) -> None:  # noqa: FBT001 - a table's cell
    """The blocks are those that were set; no memory says otherwise."""
    found = ask(
        f"Available KV cache memory: 40.00 GiB\n# CUDA blocks: {blocks}, # CPU blocks: 2048", LLAMA,
        num_gpu_blocks_override=512, version="0.7.3",
    )  # fmt: skip
    assert verdicts(found) == {
        "available_memory": None, "gpu_blocks": agrees, "cpu_blocks": True,
    }  # fmt: skip


def test_engines_of_data_parallelism_are_one_start() -> None:
    """Their prefixes name replicas: each prints its own memory, and none is a second start."""
    found = ask(
        "(EngineCore_DP0 pid=1) Available KV cache memory: 40.0 GiB\n"
        "(EngineCore_DP0 pid=1) GPU KV cache size: 327,680 tokens\n"
        "(EngineCore_DP1 pid=2) Available KV cache memory: 41.0 GiB\n"
        "(EngineCore_DP1 pid=2) GPU KV cache size: 335,872 tokens", LLAMA,
    )  # fmt: skip
    assert "several_starts" not in remarks(found)
    assert [item.agrees for item in found.figures] == [True] * 4


# A rank that no line is of, under ranks that no line names

WHISPER = (
    "Available KV cache memory: 16.9 GiB\nGPU KV cache size: 19,881 tokens\n"
    "Maximum concurrency for 448 tokens per request: 44.38x"
)


def test_another_model_is_not_made_to_fit() -> None:
    """Turbo has 4 decoder layers, the model of the log 32: no second rank and batch explain it."""
    found = ask(WHISPER, "openai/whisper-large-v3-turbo")
    assert figure_of(found, "kv_cache_tokens").agrees is not True
    assert figure_of(found, "max_concurrency").agrees is not True
    assert "tensor_parallel_size=2" not in str(found.inferred)
    assert figure_of(ask(WHISPER, "openai/whisper-large-v3"), "max_concurrency").agrees


def test_ranks_that_are_known_may_differ_more() -> None:
    """58,000 tokens are 3.54 GiB on each of two ranks, 11 % below 4.00: too far to be made up."""
    log = "Available KV cache memory: 4.00 GiB\nGPU KV cache size: 58,000 tokens"
    assert figure_of(ask(log, LLAMA), "kv_cache_tokens").agrees is False
    assert figure_of(ask(log, LLAMA, tensor_parallel_size=2), "kv_cache_tokens").agrees
    shown = ask(f"(Worker_TP1 pid=1) {log}", LLAMA)
    assert figure_of(shown, "kv_cache_tokens").agrees


def test_made_up_ranks_may_differ_by_little() -> None:
    """64,000 tokens are 3.91 GiB on each of two ranks, 2.3 % below 4.00."""
    found = ask("Available KV cache memory: 4.00 GiB\nGPU KV cache size: 64,000 tokens", LLAMA)
    assert figure_of(found, "kv_cache_tokens").agrees
    assert "smallest_rank_unseen" in reasons(found, "available_memory")
