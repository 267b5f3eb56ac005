"""Settings as people type or paste them: `name=value` lines, or an engine's own flags."""

from __future__ import annotations

import json
import re
import shlex

from app.domain.errors import Malformed, OutOfRange, shown
from app.domain.notes import Note
from app.readers.json_text import RepeatedKeyError, unique_object

MAX_CHARACTERS = 20_000
MAX_SETTINGS = 100
MAX_NAME_CHARACTERS = 100
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")
# What the shell's own splitting complains of, word for word.
_PROBLEMS = {
    note.template: note
    for note in (Note("", "No closing quotation"), Note("", "No escaped character"))
}
# A variable of the environment that sets what a setting of another name does.
_VARIABLES = {"VLLM_PP_LAYER_PARTITION": "layers_per_stage"}
_WHOLE_NUMBERS = re.compile(r"[0-9]{1,30}(\s*,\s*[0-9]{1,30})*")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def parse_settings(text: str, *, field: str = "settings") -> dict[str, object]:
    """Return settings by name, dashes read as underscores; a flag without a value is True.

    >>> parse_settings("--max-model-len 32768 kv_cache_dtype=fp8 --enforce-eager")
    {'max_model_len': 32768, 'kv_cache_dtype': 'fp8', 'enforce_eager': True}

    Raises:
        OutOfRange: for a text that is too long, or too many settings.
        Malformed: for a word that is neither a flag nor `name=value`, naming it.

    """
    if len(text) > MAX_CHARACTERS:
        raise OutOfRange("{field} must be at most {high} characters", field=field,
                         high=MAX_CHARACTERS)  # fmt: skip
    try:
        words = shlex.split(text, comments=False)
    except ValueError as error:
        raise Malformed(
            "{field} cannot be read: {why}", field=field, why=_PROBLEMS.get(str(error), str(error))
        ) from None
    found: dict[str, object] = {}
    index = 0
    while index < len(words):
        name, value, taken = _setting(words, index, field)
        found[name] = value
        index += taken
    if len(found) > MAX_SETTINGS:
        raise OutOfRange("{field} must have at most {high} entries", field=field,
                         high=MAX_SETTINGS)  # fmt: skip
    return found


def _setting(words: list[str], index: int, field: str) -> tuple[str, object, int]:
    """Return the name and value that begin at a word, and how many words they take."""
    word = words[index].rstrip(",")
    is_flag = word.startswith("-")
    name, equals, text = word.lstrip("-").partition("=")
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS or not (is_flag or equals):
        raise Malformed("{field} must be flags or name=value, got {value}", field=field,
                        value=shown(word))  # fmt: skip
    name = own_name(name)
    if equals:
        return name, value_of_setting(name, text, field=field), 1
    following = words[index + 1] if index + 1 < len(words) else "--"
    if _NUMBER.fullmatch(following) or not (following.startswith("-") or "=" in following):
        return name, value_of_setting(name, following.rstrip(","), field=field), 2
    return name, True, 1


def own_name(name: str) -> str:
    """Return a setting's own name for that of a flag or of a variable of the environment.

    >>> own_name("max-model-len"), own_name("VLLM_PP_LAYER_PARTITION")
    ('max_model_len', 'layers_per_stage')
    """
    prefix, dot, last = name.rpartition(".")
    return prefix + dot + _VARIABLES.get(last, last.replace("-", "_"))


def value_of_setting(name: str, text: str, *, field: str = "settings") -> object:
    """Return a setting's value as its text reads; a version is text whatever it looks like.

    Layers of stages are a list with brackets or, as vLLM's own variable has them, without.

    >>> value_of_setting("version", "1.20"), value_of_setting("n_ctx", "120")
    ('1.20', 120)
    >>> value_of_setting("layers_per_stage", "16,32")
    [16, 32]

    Raises:
        Malformed: for JSON that names a key twice.

    """
    # With an engine's name before it where several are asked, as in vllm.version.
    last = name.rpartition(".")[2]
    if last == "layers_per_stage" and _WHOLE_NUMBERS.fullmatch(text):
        return [int(part) for part in text.split(",")]
    return text if last == "version" else value_of(text, field=field)


def value_of(text: str, *, field: str = "settings") -> object:
    """Return a value as its text reads: a number, true or false, JSON, else the text itself.

    Raises:
        Malformed: for JSON that names a key twice.

    """
    if text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    if text.startswith(("[", "{")):
        try:
            return json.loads(text, object_pairs_hook=unique_object)
        except RepeatedKeyError as error:
            raise Malformed("{field} names {key} twice", field=field,
                            key=shown(error.key)) from None  # fmt: skip
        except (ValueError, RecursionError):
            return text
    return text
