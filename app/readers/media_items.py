"""Images, videos and sounds of a prompt as a person types them: `cat.png @ 4 + 8`.

The identifier stands for the content; the item begins at the position after `@` and takes so many
positions as stand after `+`. Items stand between semicolons or on lines of their own.
"""

from __future__ import annotations

import re

from app.domain.errors import Malformed, OutOfRange, shown
from app.domain.vllm_prompt import MAX_MULTIMODAL_ITEMS, MultimodalItem
from app.readers.token_ids import checked_length

MAX_MEDIA_CHARACTERS = 100_000

_ITEM = re.compile(r"(.+?)\s*@\s*([0-9]{1,9})\s*\+\s*([0-9]{1,9})")


def parse_media(text: str, field: str) -> list[MultimodalItem]:
    """Return the items of a text; where they stand in the prompt is not checked here.

    Raises:
        Malformed: for what is no item.
        OutOfRange: for too long a text or too many items.

    """
    items: list[MultimodalItem] = []
    for part in re.split(r"[;\n]", checked_length(text, field, MAX_MEDIA_CHARACTERS)):
        if not part.strip():
            continue
        match = _ITEM.fullmatch(part.strip())
        if match is None:
            raise Malformed(
                "{field}: {value} is no item; write its identifier, position and length such as "
                "cat.png @ 4 + 8",
                field=field,
                value=shown(part.strip()),
            )
        if len(items) == MAX_MULTIMODAL_ITEMS:
            raise OutOfRange(
                "{field} must have at most {high} items", field=field, high=MAX_MULTIMODAL_ITEMS
            )
        items.append(
            MultimodalItem(identifier=match[1], offset=int(match[2]), length=int(match[3]))
        )
    return items
