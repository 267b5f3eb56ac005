"""Attention over a cache in plain Python: the reference that every fast path is checked against.

One head. Each step appends its key and value, then reads the whole visible history:

    z_i = q · k_i / √d        a_i = e^(z_i − max z) / Σ_j e^(z_j − max z)        o = Σ_i a_i v_i

(Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.) Sums are `math.fsum`, which rounds once and
so does not depend on the order of its terms: keys and values permuted together give the same
output to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Conflict, FieldPath, Missing, OutOfRange, WrongType, shown

Vector = tuple[float, ...]
Rows = tuple[Vector, ...]
# A score of None belongs to a position that the query may not see; its weight is 0.
MaskedRows = tuple[tuple[float | None, ...], ...]

MAX_WIDTH = 512
MAX_POSITIONS = 4096
MAX_QUERIES = 128
MAX_WINDOW = 10**9
# Work of one call in multiply–adds; plain Python does about ten million a second.
MAX_PRODUCTS = 2**21
# 10^15 squared and summed over 512 elements still fits binary32, in which the fast paths compute.
MAX_MAGNITUDE = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """One head's question: what is cached, and the new positions with their queries.

    Row i of `queries`, `new_keys` and `new_values` belongs to position `past + i`. `window` is the
    number of positions that a query sees, itself included; None means all. `is_single` says that
    the question was about one query, so that an answer can leave out the outer list.
    """

    queries: Rows
    past_keys: Rows
    past_values: Rows
    new_keys: Rows
    new_values: Rows
    window: int | None = None
    is_single: bool = False

    @property
    def past_tokens(self) -> int:
        """Return the number of positions already cached."""
        return len(self.past_keys)

    @property
    def keys(self) -> Rows:
        """Return all keys after the append."""
        return self.past_keys + self.new_keys

    @property
    def values(self) -> Rows:
        """Return all values after the append."""
        return self.past_values + self.new_values

    def without_history(self) -> AttentionInputs:
        """Return the same question with its cache thrown away."""
        return AttentionInputs(
            queries=self.queries,
            past_keys=(),
            past_values=(),
            new_keys=self.new_keys,
            new_values=self.new_values,
            window=self.window,
            is_single=self.is_single,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What came of it, a row for each query over all positions."""

    scores: MaskedRows
    weights: Rows
    outputs: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedStep:
    """One step of one query: its output and weights, and the cache after the append."""

    output: Vector
    weights: Vector
    keys: Rows
    values: Rows


def visible_from(position: int, window: int | None) -> int:
    """Return the first position that the query at `position` sees; it always sees itself."""
    return 0 if window is None else max(0, position - window + 1)


def attend(inputs: AttentionInputs) -> Attended:
    """Return scores, weights and outputs of every query over its visible positions.

    The query of new position i sees the cache and the new positions up to its own: the triangular
    mask, of which a single query needs nothing.
    """
    scores: list[tuple[float | None, ...]] = []
    weights: list[Vector] = []
    outputs: list[Vector] = []
    keys, values = inputs.keys, inputs.values
    for offset, query in enumerate(inputs.queries):
        position = inputs.past_tokens + offset
        first = visible_from(position, inputs.window)
        seen_scores = _scores(query, keys[first : position + 1])
        seen_weights = _softmax(seen_scores)
        before, after = first, len(keys) - position - 1
        scores.append((None,) * before + seen_scores + (None,) * after)
        weights.append((0.0,) * before + seen_weights + (0.0,) * after)
        outputs.append(_weighted_sum(seen_weights, values[first : position + 1]))
    return Attended(scores=tuple(scores), weights=tuple(weights), outputs=tuple(outputs))


def cached_attention(
    query: Sequence[float],
    past_keys: Sequence[Sequence[float]],
    past_values: Sequence[Sequence[float]],
    new_key: Sequence[float],
    new_value: Sequence[float],
    *,
    window: int | None = None,
) -> CachedStep:
    """Append one position and attend with its query.

    Positions outside `window` have weight 0. The arguments are left as they are.

    >>> cached_attention([0], [[0]], [[2]], [0], [4]).output
    (3.0,)

    Raises:
        DomainError: as `attention_inputs`.

    """
    inputs = attention_inputs(
        query=query,
        past_keys=past_keys,
        past_values=past_values,
        new_key=new_key,
        new_value=new_value,
        window=window,
    )
    attended = attend(inputs)
    return CachedStep(
        output=attended.outputs[0],
        weights=attended.weights[0],
        keys=inputs.keys,
        values=inputs.values,
    )


def attention_inputs(  # noqa: PLR0913 - the fields of the request
    *,
    query: object = None,
    queries: object = None,
    past_keys: object = (),
    past_values: object = (),
    new_key: object = None,
    new_keys: object = None,
    new_value: object = None,
    new_values: object = None,
    window: object = None,
) -> AttentionInputs:
    """Return the checked question; the singular names give one row, the plural ones several.

    Raises:
        Missing: neither form of a field, an empty vector, or no row of new positions.
        Conflict: both forms of a field; rows of different widths; keys and values, or queries and
            keys, that do not pair up.
        WrongType: what should be a list, a row or a number and is not.
        OutOfRange: NaN, an infinity, a magnitude, width, count or amount of work above the bound.

    """
    asked = _rows_of(query, queries, "query", "queries", most=MAX_QUERIES)
    keys = _rows_of(new_key, new_keys, "new_key", "new_keys", most=MAX_QUERIES)
    values = _rows_of(new_value, new_values, "new_value", "new_values", most=MAX_QUERIES)
    old_keys = _checked_rows(past_keys, "past_keys", most=MAX_POSITIONS)
    old_values = _checked_rows(past_values, "past_values", most=MAX_POSITIONS)
    for rows in (asked, keys, old_keys):
        rows.demand_width(len(asked.rows[0]), of=asked.named(0))
    first = old_values if old_values.rows else values
    for rows in (old_values, values):
        rows.demand_width(len(first.rows[0]), of=first.named(0))
    old_values.demand_count_of(old_keys)
    keys.demand_count_of(asked)
    values.demand_count_of(keys)
    _demand_bounded_work(asked.rows, len(old_keys.rows) + len(keys.rows), len(values.rows[0]))
    return AttentionInputs(
        queries=asked.rows,
        past_keys=old_keys.rows,
        past_values=old_values.rows,
        new_keys=keys.rows,
        new_values=values.rows,
        window=None if window is None else checked_int(window, "window", low=1, high=MAX_WINDOW),
        is_single=query is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedRows:
    """Rows that remember what the request called them."""

    rows: Rows
    field: str
    is_one_row: bool = False

    def path(self, index: int) -> FieldPath:
        return (self.field,) if self.is_one_row else (self.field, index)

    def named(self, index: int) -> str:
        return ".".join(map(str, self.path(index)))

    def demand_width(self, width: int, *, of: str) -> None:
        for index, row in enumerate(self.rows):
            if len(row) != width:
                raise Conflict(
                    "{field} must have {width} elements as {other} has, got {value}",
                    field=self.path(index),
                    width=width,
                    other=of,
                    value=len(row),
                )

    def demand_count_of(self, other: _NamedRows) -> None:
        if len(self.rows) != len(other.rows):
            raise Conflict(
                "{field} must have as many rows as {other} ({expected}), got {value}",
                field=self.field,
                other=other.field,
                expected=len(other.rows),
                value=len(self.rows),
            )


def _rows_of(one: object, several: object, singular: str, plural: str, *, most: int) -> _NamedRows:
    """Return the rows given under either name; exactly one of the two must be given."""
    if one is not None and several is not None:
        raise Conflict(
            "give {field} or {other}, not both",
            field=plural,
            other=singular,
        )
    if one is not None:
        return _NamedRows(
            rows=(_checked_vector(one, (singular,)),), field=singular, is_one_row=True
        )
    if several is None:
        raise Missing("{field} is required", field=singular)
    rows = _checked_rows(several, plural, most=most)
    if not rows.rows:
        raise Missing("{field} must have at least one row", field=plural)
    return rows


def _checked_rows(value: object, field: str, *, most: int) -> _NamedRows:
    listed = _checked_list(value, (field,), most=most)
    rows = tuple(_checked_vector(row, (field, index)) for index, row in enumerate(listed))
    return _NamedRows(rows=rows, field=field)


def _checked_vector(value: object, field: FieldPath) -> Vector:
    listed = _checked_list(value, field, most=MAX_WIDTH)
    if not listed:
        raise Missing("{field} must have at least one element", field=field)
    return tuple(_checked_number(item, (*field, index)) for index, item in enumerate(listed))


def _checked_list(value: object, field: FieldPath, *, most: int) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise WrongType("{field} must be a list, got {value}", field=field, value=shown(value))
    if len(value) > most:
        raise OutOfRange(
            "{field} must have at most {high} entries, got {value}",
            field=field,
            high=most,
            value=len(value),
        )
    return value


def _checked_number(value: object, field: FieldPath) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongType("{field} must be a number, got {value}", field=field, value=shown(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise OutOfRange(
            "{field} must be a finite number, got {value}", field=field, value=shown(value)
        )
    if abs(value) > MAX_MAGNITUDE:
        raise OutOfRange(
            "{field} must be between {low} and {high}, got {value}",
            field=field,
            low=-MAX_MAGNITUDE,
            high=MAX_MAGNITUDE,
            value=shown(value),
        )
    return float(value)


def _demand_bounded_work(queries: Rows, positions: int, value_width: int) -> None:
    """Refuse a question whose answer would hold a worker."""
    products = len(queries) * positions * (len(queries[0]) + value_width)
    if products > MAX_PRODUCTS:
        raise OutOfRange(
            "{field}: queries × positions × widths must be at most {high}, got {value}",
            field="queries",
            high=MAX_PRODUCTS,
            value=products,
        )


def _scores(query: Vector, keys: Rows) -> Vector:
    root = math.sqrt(len(query))
    return tuple(math.fsum(a * b for a, b in zip(query, key, strict=True)) / root for key in keys)


def _softmax(scores: Vector) -> Vector:
    """Return the weights; the largest score becomes e^0, so that none overflows."""
    peak = max(scores)
    powers = [math.exp(score - peak) for score in scores]
    total = math.fsum(powers)
    return tuple(power / total for power in powers)


def _weighted_sum(weights: Vector, values: Rows) -> Vector:
    return tuple(
        math.fsum(weight * element for weight, element in zip(weights, column, strict=True))
        for column in zip(*values, strict=True)
    )
