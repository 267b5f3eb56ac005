"""Mixtures of experts: router, routed experts, shared experts; and which layers have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.errors import Conflict
from app.domain.weight_lines import Component, Cut, Kind
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, linear, vector
from app.readers.weights.parts import (
    FeedForward,
    Option,
    Part,
    Rule,
    Switch,
    Uniform,
    chosen,
    hidden,
)

Width = Callable[[Fields], int]


def shared_times(width: str, number: str) -> Width:
    """Return a shared expert as wide as `number` routed ones (DeepSeek's n_shared_experts)."""
    return lambda fields: fields.size(width) * fields.count(number)


def shared_own(width: str) -> Width:
    """Return a shared expert of its own width; zero is none."""
    return lambda fields: fields.count(width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Uniform):
    """Routed experts of one layer with their router, and shared ones beside them.

    `correction` names the bias that balances the router's choice: stored, and mostly no parameter.
    `inner` is the width between which experts work when it is not the model's (latent experts).
    """

    at: str = "mlp"
    router: str = "gate"
    experts: str = "experts"
    number: str = "num_experts"
    active: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    router_rows: Width | None = None
    correction: str = ""
    correction_counts: bool = False
    shared: Width | None = None
    shared_at: str = "shared_experts"
    shared_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    shared_fused: str = ""
    shared_gate: str = ""
    shared_bias: Option = False
    latent: Width | None = None

    def _under(self, name: str) -> str:
        return f"{self.at}.{name}" if self.at else name

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return router, experts and shared experts."""
        number, width = fields.size(self.number), hidden(fields)
        active = min(fields.count(self.active) or number, number)
        rows = self.router_rows(fields) if self.router_rows else number
        router = linear(self._under(self.router), Component.ROUTER, rows, width, kind=Kind.GATE,
                        bias=self.router_bias)  # fmt: skip
        correction: Lines = ()
        if self.correction:
            correction = vector(self._under(self.correction), Component.ROUTER, rows,
                                is_buffer=not self.correction_counts, fp32=True)  # fmt: skip
        return (
            *router,
            *correction,
            *self._routed(fields, number, active),
            *self._shared(fields),
        )

    def _routed(self, fields: Fields, number: int, active: int) -> Lines:
        width, inner = hidden(fields), fields.size(self.width)
        into, out = self.names[:-1] if self.gated else self.names[-2:-1], self.names[-1]
        outer = self.latent(fields) if self.latent else width

        def matrix(name: str, outputs: int, inputs: int, axis: int) -> Lines:
            return linear(self._under(f"{self.experts}.*.{name}"), Component.EXPERTS, outputs,
                          inputs, bias=self.bias, cut=Cut.EVEN, units=inner, axis=axis,
                          copies=number, active=active, by_expert=True)  # fmt: skip

        return (
            *(line for name in into for line in matrix(name, inner, outer, 0)),
            *matrix(out, outer, inner, 1),
        )

    def _shared(self, fields: Fields) -> Lines:
        inner = self.shared(fields) if self.shared else 0
        if not inner:
            return ()
        network = FeedForward(
            at=self._under(self.shared_at) if self.at else self.shared_at,
            names=self.shared_names,
            fused=self.shared_fused,
            gated=self.gated,
            component=Component.SHARED_EXPERTS,
        )
        lines = network.of_width(inner, hidden(fields), bias=chosen(fields, self.shared_bias))
        if self.shared_gate:
            lines += linear(self._under(self.shared_gate), Component.SHARED_EXPERTS, 1,
                            hidden(fields), kind=Kind.GATE)  # fmt: skip
        return lines


def sparse_or_dense(rule: Rule, sparse: Part, dense: Part | None = None) -> Switch:
    """Return experts where `rule` says so, and a plain network elsewhere."""
    return Switch(rule=rule, parts={True: (sparse,), False: (dense or FeedForward(),)})


def num_layers(fields: Fields) -> int:
    """Return the number of decoder layers."""
    return fields.size("num_hidden_layers", high=4096)


def after_dense(fields: Fields, layer: int) -> bool:
    """DeepSeek: dense before `first_k_dense_replace`, then every `moe_layer_freq`-th layer."""
    every = fields.size_or_none("moe_layer_freq", low=1) or 1
    return layer >= fields.count("first_k_dense_replace") and layer % every == 0


def by_list(fields: Fields, layer: int) -> bool:
    """`mlp_layer_types`, else dense before `first_k_dense_replace` (one when nobody says)."""
    types = fields.words("mlp_layer_types", length=num_layers(fields))
    if types is not None:
        return is_sparse(fields, "mlp_layer_types", layer, types[layer])
    first = fields.size_or_none("first_k_dense_replace")
    return layer >= (1 if first is None else first)


def is_sparse(fields: Fields, name: str, layer: int, word: str) -> bool:
    """Return whether a layer type means experts.

    Raises:
        Conflict: for a word that is neither.

    """
    if word in {"sparse", "moe"}:
        return True
    if word != "dense":
        raise Conflict("{field} must be dense or sparse, got {value}",
                       field=(*fields.at(name), layer), value=word)  # fmt: skip
    return False


def qwen_sparse(fields: Fields, layer: int) -> bool:
    """Qwen: not in `mlp_only_layers`, and every `decoder_sparse_step`-th layer."""
    if layer in (fields.sizes("mlp_only_layers") or ()):
        return False
    step = fields.size_or_none("decoder_sparse_step", low=1) or 1
    return fields.count("num_experts") > 0 and (layer + 1) % step == 0
