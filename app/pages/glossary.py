"""`/glossary`: the field's words in both languages, and what they mean here."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.pages.render import render
from app.web.marks import mark

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Term:
    """A word in English and Chinese; the definition is translated when it is shown."""

    english: str
    chinese: str
    meaning: str

    @property
    def anchor(self) -> str:
        """Return the name under which a link finds the word."""
        return self.english.replace(" ", "-").lower()


@dataclass(frozen=True, slots=True)
class Group:
    """Words that belong together."""

    title: str
    terms: tuple[Term, ...]


GLOSSARY = (
    Group(
        mark("What is kept"),
        (
            Term(
                "KV cache",
                "KV 缓存",
                mark(
                    "Keys and values of positions already computed, kept for each layer so that "
                    "later queries can read them."
                ),
            ),
            Term(
                "state",
                "状态",
                mark(
                    "All that a model keeps of a sequence between steps: keys and values, "
                    "latents, recurrent states."
                ),
            ),
            Term(
                "position",
                "位置",
                mark(
                    "A token that has gone through the model. The token sampled last has not, "
                    "and has no state yet."
                ),
            ),
            Term(
                "KV head",
                "KV head（KV 头）",
                mark(
                    "One set of keys and values of a layer. Grouped queries have fewer KV heads "
                    "than query heads."
                ),
            ),
            Term(
                "grouped-query attention",
                "分组查询注意力 (GQA)",
                mark(
                    "Several query heads read the same KV head; with one KV head for all it is "
                    "multi-query attention (MQA)."
                ),
            ),
            Term(
                "full attention",
                "全注意力",
                mark("Every query reads every earlier position, so every position is kept."),
            ),
            Term(
                "sliding window",
                "滑动窗口",
                mark(
                    "A query sees the newest w positions, itself included; a layer then keeps w "
                    "− 1 earlier ones."
                ),
            ),
            Term(
                "chunked attention",
                "分块注意力",
                mark("A query sees the positions since the last chunk boundary."),
            ),
            Term(
                "latent attention",
                "潜在注意力 (MLA)",
                mark(
                    "One compressed vector a position serves as key and value of all heads; it "
                    "has no heads to divide among ranks."
                ),
            ),
            Term(
                "recurrent state",
                "循环状态",
                mark(
                    "A state of constant size that each token overwrites, as in Mamba or gated "
                    "delta layers."
                ),
            ),
            Term(
                "cross attention",
                "交叉注意力",
                mark(
                    "Queries of a decoder read keys and values of an encoder's output, whose "
                    "length does not grow."
                ),
            ),
            Term(
                "fixed part",
                "固定部分",
                mark("Bytes of a sequence that do not depend on its length."),
            ),
            Term(
                "slope",
                "每 token 增量",
                mark("Bytes that one more token adds, once windows are full."),
            ),
            Term(
                "context length",
                "上下文长度",
                mark("How many positions a sequence has, or may have at most."),
            ),
        ),
    ),
    Group(
        mark("Three ledgers"),
        (
            Term(
                "effective",
                "有效状态",
                mark("Bytes of positions that hold state."),
            ),
            Term(
                "padded",
                "按最长补齐",
                mark("Bytes when every request takes the room of the longest."),
            ),
            Term(
                "paged",
                "分页分配",
                mark("Bytes of whole blocks that are allocated, filled or not."),
            ),
            Term(
                "block",
                "块",
                mark(
                    "A fixed number of positions that are allocated together; engines also say "
                    "page."
                ),
            ),
            Term(
                "tail waste",
                "尾部浪费",
                mark(
                    "Empty positions of each request's last block: less than one block a request."
                ),
            ),
            Term(
                "not counted",
                "未计入",
                mark("What a figure leaves out, said beside it."),
            ),
            Term(
                "assumed",
                "假设",
                mark("What was taken for granted to arrive at a figure."),
            ),
            Term(
                "measured",
                "实测",
                mark("What a run showed, as opposed to what was computed."),
            ),
            Term(
                "printed",
                "引擎打印值",
                mark("What an engine writes into its log, in its own units and rounding."),
            ),
            Term(
                "binary units",
                "二进制单位",
                mark("KiB, MiB and GiB are powers of 1024; KB, MB and GB powers of 1000."),
            ),
        ),
    ),
    Group(
        mark("Sharing and reuse"),
        (
            Term(
                "prefix",
                "前缀",
                mark(
                    "Tokens at the start of a sequence; causal attention lets their state "
                    "depend on nothing later."
                ),
            ),
            Term(
                "block table",
                "块表",
                mark("A sequence's list of physical blocks, in the order of its positions."),
            ),
            Term(
                "unique block",
                "唯一物理块",
                mark("A block that is in memory once, in however many tables it stands."),
            ),
            Term(
                "reference count",
                "引用计数",
                mark("How many holders a block has. It says nothing of what the block contains."),
            ),
            Term(
                "copy on write",
                "写时复制",
                mark("A shared block is copied before one of its holders writes into it."),
            ),
            Term(
                "chained hash",
                "链式哈希",
                mark(
                    "A block's hash covers its parent's hash and its own tokens, and so the "
                    "whole prefix."
                ),
            ),
            Term(
                "identity",
                "计算身份",
                mark(
                    "All that must be equal for state to mean the same: weights, adapter, "
                    "tokens, positions, format, images, salt."
                ),
            ),
            Term(
                "salt",
                "盐值",
                mark("A value in the identity that keeps the caches of different users apart."),
            ),
            Term(
                "eviction",
                "淘汰",
                mark(
                    "Giving a block's place to another. Capacity says how many blocks fit, not "
                    "which to keep."
                ),
            ),
            Term(
                "hit rate",
                "命中率",
                mark(
                    "The share of looked-up blocks that were found. It is neither work saved "
                    "nor memory saved."
                ),
            ),
        ),
    ),
    Group(
        mark("Work and reading"),
        (
            Term(
                "prefill",
                "预填充",
                mark("The pass over a prompt; it computes the state of all its positions."),
            ),
            Term(
                "decode",
                "解码",
                mark("A pass that puts one more token of each sequence through the model."),
            ),
            Term(
                "multiply–accumulate",
                "乘加 (MAC)",
                mark("One product added to a sum; two floating-point operations."),
            ),
            Term(
                "projections",
                "投影",
                mark(
                    "Products of a token with the model's matrices: queries, keys, values, "
                    "output, MLP."
                ),
            ),
            Term(
                "arithmetic intensity",
                "算术强度",
                mark(
                    "Operations for each byte read. A decode step's is low, so that bandwidth "
                    "bounds it."
                ),
            ),
            Term(
                "bandwidth",
                "显存带宽",
                mark("Bytes that a device reads from its memory in a second."),
            ),
            Term(
                "causal mask",
                "因果掩码",
                mark(
                    "A query sees no position after its own. Several new tokens need it; a "
                    "single one has nothing to hide."
                ),
            ),
            Term(
                "left padding",
                "左侧补齐",
                mark(
                    "Filling a short sequence at its start so that a batch is rectangular; "
                    "without a mask the filling is attended to."
                ),
            ),
            Term(
                "attention sink",
                "注意力汇点",
                mark(
                    "A first position that draws much of every query's weight, and so must not "
                    "be evicted."
                ),
            ),
            Term(
                "quantised cache",
                "量化缓存",
                mark(
                    "Keys and values kept in fewer bits, with scales that take room, too, at "
                    "the price of an error in the output."
                ),
            ),
            Term(
                "concurrency",
                "并发",
                mark("How many sequences have their state in memory at once."),
            ),
        ),
    ),
    Group(
        mark("Several devices"),
        (
            Term(
                "rank",
                "rank",
                mark("One process of a parallel run, usually with one device."),
            ),
            Term(
                "tensor parallel",
                "张量并行",
                mark("Each rank holds a part of every layer: some of its heads and columns."),
            ),
            Term(
                "pipeline stage",
                "流水线阶段",
                mark("Consecutive layers that one group of ranks holds."),
            ),
            Term(
                "replicated heads",
                "复制的头",
                mark(
                    "KV heads that more than one rank has to hold, since there are more ranks "
                    "than heads."
                ),
            ),
            Term(
                "context parallel",
                "上下文并行",
                mark("Each rank holds some of the positions of a sequence."),
            ),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryPage:
    """Everything that the template of `/glossary` may name."""

    groups: tuple[Group, ...]


@router.get("/glossary", response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the words."""
    return render(request, "glossary.html", GlossaryPage(groups=GLOSSARY))
