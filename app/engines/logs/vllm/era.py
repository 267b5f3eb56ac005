"""Which vLLM releases could have printed a log: as it says, else by the form of its lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.engines.logs.kinds import Found
from app.engines.logs.numbers import count, decimal
from app.engines.vllm.versions import KNOWN_RELEASES, Release, release

_FIRST, _LAST = KNOWN_RELEASES[0], KNOWN_RELEASES[-1]
_NUMBERED = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")
# Forms of lines and the releases that print them so (tests/golden/vllm_log_lines.json).
_FIRST_ENGINE = ("too_long", "profile_results", "budget", "rest", "blocks", "weights_old")
# Those that the engine after it never printed.
_FIRST_ENGINE_ALONE = ("too_long", "profile_results", "budget", "rest")
_LAST_OF_FIRST_ENGINE = next(
    name for name in reversed(KNOWN_RELEASES) if release(name).is_v0_engine
)
_LAST_WITH_FIRST_ENGINE = "0.10.2"
_FORMS: Mapping[str, tuple[str, str]] = {
    "attention_block": ("0.10.0", _LAST),
    "state_padding": ("0.10.0", _LAST),
    "padding_layers": ("0.9.2", _LAST),
    "group_sizes": ("0.30.0", _LAST),
    "graphs_estimated": ("0.18.0", _LAST),
    "too_long": (_FIRST, "0.10.2"),
    "profile_results": (_FIRST, "0.6.6.post1"),
    "budget": ("0.6.6", "0.10.2"),
    "rest": ("0.6.6", "0.10.2"),
    "weights_old": (_FIRST, "0.8.2"),
    "estimated": ("0.8.5", _LAST),
    "auto_fit": ("0.14.0", _LAST),
    "mamba_mode": ("0.16.0", _LAST),
    "state_blocks": ("0.20.0", _LAST),
    "available": ("0.9.0", _LAST),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """The releases that fit, oldest first, and whether the log names its release itself.

    `said` is the release as the log writes it, which may be one between those that are known.
    `first_engine` marks the forms of the engine that was the default until 0.8 and remained until
    0.10; its rules are those of 0.7.
    """

    releases: tuple[str, ...]
    said: str | None = None
    first_engine: bool = False

    @property
    def exact(self) -> bool:
        """Whether the log names a release that is known."""
        return self.said is not None and self.releases == (self.said,)

    @property
    def text(self) -> str:
        """The guess: one release, or the first and last of those that fit.

        Where the oldest known release fits, those before it may too.
        """
        if self.said is not None:
            return self.said
        first, last = self.releases[0], self.releases[-1]
        if first == _FIRST and last != _LAST:
            return f"≤ {last}"
        return first if first == last else f"{first}–{last}"

    def representatives(self) -> tuple[Release, ...]:
        """Return one release for each set of rules, the newest first."""
        chosen: dict[tuple[object, ...], Release] = {}
        known = [name for name in self.releases if release(name).is_v0_engine]
        names = known if self.first_engine and known else self.releases
        for name in reversed(names):
            chosen.setdefault(_rules(release(name)), release(name))
        return tuple(chosen.values())


def _rules(found: Release) -> tuple[object, ...]:
    """Return every rule that a release answers, so that releases alike in all count as one."""
    own = vars(Release)
    return tuple(
        getattr(found, name) for name, item in sorted(own.items()) if isinstance(item, property)
    )


def numbers_of(text: str) -> tuple[int, ...]:
    """Return the three numbers of a release as written; empty where it is none."""
    found = _NUMBERED.match(text.removeprefix("v"))
    return () if found is None else tuple(int(part or 0) for part in found.groups())


def nearest_release(text: str) -> str | None:
    """Return the newest known release that is not above the one named; None for no release.

    A build between two releases (a candidate, a nightly) follows the rules of the older one.
    """
    plain = text.removeprefix("v").partition("+")[0]
    if plain in KNOWN_RELEASES:
        return plain
    numbers = numbers_of(plain)
    if numbers < (0, 2, 0) or numbers > (0, 99, 0):
        return None
    # A candidate of a release is not yet that release where it has rules of its own.
    is_candidate = bool(re.search(r"rc\d|dev\d|a\d|b\d", plain))
    below = [
        name
        for name in KNOWN_RELEASES
        if release(name).numbers < numbers
        or (release(name).numbers[:3] == numbers and not is_candidate)
    ]
    return below[-1] if below else _FIRST


def era_of(reads: Mapping[str, list[Found]], asked: str | None) -> Era:
    """Return the releases that a log may be of; `asked` is the version that somebody gave."""
    old = any(code in reads for code in _FIRST_ENGINE)
    if asked is not None:
        return _era_said(asked, asked, reads)
    for code in ("version_engine", "version", "version_banner", "version_said"):
        for found in reads.get(code, ()):
            said = found.groups[-1] or ""
            known = nearest_release(said)
            if known is not None:
                return _era_said(said, known, reads)
    first, last = _by_forms(reads)
    return Era(releases=KNOWN_RELEASES[first : last + 1], first_engine=old)


def _by_forms(reads: Mapping[str, list[Found]]) -> tuple[int, int]:
    """Return the first and the last of the known releases that print all these forms."""
    first, last = 0, len(KNOWN_RELEASES) - 1
    for low, high in _spans(reads):
        new_first = max(first, KNOWN_RELEASES.index(low))
        new_last = min(last, KNOWN_RELEASES.index(high))
        # Lines that contradict each other were edited by hand; the earlier word stands.
        if new_first <= new_last:
            first, last = new_first, new_last
    return first, last


def other_forms(era: Era, reads: Mapping[str, list[Found]]) -> str | None:
    """Return the releases whose forms the lines have, where the one that is said is none of them.

    None where it may be, and where the log says no release.
    """
    if era.said is None:
        return None
    known = nearest_release(era.said)
    first, last = _by_forms(reads)
    if known is None or first <= KNOWN_RELEASES.index(known) <= last:
        return None
    names = dict.fromkeys((KNOWN_RELEASES[first], KNOWN_RELEASES[last]))
    return "–".join(names)


def _era_said(said: str, known: str, reads: Mapping[str, list[Found]]) -> Era:
    """Return the release that a log names, or the last of the first engine if the lines are its."""
    if known not in KNOWN_RELEASES or release(known).is_v0_engine:
        return Era(releases=(known,), said=said)
    old = any(code in reads for code in _FIRST_ENGINE_ALONE) or any(
        "V0 LLM engine" in found.line.text for found in reads.get("version_engine", ())
    )
    if not old or KNOWN_RELEASES.index(known) > KNOWN_RELEASES.index(_LAST_WITH_FIRST_ENGINE):
        return Era(releases=(known,), said=said)
    return Era(releases=(_LAST_OF_FIRST_ENGINE,), said=said, first_engine=True)


def _spans(reads: Mapping[str, list[Found]]) -> list[tuple[str, str]]:
    spans = [_FORMS[code] for code in reads if code in _FORMS]
    for found in reads.get("tokens", ()):
        joined = "Maximum concurrency" in found.line.text
        spans.append(("0.28.0", _LAST) if joined else ("0.8.0", "0.27.1"))
    spans += [_by_separator(found) for found in reads.get("concurrency", ())]
    for found in reads.get("blocks", ()):
        device = found.groups[0]
        first, last = "0.7.0" if device == "CUDA" else _FIRST, "0.11.0"
        spans.append((first, "0.7.3" if device == "GPU" else last))
    spans += [(_FIRST, "0.7.3") for _ in reads.get("gpu_blocks", ())]
    for found in reads.get("available", ()):
        printed = decimal(found.groups[0] or "")
        if printed is not None and printed.half > _CENTI:
            spans.append(("0.14.0", _LAST))
    for found in reads.get("weights", ()):
        spans.append(_by_weights(found))
    for found in reads.get("needed", ()):
        spans.append(_by_refusal(found))
    for found in reads.get("context_ranks", ()):
        spans.append(("0.10.2", "0.11.2") if found.groups[0] == "dcp" else ("0.12.0", "0.19.1"))
    for found in reads.get("engine_core", ()):
        name = found.groups[0] or ""
        spans.append(("0.10.1", "0.10.1.1") if name.endswith("_0") else ("0.10.1", _LAST))
    if any(found.line.old_prefix for own in reads.values() for found in own):
        spans.append((_FIRST, "0.7.3"))
    return spans


_CENTI = decimal("0.01").half  # type: ignore[union-attr]


def _by_separator(found: Found) -> tuple[str, str]:
    """The first engine printed the length without separators."""
    text = found.groups[0] or ""
    value = count(text)
    if value is None or value < 1000 or "," in text:  # noqa: PLR2004 - separators begin there
        return "0.6.3", _LAST
    return "0.6.3", "0.11.2"


def _by_weights(found: Found) -> tuple[str, str]:
    number, unit, memory = found.groups
    printed = decimal(number or "")
    if unit == "GB":
        return "0.8.0", "0.8.2"
    four_places = printed is not None and printed.half < _CENTI / 10
    if memory is not None:
        return ("0.11.1", "0.13.0") if four_places else ("0.11.1", _LAST)
    return ("0.8.3", "0.13.0") if four_places else ("0.8.3", "0.27.1")


def _by_refusal(found: Found) -> tuple[str, str]:
    text = found.line.text
    if found.groups[2] == "GB":
        return "0.7.0", "0.8.2"
    if "model's max seq len" in text and "models's" not in text:
        return "0.22.0", _LAST
    printed = decimal(found.groups[1] or "")
    if printed is not None and printed.half > _CENTI:
        return "0.14.0", "0.21.0" if "models's" in text else _LAST
    return "0.8.3", "0.21.0" if "models's" in text else _LAST
