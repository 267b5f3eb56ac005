"""vLLM releases, and what changed in how they size and print the key-value cache.

A release is known when its arithmetic was read in its own Python files (the wheels on PyPI). Each
property names one change and the first release that has it; measured through 26 releases in
tests/data/vllm_versions.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from app.domain.errors import Unknown, WrongType, shown

KNOWN_RELEASES: tuple[str, ...] = (
    "0.6.0", "0.6.1", "0.6.1.post1", "0.6.1.post2", "0.6.2", "0.6.3", "0.6.3.post1",
    "0.6.4", "0.6.4.post1", "0.6.5", "0.6.6", "0.6.6.post1",
    "0.7.0", "0.7.1", "0.7.2", "0.7.3",
    "0.8.0", "0.8.1", "0.8.2", "0.8.3", "0.8.4", "0.8.5", "0.8.5.post1",
    "0.9.0", "0.9.0.1", "0.9.1", "0.9.2",
    "0.10.0", "0.10.1", "0.10.1.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0",
    "0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1",
    "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0",
    "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0",
    "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
NEWEST = KNOWN_RELEASES[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One vLLM release and the rules that hold in it."""

    name: str
    numbers: tuple[int, ...]

    def since(self, *numbers: int) -> bool:
        """Say whether this is release `numbers` or a later one (post releases count as theirs)."""
        return self.numbers >= numbers

    @property
    def is_v0_engine(self) -> bool:
        """The first engine was the default until 0.8.0: blocks of all layers, no groups."""
        return not self.since(0, 8)

    @property
    def has_groups(self) -> bool:
        """Layers of different kinds share a pool in groups (0.9.2; its forerunner in 0.9.1)."""
        return self.since(0, 9, 1)

    @property
    def strides_groups(self) -> bool:
        """Group i takes every g-th layer of its kind; until 0.10.2 it took a contiguous run."""
        return self.since(0, 11)

    @property
    def larger_group_ratio(self) -> Fraction | None:
        """The largest bucket sets the group size while under this multiple of the smallest.

        None where the smallest bucket always did (until 0.11).
        """
        if self.since(0, 18):
            return Fraction(3, 2)
        return Fraction(5, 4) if self.since(0, 12) else None

    @property
    def merges_uniform_types(self) -> bool:
        """Layers of one kind with different pages may form one group."""
        return self.since(0, 11)

    @property
    def unifies_pages(self) -> bool:
        """Smaller pages grow to the largest; before, different pages were an error."""
        return self.since(0, 12)

    @property
    def pads_attention_pages(self) -> bool:
        """An attention page that does not divide the largest is padded to it."""
        return self.since(0, 24)

    @property
    def pads_state_pages(self) -> bool:
        """A state smaller than the largest page is padded to it when pages are made equal."""
        return self.since(0, 26)

    @property
    def falls_back_to_full(self) -> bool:
        """A latent beside windows whose pages cannot agree becomes one group of full pages."""
        return self.since(0, 27)

    @property
    def merges_buckets(self) -> bool:
        """Buckets whose specs differ only in a recorded window are joined."""
        return self.since(0, 27)

    @property
    def packs_block_outermost(self) -> bool:
        """Block-outermost layouts pack groups of mixed pages (the form known here)."""
        return self.since(0, 29)

    @property
    def shards_context(self) -> bool:
        """Decode context parallelism divides a request's positions over ranks."""
        return self.since(0, 10, 2)

    @property
    def has_memory_bytes(self) -> bool:
        """The bytes of the cache may be set (--kv-cache-memory-bytes); before, only its blocks."""
        return self.since(0, 10, 2)

    @property
    def reserves_concurrent_batches(self) -> bool:
        """Windows reserve every batch in flight, not one."""
        return self.since(0, 26)

    @property
    def sums_group_blocks(self) -> bool:
        """A request's blocks are each group's, rounded up one by one; before, their bytes' sum."""
        return self.since(0, 27)

    @property
    def prints_concurrency_tokens(self) -> bool:
        """The tokens line is concurrency times the maximum length."""
        return self.since(0, 20, 1)

    @property
    def prints_one_line(self) -> bool:
        """Tokens and concurrency stand in one line."""
        return self.since(0, 28)

    @property
    def check_sees_groups(self) -> bool:
        """The memory check asks the groups, with their padding; before, the layers one by one."""
        return self.since(0, 14)

    @property
    def check_sees_all_groups(self) -> bool:
        """The check adds every group; 0.14 to 0.18 took the first group for all of them."""
        return self.since(0, 19)

    @property
    def check_projects_stages(self) -> bool:
        """Each pipeline stage is asked for its own layers; 0.14 to 0.16 charged all to each."""
        return self.since(0, 17)

    @property
    def check_counts_override(self) -> bool:
        """A number of blocks set by hand bounds the check too."""
        return self.since(0, 20)

    @property
    def keeps_null_block(self) -> bool:
        """The check leaves out the block that is never handed out."""
        return self.since(0, 29)

    @property
    def auto_fits(self) -> bool:
        """A maximum length of -1 (auto) is set to what fits."""
        return self.since(0, 14)

    @property
    def rounds_gib(self) -> bool:
        """GiB are printed as round(x, 2), without padding zeros; before, with two decimals."""
        return self.since(0, 14)

    @property
    def default_gpu_memory_utilization(self) -> Fraction:
        """The share of the device that the engine takes unless told."""
        return Fraction(92, 100) if self.since(0, 20) else Fraction(9, 10)

    @property
    def balances_stages_inwards(self) -> bool:
        """Spare layers go to the stages before the last; until 0.7.3 the last took them all."""
        return self.since(0, 8)

    @property
    def async_scheduling_default(self) -> bool:
        """The next step is scheduled while one runs, unless switched off."""
        return self.since(0, 14)

    @property
    def has_mamba_modes(self) -> bool:
        """State layers know the modes none, align and all (all was removed in 0.32)."""
        return self.since(0, 16)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdigit())


_RELEASES = {name: Release(name=name, numbers=_numbers(name)) for name in KNOWN_RELEASES}


def release(name: object) -> Release:
    """Return the release of that name; a leading v is allowed.

    Raises:
        WrongType: if it is not a string.
        Unknown: if it is not among KNOWN_RELEASES.

    """
    if not isinstance(name, str):
        raise WrongType("{field} must be a string, got {value}", field="version", value=shown(name))
    found = _RELEASES.get(name.removeprefix("v"))
    if found is None:
        raise Unknown(
            "{field} {value} is not a known vLLM release; known are {first} … {last}",
            field="version",
            value=shown(name),
            first=KNOWN_RELEASES[0],
            last=NEWEST,
        )
    return found
