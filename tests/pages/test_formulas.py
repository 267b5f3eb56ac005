"""Formulas on pages: the nouns in a page's language, all else as the API has it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from app.pages.formulas import in_language
from app.web.language import translations

pytestmark = pytest.mark.enable_socket


@pytest.mark.parametrize(
    ("formula", "chinese"),
    [
        (
            "2 × 32 layers × 8 KV heads × 128 × 2 B = 131072 B/token",
            "2 × 32 层 × 8 个 KV head × 128 × 2 B = 131072 B/token",
        ),
        ("2 × 1 layer × 1 KV head × 64 × 2 B = 256 B/token",
         "2 × 1 层 × 1 个 KV head × 64 × 2 B = 256 B/token"),
        ("61 layers × (512 latent + 64 rope + 128 index) × 2 B = 85888 B/token",
         "61 层 × (512 潜在 + 64 rope + 128 索引) × 2 B = 85888 B/token"),
        ("131072 B/token × 3 requests × 1023 positions + … 4 more = 1 B",
         "131072 B/token × 3 个请求 × 1023 个位置 + … 另 4 项 = 1 B"),
        ("36 layers × (8192 × 3 × 2 B) = 1769472 B", "36 层 × (8192 × 3 × 2 B) = 1769472 B"),
        ("0 = 0 B", "0 = 0 B"),
    ],
)  # fmt: skip
def test_nouns_are_translated(formula: str, chinese: str) -> None:
    """English stays exactly as it is, singulars included; Chinese has one form."""
    assert in_language(formula, translations("en").gettext) == formula
    assert in_language(formula, translations("zh").gettext) == chinese


@pytest.mark.parametrize("path", ["/", "/sharing", "/fragmentation", "/models/openai/gpt-oss-20b"])
def test_no_english_formula_on_a_chinese_page(path: str, client: TestClient) -> None:
    """Nor any Chinese one on an English page."""
    page: Any = client.get(f"{path}?lang=zh")
    client.cookies.clear()
    formula = page.text.partition('id="formula">')[2].partition("<")[0]
    assert "层 ×" in formula
    assert "layers" not in formula
    page = client.get(f"{path}?lang=en")
    client.cookies.clear()
    assert " layers ×" in page.text.partition('id="formula">')[2].partition("<")[0]
