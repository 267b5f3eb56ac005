"""Requests of `/fit`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StrictStr

from app.api import schemas as s
from app.api.parallel_schemas import Parallelism
from app.domain.assumed_lines import MAX_SEQUENCES
from app.domain.capacity import MAX_BYTES, MAX_CONCURRENCY
from app.domain.state import MAX_TOKENS

DEFAULT_UTILISATION = 0.92

Amount = Annotated[StrictInt, Field(ge=0, le=MAX_BYTES)]
Tokens = Annotated[StrictInt, Field(ge=1, le=MAX_TOKENS)]
Concurrency = Annotated[StrictInt, Field(ge=1, le=MAX_CONCURRENCY)]
DeviceId = Annotated[StrictStr, Field(min_length=1, max_length=100)]
SignedAmount = Annotated[StrictInt, Field(ge=-MAX_BYTES, le=MAX_BYTES)]
MAX_BANDWIDTH = 10**15


class Measured(s.Strict):
    """Figures of a log, each in place of the line that would be computed or assumed."""

    state: SignedAmount | None = Field(
        default=None,
        description="For the state on each rank: 'Available KV cache memory'. Below 0, as engines "
        "print it, so much is lacking before any state.",
    )
    weights: Amount | None = Field(default=None, description="On each rank.")
    activations: Amount | None = None
    framework: Amount | None = None
    communication: Amount | None = None
    cuda_graphs: Amount | None = None


class Tier(s.Strict):
    """Memory beyond the device: the host's, a disk, another server."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=40)] = Field(examples=["host"])
    capacity_bytes: Amount
    bandwidth_bytes_per_s: Annotated[StrictInt, Field(ge=1, le=MAX_BANDWIDTH)]
    shared: StrictBool = Field(default=False, description="One for all workers, not one for each.")


class Transfer(s.Strict):
    """A prefix moved from a server that computes it to one that goes on from it."""

    bandwidth_bytes_per_s: Annotated[StrictInt, Field(ge=1, le=MAX_BANDWIDTH)]
    tokens: Tokens | None = Field(default=None, description="Left out, the context length.")
    shared: StrictBool = Field(
        default=False, description="One link for all ranks, not one for each."
    )


class FitRequest(Parallelism):
    """What fits on devices: a load, or the inverse questions about it."""

    device: DeviceId | None = Field(default=None, description="An id of GET /devices.")
    memory_bytes: Amount | None = Field(default=None, description="Of one device, in its place.")
    count: Annotated[StrictInt, Field(ge=1, le=2**20)] | None = Field(
        default=None, description="Devices at hand; left out, as many as there are ranks."
    )
    utilisation: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    engine: Literal["none", "vllm"] = Field(
        default="none", description="vllm counts its own blocks, windows' reserve and null block."
    )
    engine_version: Annotated[StrictStr, Field(max_length=40)] | None = Field(
        default=None, description="A release such as 0.20.1; left out, the newest known."
    )
    context_tokens: Tokens | None = None
    concurrency: Concurrency | None = None
    lengths: s.LengthsInput | None = Field(
        default=None, description="Drawn at random: how many fit so that memory rarely runs out."
    )
    percentile: Annotated[float, Field(strict=True, ge=50, le=100)] = 99
    block_size: s.BlockSize | None = Field(
        default=None, description="Left out: 16, or what the engine chooses."
    )
    batch_tokens: Tokens = Field(default=8192, description="Most tokens computed at once.")
    max_sequences: Annotated[StrictInt, Field(ge=1, le=MAX_SEQUENCES)] = 256
    cuda_graphs: StrictBool = True
    reserve_bytes: Amount = Field(default=0, description="Kept free on each device.")
    measured: Measured = Measured()
    tiers: Annotated[list[Tier], Field(max_length=8)] = Field(
        default_factory=list, description="Memory beyond the device, for state that is moved out."
    )
    transfer: Transfer | None = None
    advise: StrictBool = Field(
        default=False, description="Find the fewest devices, and changes that make it fit."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"id": "meta-llama/Llama-3.1-8B"},
                    "kv_dtype": "bf16",
                    "device": "h100-sxm-80",
                    "utilisation": 0.9,
                    "context_tokens": 8192,
                    "concurrency": 16,
                }
            ]
        }
    )
