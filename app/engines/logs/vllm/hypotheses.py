"""Settings to try where a vLLM log leaves them open, the likeliest first; what rules them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.state import CrossAttention, FullAttention, LatentAttention, ModelState
from app.engines.logs.search import Axis, by_weight
from app.engines.logs.vllm.era import Era
from app.engines.logs.vllm.evidence import Evidence
from app.engines.logs.vllm.pairs import go_together
from app.engines.model import EngineModel
from app.engines.vllm.families import MTP_FIELDS
from app.engines.vllm.model_view import view_of
from app.engines.vllm.versions import NEWEST, Release
from app.engines.vllm.versions import release as release_named

Settings = Mapping[str, object]

# Options for a setting that no line shows: values by how far they are from what most people run.
# The weights order the trials and count for nothing else.
_TENSOR = ((1, 0.0), (2, 0.5), (4, 0.7), (8, 0.8), (16, 1.4))
_FORMATS = (("auto", 0.0), ("fp8", 0.6), ("fp8_per_token_head", 1.5), ("nvfp4", 1.5))
_BATCHED = (
    (None, 0.0),
    (2048, 0.3),
    (16384, 0.35),
    (8192, 0.4),
    (4096, 0.5),
    (1024, 0.7),
    (32768, 0.8),
)
_SPECULATION = ((0, 0.0), (3, 0.5), (1, 0.55), (2, 0.6), (4, 0.6), (5, 0.8))
_DEVICES = ((None, 0.0), ("8.0", 0.3), ("10.0", 0.35), ("12.0", 0.35))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What no plan can go under: the bytes of so many tokens in the layers that keep them all.

    `layers` are (heads, elements a head) of plain layers, and (0, elements) of latent ones.
    """

    layers: tuple[tuple[int, int], ...]
    tokens: int
    most_bytes: int | None

    @classmethod
    def of(cls, model: EngineModel, evidence: Evidence) -> Bound:
        """Return the bound that a log's figures set: tokens served from at most so many bytes."""
        layers = [
            (state.kv_heads, state.k_dim + state.v_dim)
            if isinstance(state, FullAttention)
            else (0, state.latent_dim + state.rope_dim)
            for layer in (model.state.layers if model.state is not None else ())
            for state in layer.states
            if isinstance(state, FullAttention)
            or (isinstance(state, LatentAttention) and state.tokens_per_entry == 1)
        ]
        tokens, most = 0, None
        memory = evidence.smallest
        if evidence.memory_bytes is not None:
            most = evidence.memory_bytes
        elif memory is not None:
            most = memory.bytes[1]
        if evidence.concurrencies:
            _, length, printed = evidence.concurrencies[0]
            tokens = int(length * printed.low)
        elif evidence.refused:
            tokens, most = evidence.refused[0].length, evidence.refused[0].needed.bytes("GiB")[1]
        return cls(layers=tuple(layers), tokens=tokens, most_bytes=most)

    def excludes(self, settings: Settings) -> bool:
        """Say whether these ranks and this format take more than there is."""
        if self.most_bytes is None or not self.tokens:
            return False
        ranks = settings.get("tensor_parallel_size", 1)
        shards = settings.get("decode_context_parallel_size", 1)
        stages = settings.get("pipeline_parallel_size", 1)
        if not (isinstance(ranks, int) and isinstance(shards, int) and isinstance(stages, int)):
            return False
        elements = sum(
            max(heads // ranks, 1) * width if heads else width for heads, width in self.layers
        )
        share = _BYTES_AN_ELEMENT.get(str(settings.get("kv_cache_dtype", "auto")), Fraction(1, 4))
        need = elements * share * self.tokens / (max(shards, 1) * max(stages, 1))
        return need > self.most_bytes * Fraction(102, 100)


# At least so much; float32 models take more.
_BYTES_AN_ELEMENT = {
    "auto": Fraction(2),
    "bfloat16": Fraction(2),
    "float16": Fraction(2),
    "fp8": Fraction(1),
    "fp8_e4m3": Fraction(1),
    "fp8_e5m2": Fraction(1),
    "fp8_per_token_head": Fraction(1),
    "int8_per_token_head": Fraction(1),
    "nvfp4": Fraction(1, 2),
}


def what_matters(settings: Settings, model: EngineModel) -> tuple[tuple[str, object], ...]:
    """Return the settings without those that change nothing for this model in that release."""
    own = dict(settings)
    release = release_named(str(settings.get("version", NEWEST)))
    kinds = model.state.kinds if model.state is not None else frozenset()
    if "latent_attention" not in kinds and not release.since(0, 29):
        own.pop("device_capability", None)
    if not release.has_mamba_modes:
        own.pop("enable_prefix_caching", None)
    return tuple(sorted((name, str(value)) for name, value in own.items()))


def hypotheses(
    model: EngineModel,
    known: Settings,
    era: Era,
    tensor_ranks: int | None,
    evidence: Evidence,
    *,
    has_shape: bool = False,
) -> Iterator[tuple[float, dict[str, object]]]:
    """Yield settings that complete the known ones, the likeliest first.

    `has_shape` says that a line shows blocks or groups, which follow from the layers alone.
    """
    axes: list[Axis] = []
    state = model.state
    releases = _printing_alike(relevant_releases(model, era, evidence), model, evidence)
    axes.append([({"version": item.name}, 0.12 * i) for i, item in enumerate(releases)])
    if not evidence.sized and not evidence.refused and not has_shape:
        yield 0.0, axes[0][0][0]
        return
    if "tensor_parallel_size" not in known:
        least = tensor_ranks or 1
        options = [(ranks, weight) for ranks, weight in _TENSOR if ranks >= least]
        base = options[0][1] if options else 0.0
        axes.append([({"tensor_parallel_size": ranks}, weight - base) for ranks, weight in options])
    if known.get("kv_cache_dtype", "auto") == "auto":
        axes.append([({"kv_cache_dtype": name}, weight) for name, weight in _FORMATS])
    kinds = state.kinds if state is not None else frozenset()
    if "recurrent" in kinds:
        axes += _state_axes(model, known)
    elif _has_draft_layers(model) and "num_speculative_tokens" not in known:
        axes.append([({}, 0.0), ({"num_speculative_tokens": 1}, 0.9)])
    if _reserves(state) and "max_num_batched_tokens" not in known:
        axes.append(
            [
                ({} if size is None else {"max_num_batched_tokens": size}, weight)
                for size, weight in _BATCHED
            ]
        )
    windows = {"sliding_window", "chunked_attention"} & kinds
    if windows and "disable_hybrid_kv_cache_manager" not in known:
        axes.append([({}, 0.0), ({"disable_hybrid_kv_cache_manager": True}, 1.0)])
    sensitive = "recurrent" in kinds or "latent_attention" in kinds
    if sensitive and "device_capability" not in known:
        axes.append(
            [
                ({} if name is None else {"device_capability": name}, weight)
                for name, weight in _DEVICES
            ]
        )
    yield from by_weight(axes)


def _printing_alike(
    releases: tuple[Release, ...], model: EngineModel, evidence: Evidence
) -> tuple[Release, ...]:
    """Return the releases whose two lines say the same, or not, as the log's two lines do.

    With groups of several kinds only the newer form of the tokens line is the concurrency times
    the length.
    """
    kinds = model.state.kinds if model.state is not None else frozenset()
    if len(kinds - {"shared"}) < 2 or not evidence.tokens or not evidence.concurrencies:  # noqa: PLR2004
        return releases
    alike = lines_agree(evidence)
    kept = tuple(item for item in releases if item.prints_concurrency_tokens == alike)
    return kept or releases


def lines_agree(evidence: Evidence) -> bool:
    """Say whether the tokens line is the concurrency line's product, within its decimals."""
    return any(
        go_together(tokens, length, printed)
        for _, tokens in evidence.tokens
        for _, length, printed in evidence.concurrencies
    )


def _state_axes(model: EngineModel, known: Settings) -> list[Axis]:
    axes: list[Axis] = []
    if "enable_prefix_caching" not in known:
        axes.append([({}, 0.0), ({"enable_prefix_caching": True}, 0.3)])
    if "num_speculative_tokens" not in known and _has_draft_layers(model):
        axes.append(
            [
                ({"num_speculative_tokens": number} if number else {}, weight)
                for number, weight in _SPECULATION
            ]
        )
    if "block_size" not in known:
        # Backends outside CUDA begin at larger blocks (Intel's at 64, Ascend's at 128).
        axes.append([({}, 0.0), ({"block_size": 64}, 0.8), ({"block_size": 128}, 1.1)])
    if "mamba_ssm_cache_dtype" not in known:
        axes.append([({}, 0.0), ({"mamba_ssm_cache_dtype": "float16"}, 0.9)])
    return axes


def _has_draft_layers(model: EngineModel) -> bool:
    if model.state is None or not model.config:
        return False
    return bool(view_of(model.config, model.state).integer(*MTP_FIELDS))


def _reserves(state: ModelState | None) -> bool:
    """Say whether the batched tokens enter the blocks of a request."""
    if state is None:
        return False
    windows = {"sliding_window", "chunked_attention"} & state.kinds
    return bool(windows) or any(
        isinstance(part, CrossAttention)
        or (isinstance(part, LatentAttention) and part.window is not None)
        for run in state.runs
        for part in run.layer.states
    )


def relevant_releases(model: EngineModel, era: Era, evidence: Evidence) -> tuple[Release, ...]:
    """Return one release for each set of the rules that matter to this model and these figures."""
    kinds = model.state.kinds if model.state is not None else frozenset()
    chosen: dict[tuple[object, ...], Release] = {}
    for item in era.representatives():
        chosen.setdefault(_relevant_rules(item, kinds, evidence), item)
    return tuple(chosen.values())


def _relevant_rules(item: Release, kinds: frozenset[str], evidence: Evidence) -> tuple[object, ...]:
    rules: list[object] = [item.is_v0_engine, item.has_groups]
    many = len(kinds - {"shared"}) > 1
    if evidence.refused:
        rules += [
            item.keeps_null_block,
            item.check_sees_groups,
            item.check_sees_all_groups,
            item.check_projects_stages,
        ]
    if many or "sliding_window" in kinds or "recurrent" in kinds:
        rules += [
            item.prints_concurrency_tokens,
            item.larger_group_ratio,
            item.unifies_pages,
            item.pads_attention_pages,
            item.pads_state_pages,
            item.sums_group_blocks,
            item.reserves_concurrent_batches,
            item.has_mamba_modes,
            item.since(0, 28),
            item.since(0, 29),
            item.merges_uniform_types,
        ]
    if "latent_attention" in kinds:
        rules += [item.since(0, 18), item.since(0, 10), item.prints_concurrency_tokens]
    if item.shards_context and not item.prints_concurrency_tokens:
        rules.append("context")
    return tuple(rules)
