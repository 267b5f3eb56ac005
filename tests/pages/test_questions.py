"""Questions that people have asked in public, each as a link that shows the figures of its answer.

The figures are those of the threads, checked against the logs that they quote.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import pytest
from starlette.testclient import TestClient

LLAMA_405B = "model=meta-llama/Llama-3.1-405B&kv=bf16&tensor_parallel=8"
KIMI = "model=moonshotai/Kimi-K2-Instruct&kv=bf16&tensor_parallel=8&block_size=64&concurrency=1"
CODER = "model=Qwen/Qwen3-Coder-480B-A35B-Instruct&kv=bf16"
GPT_OSS = (
    "model=openai/gpt-oss-120b&kv=bf16&device=h100-sxm-80&context_tokens=131072&concurrency=1"
    "&batch_tokens=1024&utilisation=0.95&measured_weights=65.97GiB&state=1.71GiB"
)
GPT_OSS_DEFAULT = (
    "model=openai/gpt-oss-120b&kv=bf16&device=h100-sxm-80&context_tokens=131072&concurrency=1"
    "&utilisation=0.9&measured_weights=65.97GiB&state=-2.14GiB&engine=vllm&engine_version=0.11.0"
)
VISION = "model=Qwen/Qwen2.5-VL-7B-Instruct&kv=bf16&device=jetson-agx-orin-64&concurrency=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, a page's address, and what the page must show."""

    asked: str
    link: str
    shows: tuple[str, ...]


QUESTIONS = (
    Question(
        asked="My KV cache does not make use of two cards: is 13.95 GB of weights on each right?",
        link="/fit?model=Qwen/Qwen2.5-14B&kv=bf16&device=rtx-4090&tensor_parallel=2"
        "&context_tokens=131072&concurrency=1&measured_weights=13.95GiB&state=7.465GiB",
        shows=("81 536", "13.95 GiB"),
    ),
    Question(
        asked="How many bytes a token on each of two cards?",
        link="/parallel?model=Qwen/Qwen2.5-14B&kv=bf16&tensor_parallel=2",
        shows=("98 304",),
    ),
    Question(
        asked="24 GiB needed with stages of 16 and 32 layers, but rank 0 holds only 16 layers?",
        link="/parallel?source=numbers&layers=48&kv_heads=4&head_dim=128&kv=bf16&lengths=262144"
        "&tensor_parallel=1&pipeline_parallel=2&layers_per_stage=16,32",
        shows=("24 GiB", "Stage 0, layers 0–15", "8 589 934 592", "17 179 869 184"),
    ),
    Question(
        asked="What is the minimum for Llama 3.1 70B at 120k?",
        link="/parallel?model=meta-llama/Llama-3.1-70B&kv=bf16&tensor_parallel=8&lengths=131072",
        shows=("40 GiB", "5 GiB", "131.42 GiB"),
    ),
    Question(
        asked="And for 405B?",
        link=f"/parallel?{LLAMA_405B}&lengths=131072",
        shows=("63 GiB", "8 455 716 864", "755.96 GiB"),
    ),
    Question(
        asked="405B in FP8 on eight 80 GB cards: what is left, and how long a context?",
        link=f"/fit?{LLAMA_405B}&device=h100-sxm-80&measured_weights=57.75GiB&state=4.77GiB"
        "&context_tokens=131072&concurrency=1",
        shows=("57.75 GiB", "4.77 GiB", "79 392"),
    ),
    Question(
        asked="Why are eight tensor ranks so bad for a latent cache?",
        link=f"/fit?{KIMI}&state=46.8GiB",
        shows=("46.8 GiB", "715 072"),
    ),
    Question(
        asked="And what does context parallelism change?",
        link=f"/fit?{KIMI}&decode_context_parallel=8&state=46.803GiB",
        shows=("46.8 GiB", "5 721 088"),
    ),
    Question(
        asked="Data parallelism 8 cannot reach 256k: why?",
        link=f"/parallel?{CODER}&tensor_parallel=1&data_parallel=8&lengths=262144",
        shows=("253 952", "62 GiB", "Data parallelism divides requests"),
    ),
    Question(
        asked="With 48.66 GiB?",
        link=f"/fit?{CODER}&data_parallel=8&concurrency=1&context_tokens=262144&state=48.66GiB",
        shows=("205 728", "62 GiB"),
    ),
    Question(
        asked="With 55.65 GiB?",
        link=f"/fit?{CODER}&data_parallel=8&concurrency=1&context_tokens=262144&state=55.6502GiB",
        shows=("235 296",),
    ),
    Question(
        asked="And with eight tensor ranks?",
        link=f"/parallel?{CODER}&tensor_parallel=8&lengths=262144",
        shows=("7.75 GiB",),
    ),
    Question(
        asked="4.61x at 8192 tokens: does the model handle 4.6 requests, or can it be more?",
        link="/fit?model=meta-llama/Llama-3.1-8B&kv=bf16&context_tokens=8192&concurrency=1"
        "&state=4.61GiB&lengths=512",
        shows=('id="concurrency-fits">4<', 'id="drawn">73<'),
    ),
    Question(
        asked="gpt-oss-120b cannot run on one 80 GB card: what is left and what is needed?",
        link=f"/fit?{GPT_OSS}&engine=vllm&engine_version=0.11.0",
        shows=("1.71 GiB", "4.54 GiB", "65.97 GiB", "It does not fit"),
    ),
    Question(
        asked="What was left of it with the default batch, at nine tenths of the memory?",
        link=f"/fit?{GPT_OSS_DEFAULT}",
        shows=(
            "65.97 GiB",
            "Of the memory 71.26 GiB – 71.27 GiB may be used",
            "−2.14 GiB",
            "Below 0: so much is lacking before any state.",
            "It does not fit",
        ),
    ),
    Question(
        asked="Both runs side by side?",
        link="/compare?c1=" + GPT_OSS_DEFAULT.replace("&", "%26")
        + "&c2=" + f"{GPT_OSS}&engine=vllm&engine_version=0.11.0".replace("&", "%26"),
        shows=("65.97 GiB", "71.26 GiB", "−2.14 GiB", "1.71 GiB", "4 874 895 360"),
    ),
    Question(
        asked="And by the plain formula?",
        link="/?model=openai/gpt-oss-120b&kv=bf16&lengths=128k",
        shows=("9,663,676,416",),
    ),
    Question(
        asked="Can I limit the KV cache? 18.78 GiB are taken for one request of 1024 tokens.",
        link="/fit?model=Qwen/Qwen3-1.7B&kv=bf16&context_tokens=1024&concurrency=1&state=112MiB",
        shows=("112 MiB", "--kv-cache-memory-bytes 117440512", 'id="concurrency-fits">1<'),
    ),
    Question(
        asked="Four times the pool with the same KV type: is it compression?",
        link=f"/fit?{VISION}&batch_tokens=8192",
        shows=("An estimate for 8192 tokens in a batch and 256 sequences", "assumed"),
    ),
    Question(
        asked="What does a smaller batch change?",
        link="/compare?c1=" + f"{VISION}&batch_tokens=8192".replace("&", "%26")
        + "&c2=" + f"{VISION}&batch_tokens=4128".replace("&", "%26"),
        shows=(
            '<tr class="unlike"><th scope="row">Tokens in a batch',
            '<tr class="unlike"><th scope="row">Room for the state',
            '<tr><th scope="row">KV type',
        ),
    ),
    Question(
        asked="The auto-sizer picked 1,048,576 and the server failed: was that foreseeable?",
        link="/fit?model=mistralai/Mistral-Small-4-119B-2603&kv=bf16&context_tokens=1048576"
        "&concurrency=1&state=17.3855GiB",
        shows=("22.5 GiB", "17.39 GiB", "810 208", "23040 B/token"),
    ),
)  # fmt: skip


def test_there_are_questions() -> None:
    """The table is not empty."""
    assert len(QUESTIONS) >= 10


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.asked)
def test_the_link_answers_the_question(client: TestClient, question: Question) -> None:
    """The page at the link shows every figure of the answer."""
    answer = client.get(question.link)
    assert answer.status_code == 200
    shown = re.sub("[\u202f\u00a0]", " ", html.unescape(answer.text))
    for figure in question.shows:
        assert figure in shown
