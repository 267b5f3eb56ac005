"""Pieces that several practice tasks are made of."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from app.domain.notes import Note
from app.domain.practice import Asked, Draws, Given, Slip
from app.domain.units import bytes_text

LARGEST_DRAWN_TOKEN = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnModel:
    """Equal layers of full attention, as the textbook formula takes them."""

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Return 2 · L · H_kv · d · s."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def givens(self) -> tuple[Given, ...]:
        """Return the model's lines of a question's data."""
        return (
            Given(code="layers", label=Note("layers", "layers"), value=str(self.layers)),
            Given(code="kv_heads", label=Note("kv_heads", "KV heads"), value=str(self.kv_heads)),
            Given(
                code="head_dim",
                label=Note("head_dim", "elements of a head"),
                value=str(self.head_dim),
            ),
            Given(
                code="element_bytes",
                label=Note("element_bytes", "bytes of an element"),
                value=str(self.element_bytes),
            ),
        )

    @property
    def working(self) -> Note:
        """Return the line that works out the bytes of a position."""
        return Note(
            "per_token_line",
            "one position: 2 × {layers} layers × {kv_heads} KV heads × {head_dim} × {element} B "
            "= {bytes} B = {text}",
            {
                "layers": self.layers,
                "kv_heads": self.kv_heads,
                "head_dim": self.head_dim,
                "element": self.element_bytes,
                "bytes": self.bytes_per_token,
                "text": bytes_text(self.bytes_per_token),
            },
        )


def drawn_model(draws: Draws, seed: int) -> DrawnModel:
    """Return a model of usual sizes; for seed 0 the textbook's 32 layers of 8 heads in fp16."""
    if seed == 0:
        return DrawnModel(layers=32, kv_heads=8, head_dim=128, element_bytes=2)
    return DrawnModel(
        layers=draws.pick((16, 24, 28, 32, 36, 40, 48, 64, 80)),
        kv_heads=draws.pick((1, 2, 4, 8, 16)),
        head_dim=draws.pick((64, 80, 96, 128, 256)),
        element_bytes=draws.pick((1, 2, 2, 4)),
    )


def drawn_tokens(draws: Draws, count: int) -> tuple[int, ...]:
    """Return token ids of 1..LARGEST_DRAWN_TOKEN."""
    return tuple(draws.between(1, LARGEST_DRAWN_TOKEN) for _ in range(count))


def block_given(block: int) -> Given:
    """Return the block size's line of a question's data."""
    return Given(
        code="block_size", label=Note("block_size", "positions to a block"), value=str(block)
    )


def tokens_given(code: str, label: Note, tokens: tuple[int, ...]) -> Given:
    """Return a prompt's line of a question's data."""
    return Given(code=code, label=label, value=" ".join(map(str, tokens)))


def in_bytes(code: str, label: Note, amount: int, *slips: Slip) -> Asked:
    """Return a figure of bytes, without slips that happen to be right."""
    return Asked(code=code, label=label, expected=Fraction(amount), unit="B",
                 slips=only_wrong(Fraction(amount), slips))  # fmt: skip


def in_count(code: str, label: Note, amount: int, *slips: Slip) -> Asked:
    """Return a figure that counts positions, blocks or entries."""
    expected = Fraction(amount)
    return Asked(code=code, label=label, expected=expected, slips=only_wrong(expected, slips))


def positions_line(model: DrawnModel, tokens: int, **params: object) -> dict[str, object]:
    """Return the parameters of a line that turns positions into bytes."""
    amount = model.bytes_per_token * tokens
    return {
        **params,
        "tokens": tokens,
        "each": model.bytes_per_token,
        "bytes": amount,
        "text": bytes_text(amount),
    }


def only_wrong(expected: Fraction, slips: tuple[Slip, ...]) -> tuple[Slip, ...]:
    """Return the slips that do not happen to be right with these numbers."""
    return tuple(slip for slip in slips if slip.value != expected)
