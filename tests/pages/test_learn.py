"""`/learn` and `/glossary`: exercises by kind and seed, judged answers, and the field's words."""

from __future__ import annotations

import json
import shlex
from html import unescape
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from app.domain.exercises import EXERCISE_KINDS, make_exercise
from app.domain.practice import MAX_SEED
from app.pages.glossary import GLOSSARY

HTMX = {"hx-request": "true", "hx-request-type": "partial"}
# The vocabulary that every page keeps to, in both languages.
FIXED = {
    "effective": "有效状态", "padded": "按最长补齐", "paged": "分页分配", "block": "块",
    "tail waste": "尾部浪费", "unique block": "唯一物理块", "block table": "块表",
    "reference count": "引用计数", "copy on write": "写时复制", "prefix": "前缀",
    "chained hash": "链式哈希", "identity": "计算身份", "eviction": "淘汰",
    "tensor parallel": "张量并行", "pipeline stage": "流水线阶段", "replicated heads": "复制的头",
    "sliding window": "滑动窗口", "latent attention": "潜在注意力 (MLA)",
    "recurrent state": "循环状态", "fixed part": "固定部分", "slope": "每 token 增量",
    "not counted": "未计入", "assumed": "假设", "measured": "实测", "printed": "引擎打印值",
    "concurrency": "并发", "context length": "上下文长度",
}  # fmt: skip


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/learn?{urlencode(query, doseq=True)}")
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("kind", EXERCISE_KINDS)
@pytest.mark.parametrize("seed", [0, 5])
def test_every_exercise_asks_and_keeps_its_solution(
    kind: str, seed: int, client: TestClient
) -> None:
    """Figures, omissions and conditions are asked for; nothing is told before the answer."""
    exercise = make_exercise(kind, seed)
    text = page(client, kind=kind, seed=seed)
    for asked in exercise.figures:
        assert f'name="figure.{asked.code}"' in text
    assert text.count('name="omission"') == len(exercise.omissions)
    assert text.count('name="condition"') == len(exercise.conditions)
    assert 'id="working"' not in text
    assert 'id="score"' not in text
    assert f"kind={kind}&amp;seed={seed + 1}" in text


@pytest.mark.parametrize("kind", EXERCISE_KINDS)
@pytest.mark.parametrize("seed", [0, 5])
def test_a_right_answer_is_all_right(kind: str, seed: int, client: TestClient) -> None:
    """The expected figures and the statements that hold are judged right, part by part."""
    exercise = make_exercise(kind, seed)
    figures = {f"figure.{asked.code}": str(asked.expected) for asked in exercise.figures}
    text = page(
        client,
        kind=kind, seed=seed, check=1, **figures,
        omission=[choice.code for choice in exercise.omissions if choice.is_right],
        condition=[choice.code for choice in exercise.conditions if choice.is_right],
    )  # fmt: skip
    assert "parts are right." in text.partition('id="score">')[2]
    assert text.partition('id="score">')[2].startswith("All ")
    assert text.partition('id="working"')[2].count("<li") >= len(exercise.working)


def test_the_textbook_s_slips_get_their_remarks(client: TestClient) -> None:
    """A padded figure given as the effective one, and 12 MiB for shared blocks, are recognised."""
    query = {"kind": "capacity_ragged", "check": 1, "figure.padded_bytes": "10 MiB",
             "omission": ["weights"]}  # fmt: skip
    text = page(client, **query)
    assert "That is the effective figure" in text
    assert "12 MiB (12582912 B)" in text
    assert 'value="10 MiB"' in text
    assert 'value="weights" checked' in text


def test_an_answer_is_a_fragment_for_htmx(client: TestClient) -> None:
    """The judgement alone is swapped, and the address has the whole answer."""
    answer = client.get(
        "/learn?kind=hand_attention&seed=0&check=1&figure.output=3&omission=other_heads",
        headers=HTMX,
    )
    assert answer.text.lstrip().startswith('<section id="answer"')
    assert answer.headers["hx-replace-url"] == (
        "/learn?kind=hand_attention&seed=0&figure.output=3&omission=other_heads&check=1"
    )


def test_the_same_through_the_api_is_said(client: TestClient) -> None:
    """The question is a GET, an answer the body of its check, and the API judges it alike."""
    text = unescape(page(client, kind="hand_attention", seed=2))
    assert "/api/v1/exercises/hand_attention?seed=2'" in text
    checked = unescape(page(client, kind="hand_attention", check=1, **{"figure.output": "3"}))
    command = checked.partition('id="curl">')[2].partition("</pre>")[0]
    assert "/exercises/hand_attention/check" in command
    body = json.loads(shlex.split(command)[-1])
    answer = client.post("/api/v1/exercises/hand_attention/check", json=body)
    assert answer.json()["right_parts"] >= 1


def test_a_mistyped_answer_is_escaped(client: TestClient) -> None:
    """What was typed is shown as text."""
    text = page(client, kind="hand_attention", check=1, **{"figure.output": "<b>3</b>"})
    assert "<b>3</b>" not in text
    assert "&lt;b&gt;3&lt;/b&gt;" in text


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"kind": "nothing"}, "kind"),
        ({"seed": "x"}, "seed"),
        ({"seed": "-1"}, "seed"),
        ({"seed": str(MAX_SEED + 1)}, "seed"),
        ({"check": "1", "figure.nothing": "1"}, "figures"),
        ({"check": "1", "figure.effective_bytes": "1" * 81}, "figures"),
        ({"check": "1", "omission": "nothing"}, "omissions"),
        ({"check": "1", "condition": "nothing"}, "conditions"),
    ],
)
def test_what_there_is_not_is_said(query: dict[str, str], field: str, client: TestClient) -> None:
    """A kind, a seed, a figure or a statement that there is not is named; the form stays."""
    answer = client.get(f"/learn?{urlencode(query)}")
    assert answer.status_code == 422
    assert f'id="error-{field}"' in answer.text
    assert 'name="figure.' in answer.text


def test_the_last_seed_is_followed_by_the_first(client: TestClient) -> None:
    """Next numbers never lead outside the range."""
    assert "kind=unique_blocks&amp;seed=0" in page(client, kind="unique_blocks", seed=MAX_SEED)


def test_the_glossary_keeps_the_vocabulary(client: TestClient) -> None:
    """Every fixed word stands there in both languages, once, with a meaning and its own anchor."""
    terms = [term for group in GLOSSARY for term in group.terms]
    known = {term.english: term.chinese for term in terms}
    assert known.items() >= FIXED.items()
    assert len(terms) == len(known) == len({term.anchor for term in terms}) >= 45
    assert all(term.meaning.endswith(".") for term in terms)
    text = client.get("/glossary").text
    for term in terms:
        assert f'id="{term.anchor}"' in text
        assert term.chinese in text


def test_learn_leads_to_the_glossary(client: TestClient) -> None:
    """The glossary is linked from the exercises and back."""
    assert 'href="/glossary"' in page(client)
    assert 'href="/learn"' in client.get("/glossary").text
