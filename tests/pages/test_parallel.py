"""The page of ranks shows the API's figures; the address is the calculation."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

UNIFORM = {"source": "numbers", "layers": 32, "kv_heads": 8, "head_dim": 128, "kv": "bf16"}


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/parallel?{urlencode(query)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_grid_names_heads_and_copies(client: TestClient) -> None:
    """Each cell says which heads it holds, and which copy of them."""
    text = page(client, **UNIFORM, tensor_parallel=16, pipeline_parallel=2)
    assert "Stage 1, layers 16–31" in text
    assert '<td class="copy">head 0, copy 2 of 2</td>' in text
    split = page(client, **UNIFORM, tensor_parallel=4)
    assert "<td>heads 2–3</td>" in split
    interleaved = page(
        client, model="deepseek-ai/DeepSeek-V3", tensor_parallel=8, decode_context_parallel=8
    )
    assert "head 0, positions 3 of every 8" in interleaved


def test_figures_are_exact(client: TestClient) -> None:
    """The three figures carry their exact integers."""
    text = page(client, **UNIFORM, tensor_parallel=16, lengths="131072")
    single = 131_072 * 131_072
    for name, value in (("largest", single // 8), ("total", 2 * single), ("replicated", single)):
        assert f'data-copy="{value}"' in text.partition(f'id="{name}"')[2][:300]


def test_many_ranks_are_cut_short(client: TestClient) -> None:
    """Of thousands of ranks the page shows the first, and says how many are left out."""
    text = page(client, source="numbers", layers=64, kv_heads=1, head_dim=1, tensor_parallel=64,
                pipeline_parallel=64)  # fmt: skip
    assert "0 more tensor ranks and 32 more stages" in text


def test_a_stage_without_heads(client: TestClient) -> None:
    """A recurrent stage is said to hold no heads."""
    assert "no heads" in page(client, model="state-spaces/mamba-2.8b-hf", tensor_parallel=1)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"tensor_parallel": "0"}, "tensor_parallel"),
        ({"tensor_parallel": "7"}, "tensor_parallel"),
        ({"pipeline_parallel": "64"}, "pipeline_parallel"),
        ({"tensor_parallel": "<b>"}, "tensor_parallel"),
        ({"layers_per_stage": "16, x", "pipeline_parallel": "2"}, "layers_per_stage"),
        ({"lengths": "oops"}, "lengths"),
        ({"block_size": "0"}, "block_size"),
    ],
)
def test_mistakes_become_sentences(client: TestClient, query: dict[str, str], field: str) -> None:
    """A mistake is a sentence with its field's name, escaped; htmx gets it with status 200."""
    address = f"/parallel?{urlencode({**UNIFORM, **query})}"
    answer = client.get(address)
    assert answer.status_code == 422
    assert f'id="error-{field}"' in answer.text
    assert "<b>" not in answer.text
    part = client.get(address, headers={"HX-Request": "true"})
    assert part.status_code == 200
    assert part.headers["HX-Retarget"] == "#hints"


def test_the_canonical_address(client: TestClient) -> None:
    """A partial answer tells htmx the shortest address of the calculation."""
    part = client.get(
        f"/parallel?{urlencode({**UNIFORM, 'tensor_parallel': 4, 'data_parallel': 1})}",
        headers={"HX-Request": "true"},
    )
    assert part.headers["HX-Replace-Url"] == (
        "/parallel?source=numbers&layers=32&kv_heads=8&head_dim=128&kv=bf16&tensor_parallel=4"
    )


def test_exports(client: TestClient) -> None:
    """JSON is the API's answer; CSV has one row a rank; mistakes are refused."""
    query = urlencode({**UNIFORM, "tensor_parallel": 4, "lengths": "2×100", "weights": ""})
    body = {"model": {"layers": 32, "kv_heads": 8, "head_dim": 128}, "kv_dtype": "bf16",
            "lengths": [{"length": 100, "count": 2}], "tensor_parallel": 4}  # fmt: skip
    asked = client.post("/api/v1/parallel", json=body).json()
    assert client.get(f"/export/parallel.json?{query}").json() == asked
    rows = client.get(f"/export/parallel.csv?{query}").text.splitlines()
    assert rows[0].startswith("first_layer,last_layer,kv_heads,pipeline_rank")
    assert rows[2].startswith("0,31,2 3,0,1,1,32768,")
    assert len(rows) == 5
    for kind in ("json", "csv"):
        assert client.get(f"/export/parallel.{kind}?lengths=oops").status_code == 422
