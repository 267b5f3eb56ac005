"""What the engines' rooms write as plain text, a page says in its own language."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from app.api.engines_compared import compute_side_by_side
from app.api.engines_schemas import ExplainRequest, SideBySideRequest
from app.api.explain import compute_explain
from app.pages.amounts_in_words import TEMPLATES, form_of, in_words
from app.pages.example_logs import EXAMPLE_LOGS
from app.web.language import translations
from tests.engines.logs import test_log_other_measured as others
from tests.engines.logs import test_log_vllm_measured as ours

MODELS = ("meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3.2",
          "Qwen/Qwen3-Next-80B-A3B-Instruct", "openai/gpt-oss-20b", "openai/whisper-large-v3",
          "mistralai/Mistral-7B-v0.1")  # fmt: skip
# Units, names of kinds, caches and tensors: the same in every language.
_SAME = re.compile(r"[KMGT]?i?B\b|\b[\d.,]+x\b|\b\w+_\w+\b|\b(?:kv|SWA|non-SWA|mamba)\b|c\^KV")


def cells() -> Iterator[str]:
    """Return the amounts and workings of public logs and of the examples."""
    requests = [
        {"log": "\n".join(case["log_lines"]), "model": {"id": case["model"]}}
        if isinstance(case.get("model"), str)
        else {"log": "\n".join(case["log_lines"])}
        for case in (*ours.CASES, *others.CASES)
    ]
    requests += [
        {"log": item.log, "model": {"id": item.model}} if item.model else {"log": item.log}
        for item in EXAMPLE_LOGS.values()
    ]
    for request in requests:
        found = compute_explain(ExplainRequest.model_validate(request))
        for figure in found.figures:
            yield from (figure.printed, figure.computed or "", figure.difference)
        yield from found.formulas


def workings() -> Iterator[str]:
    """Return the workings of all engines for models of many kinds."""
    for model in MODELS:
        asked = {"model": {"id": model}, "available_bytes": 40 * 2**30, "context_tokens": 8_192}
        for row in compute_side_by_side(SideBySideRequest.model_validate(asked)).rows:
            yield from row.formulas


@pytest.mark.parametrize("texts", [cells, workings], ids=["logs", "plans"])
def test_every_amount_and_working_with_words_has_a_form(texts: object) -> None:
    """Whatever has a word in it is of a form that is translated."""
    found = set(texts())  # type: ignore[operator]
    assert len(found) > 50
    wordy = [text for text in found if re.search(r"[a-z]{2,}", _SAME.sub("", text))]
    assert len(wordy) > 20
    assert sorted(text for text in wordy if form_of(text) is None) == []


def test_the_parts_are_kept_in_every_language() -> None:
    """In English an amount is as it was; in Chinese its numbers are all there."""
    for text in {*cells(), *workings()}:
        assert in_words(text, str) == text
        said = in_words(text, translations("zh").gettext)
        assert sorted(re.findall(r"\d+", said)) == sorted(re.findall(r"\d+", text)), text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("81,536 tokens", "81,536 个 token"),
        ("81,536 tokens for a request of 131,072", "81,536 个 token，每个请求 131,072"),
        ("752.00 MiB on all devices", "所有设备共 752.00 MiB"),
        ("24.00 GiB = 25,769,803,776 B", "24.00 GiB = 25,769,803,776 B"),
        ("5.15x of 131,072 tokens", "5.15x，每个请求 131,072 个 token"),
        ("a block that holds a state: 64 × ⌈1 / 2⌉ = 832 tokens",
         "能放下一个状态的块：64 × ⌈1 / 2⌉ = 832 个 token"),
        ("up to 0.29", "0.29 及更早"),
        ("0.5.15 or later", "0.5.15 及更新"),
        ("0.4.4 – 0.5.14", "0.4.4 – 0.5.14"),
        ("words of no form", "words of no form"),
        ("1 " * 2_000, "1 " * 2_000),
    ],
)  # fmt: skip
def test_amounts_in_chinese(text: str, said: str) -> None:
    """Known forms are said in Chinese; all else stays as it is."""
    assert in_words(text, translations("zh").gettext) == said


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_form_is_taken_for_another(template: str) -> None:
    """A text of a form is found to be of that form."""
    parts = {"size": "1.00 GiB", "device": "CUDA0", "name": "kv", "text": "1 × 2", "text2": "3 = 4",
             "version": "0.5.15"}  # fmt: skip
    text = re.sub(r"\{(\w+)\}", lambda it: parts.get(it[1], "16"), template)
    found = form_of(text)
    assert found is not None
    assert found[0] == template
