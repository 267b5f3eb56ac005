"""What the states of a recurrent layer are made of, and the fields that give their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.domain.errors import Conflict, OutOfRange, WrongType, shown
from app.readers.hf_config.fields import Fields

MAX_KERNEL = 4096
MAX_EXPAND = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A depthwise convolution over `channels`, `kernel` wide; kept in float32 where `fp32`."""

    channels: int
    kernel: int
    fp32: bool = False

    @property
    def columns(self) -> int:
        """Return the earlier columns that the next output needs."""
        return self.kernel - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """A running state; kept in float32 where `fp32`, else in the model's dtype.

    `split_axis` is the axis of heads or channels that tensor ranks divide.
    """

    shape: tuple[int, ...]
    fp32: bool = True
    split_axis: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """All that one recurrent layer keeps for one sequence."""

    convolutions: tuple[Convolution, ...] = ()
    accumulators: tuple[Accumulator, ...] = field(default=())


ShapeOf = Callable[[Fields], RecurrentShape]


def kernel(fields: Fields, *names: str, otherwise: int | None = None) -> int:
    """Return the width of a convolution."""
    return fields.integer(*names, high=MAX_KERNEL, otherwise=otherwise)


def expanded(fields: Fields, name: str, *names: str) -> int:
    """Return the hidden size times an expansion factor, which some files give as 2.0.

    Raises:
        OutOfRange: when the product is no whole number of channels.

    """
    key = fields.key(name, *names)
    value = fields.raw[key] if key is not None else fields.default(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        raise fields.missing(name)
    if type(value) is not int:
        raise WrongType("{field} must be an integer, got {value}",
                        field=fields.at(key or name), value=shown(value))  # fmt: skip
    if not 1 <= value <= MAX_EXPAND:
        raise OutOfRange("{field} must be between {low} and {high}, got {value}",
                         field=fields.at(key or name), low=1, high=MAX_EXPAND,
                         value=shown(value))  # fmt: skip
    return value * fields.dim("hidden_size")


def divided(fields: Fields, total: int, parts: int, name: str) -> int:
    """Return total / parts.

    Raises:
        Conflict: when it is not whole.

    """
    if total % parts:
        raise Conflict("{field} is {parts}, which does not divide {total} channels",
                       field=fields.at(name), parts=parts, total=total)  # fmt: skip
    return total // parts
