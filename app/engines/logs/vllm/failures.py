"""What would have let a vLLM start through that ran out of memory, or of blocks for its states."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.notes import Note
from app.engines.logs.numbers import gib_text
from app.engines.logs.result import Advice
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.table import least_bytes
from app.engines.vllm.versions import release

# Above so many tokens the first engine profiled small batches by itself.
CHUNKED_FROM = 32_768
_CHUNK = 512
# Up to so many tokens the activations of a profile run weigh little.
_LONG_PROFILE = 8192


def for_long_profile(case: Case) -> Iterator[Advice]:
    """Yield what keeps the first engine's profile run from working on a whole request at once.

    It did up to 32,768 tokens, where a model sees all of them (vLLM 0.6.3 engine/arg_utils.py).
    """
    batched = None if case.fit is None else case.fit.settings.get("max_num_batched_tokens")
    state = None if case.model is None else case.model.state
    if batched is not None or (state is not None and "sliding_window" in state.kinds):
        return
    for _, length, _ in case.evidence.too_long[:1]:
        if _LONG_PROFILE < length <= CHUNKED_FROM:
            yield Advice(
                change=Note(
                    "chunked_prefill",
                    "--enable-chunked-prefill --max-num-batched-tokens {tokens}",
                    {"tokens": _CHUNK},
                ),
                effect=Note(
                    "smaller_batch_profiled",
                    "the profile run then works on {tokens} tokens at once instead of {length}, and"
                    " its activations leave more for the cache; by how much only a run shows. Above"
                    " 32,768 tokens this comes on by itself since 0.6.0, so that a longer request"
                    " may start where this one does not",
                    {"tokens": _CHUNK, "length": f"{length:,}"},
                ),
            )


# Parts of a config.json by which a model takes images, videos or sound beside text.
_INPUTS = ("vision_config", "audio_config", "img_processor", "image_token_id", "image_token_index")


def for_inputs_profiled(case: Case) -> Iterator[Advice]:
    """Yield what keeps the profile run from working on the largest images that a prompt may hold.

    It is run with as many of them as are allowed (vLLM 0.33.0 multimodal/profiling.py).
    """
    if case.fit is None or case.model is None or not case.evidence.memories:
        return
    memory = case.evidence.smallest
    takes_inputs = any(case.model.config.get(name) is not None for name in _INPUTS)
    if not takes_inputs or memory is None or not 0 < memory.bytes[1] < least_bytes(case.fit.plan):
        return
    as_json = release(case.fit.plan.version).since(0, 9)
    limits = '{"image": 1, "video": 0}' if as_json else "image=1,video=0"
    yield Advice(
        change=Note("limit_inputs", "--limit-mm-per-prompt '{limits}'", {"limits": limits}),
        effect=Note(
            "inputs_profiled",
            "the profile run works on the largest images and videos that a prompt may hold: fewer,"
            " or none of a kind, leave more for the cache; by how much only a run shows",
        ),
    )


def for_state_blocks(case: Case) -> Iterator[Advice]:
    """Yield what serves so many sequences, each with a block for its state."""
    for found in case.reads.get("state_blocks", ())[:1]:
        asked, blocks = int(found.groups[0] or 0), int(found.groups[1] or 0)
        yield Advice(
            change=Note("max_num_seqs", "--max-num-seqs {blocks}", {"blocks": blocks}),
            effect=Note(
                "a_block_each",
                "the check then passes, which holds sequences against blocks: {over} of the {asked}"
                " asked for are too many",
                {"asked": asked, "over": asked - blocks},
            ),
        )
        if case.fit is not None:
            unit = max(rank.bytes_per_block for rank in case.fit.plan.ranks)
            yield Advice(
                change=Note(
                    "more_memory",
                    "{short} more for the cache on each rank (a higher"
                    " --gpu-memory-utilization, or less for weights and activations)",
                    {"short": gib_text((asked - blocks) * unit)},
                ),
                effect=Note(
                    "blocks_for_all",
                    "{asked} blocks of {unit} B, one for each sequence",
                    {"asked": asked, "unit": f"{unit:,}"},
                ),
            )


def for_nothing_left(case: Case) -> Iterator[Advice]:
    """Yield what would leave anything for the cache."""
    smallest = case.evidence.smallest
    negative = smallest is not None and smallest.printed.value <= 0
    if not negative and "nothing" not in case.reads:
        return
    deficit = -smallest.bytes[0] if smallest is not None and negative else 0
    need = 0
    if case.fit is not None:
        need = least_bytes(case.fit.plan)
    if deficit or need:
        yield Advice(
            change=Note(
                "more_memory",
                "{short} more for the cache on each rank (a higher"
                " --gpu-memory-utilization, or less for weights and activations)",
                {"short": gib_text(deficit + need)},
            ),
            effect=_covers(deficit, need),
        )
    yield Advice(
        change=Note(
            "smaller_profile",
            "a smaller --max-num-batched-tokens and --max-num-seqs,"
            " fewer CUDA graph sizes, --limit-mm-per-prompt",
        ),
        effect=Note(
            "profile_estimate",
            "the profile run's activations shrink with them; by how much only a run shows",
        ),
    )


def _covers(deficit: int, need: int) -> Note:
    sizes: dict[str, object] = {"deficit": gib_text(deficit), "need": gib_text(need)}
    if not deficit:
        return Note("covers_request", "{need} are what one request of the full length takes; how"
                    " much is short besides is in no line", sizes)  # fmt: skip
    return Note("covers_deficit", "{deficit} to have anything left, and {need} for one request of"
                " the full length", sizes)  # fmt: skip
