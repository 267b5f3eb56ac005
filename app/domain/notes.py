"""What an answer says beside its numbers: assumptions, omissions, warnings."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Note:
    """A short code with a sentence; the sentence is a template so that pages can translate it.

    A parameter may be a note itself, a name for example: pages translate it too.
    """

    code: str
    template: str
    params: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the English sentence, for a note that stands in another one."""
        return self.text

    @property
    def text(self) -> str:
        """Return the English sentence with its numbers in it."""
        return self.template.format_map(self.params)
