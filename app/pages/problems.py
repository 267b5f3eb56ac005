"""What is wrong with a form, field by field, as sentences that can be translated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import ValidationError

from app.api.problems import clean_loc
from app.domain.errors import DomainError, shown
from app.domain.notes import Note
from app.web.marks import mark

Problems = Mapping[str, Note]

# The validator's own sentences are English only; these say the same and can be translated.
_SENTENCES = {
    "greater_than_equal": mark("{field} must be at least {ge}, got {value}"),
    "greater_than": mark("{field} must be above {gt}, got {value}"),
    "less_than_equal": mark("{field} must be at most {le}, got {value}"),
    "less_than": mark("{field} must be below {lt}, got {value}"),
    "int_type": mark("{field} must be a whole number, got {value}"),
    "missing": mark("{field} is missing"),
    "string_too_long": mark("{field} must be at most {max_length} characters"),
    "string_too_short": mark("{field} is empty"),
    "too_long": mark("{field} must have at most {max_length} entries"),
    "too_short": mark("{field} must have at least {min_length} entries"),
}


Path = Sequence[str | int]
_FILES = frozenset({"config", "gguf", "file", "hub"})


def problems_of(
    error: DomainError | ValidationError,
    form_fields: Iterable[str],
    otherwise: str,
    *,
    place: Callable[[Path], Path] | None = None,
) -> Problems:
    """Return one sentence for each field at fault.

    A refusal names a path in the request; it is shown at the deepest part that is a field of the
    form, or at `otherwise`. `place` turns such a path into the form's own names, where they differ.
    """
    place = place or (lambda path: path)
    known = frozenset(form_fields)
    if isinstance(error, DomainError):
        path = place(error.field)
        at = _field(path, known, otherwise)
        # Inside a pasted or uploaded file the sentence names the file's own field.
        named = error.params["field"] if _FILES & set(path[:-1]) else at
        if at in path[:-1] and str(path[-1]).startswith("line "):
            named = f"{at}, {path[-1]}"
        return {at: Note(error.code, error.template, {**error.params, "field": named})}
    found: dict[str, Note] = {}
    for item in error.errors():
        at = _field(place(clean_loc(item["loc"])), known, otherwise)
        template = _SENTENCES.get(item["type"], "{message}")
        params = {
            **item.get("ctx", {}),
            "field": at,
            "value": shown(item.get("input")),
            "message": item["msg"],
        }
        found.setdefault(at, Note(item["type"], template, params))
    return found


def _field(path: Path, known: frozenset[str], otherwise: str) -> str:
    for part in reversed(list(path)):
        if isinstance(part, str) and part in known:
            return part
    return otherwise
