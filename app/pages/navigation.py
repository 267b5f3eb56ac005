"""The pages that the masthead lists, in its order."""

from __future__ import annotations

from dataclasses import dataclass

from app.web.marks import mark


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """One link; the label is translated when it is shown."""

    path: str
    label: str


NAVIGATION = (
    NavigationItem("/", mark("Ledgers")),
    NavigationItem("/sharing", mark("Sharing")),
    NavigationItem("/hashes", mark("Hashes")),
    NavigationItem("/pool", mark("Pool")),
    NavigationItem("/parallel", mark("Ranks")),
    NavigationItem("/fit", mark("Fit")),
    NavigationItem("/compare", mark("Compare")),
    NavigationItem("/engines", mark("Engines")),
    NavigationItem("/explain", mark("Explain a log")),
    NavigationItem("/traces", mark("Traces")),
    NavigationItem("/attention", mark("Attention")),
    NavigationItem("/cost", mark("Cost")),
    NavigationItem("/learn", mark("Learn")),
    NavigationItem("/models", mark("Models")),
    NavigationItem("/accuracy", mark("Accuracy")),
)
