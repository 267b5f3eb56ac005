"""A GGUF's own name in a llama.cpp log: a label where the layers are listed, else a namesake's."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

LOADER = "llama_model_loader: - kv   1:                               general.name str       = {}"
META = "llm_load_print_meta: general.name     = {}"
INFO = "print_info: general.name     = {}"
# 8,192 cells of Llama 3.1 8B's 131,072 B at 16 bits.
SIZE = (
    "llama_kv_cache_unified: size = 1024.00 MiB (  8192 cells,  32 layers,  1/1 seqs), "
    "K (f16):  512.00 MiB, V (f16):  512.00 MiB"
)
# 40 layers of 4 heads, 64 wide: 40,960 B a token, 320 MiB.
GEOMETRY = (
    "print_info: arch             = llama\n"
    "print_info: n_layer          = 40\n"
    "print_info: n_head           = 32\n"
    "print_info: n_head_kv        = 4\n"
    "print_info: n_embd           = 2048\n"
    "print_info: n_embd_head_k    = 64\n"
    "print_info: n_embd_head_v    = 64\n"
    "print_info: n_ctx_train      = 131072\n"
)
SMALL = (
    "llama_kv_cache_unified: size =  320.00 MiB (  8192 cells,  40 layers,  1/1 seqs), "
    "K (f16):  160.00 MiB, V (f16):  160.00 MiB"
)


def _explain(client: TestClient, log: str, **body: Any) -> Any:
    answer = client.post("/api/v1/engines/explain", json={"log": log, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def _codes(notes: Any) -> set[str]:
    return {note["code"] for note in notes}


@pytest.mark.parametrize("line", [LOADER, META, INFO])
@pytest.mark.parametrize(
    "name", ["Meta Llama 3.1 8B Instruct", "meta-llama_3.1 8b", "Llama-3.1-8B-GGUF"]
)
def test_a_name_leads_to_its_namesake(client: TestClient, line: str, name: str) -> None:
    """Words, size and case find the one shape of that name, and the answer says it was taken."""
    answer = _explain(client, line.format(name) + "\n" + SIZE)
    assert answer["model"] == "meta-llama/Llama-3.1-8B"
    assert answer["figures"][0]["agrees"] is True
    taken = next(n for n in answer["assumptions"] if n["code"] == "model_by_name")
    assert taken["text"] == f"{name} is taken to have the layers of meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize("name", ["Llama", "Meta Llama 3.1", "Models", "Phi 4 Mini"])
def test_a_name_of_none_or_of_several_shapes_leads_nowhere(client: TestClient, name: str) -> None:
    """Without a size, or where namesakes differ, no model is taken; the name is repeated."""
    answer = _explain(client, LOADER.format(name) + "\n" + SIZE)
    assert answer["model"] is None
    assert _codes(answer["missing"]) == {"unknown_model"}
    assert name in answer["missing"][0]["text"]


@pytest.mark.parametrize("name", ["Meta Llama 3.1 8B Instruct", "Mine"])
def test_listed_layers_go_before_a_name(client: TestClient, name: str) -> None:
    """The geometry in the log is the model, and its name no more than a label."""
    answer = _explain(client, f"{INFO.format(name)}\n{GEOMETRY}{SMALL}")
    assert answer["model"] == name
    assert answer["figures"][0]["agrees"] is True
    assert "model_by_name" not in _codes(answer["assumptions"])


def test_a_request_goes_before_the_log(client: TestClient) -> None:
    """A model that is given is taken, whatever the file calls itself."""
    answer = _explain(
        client, f"{INFO.format('Mine')}\n{SIZE}", model={"id": "meta-llama/Llama-3.1-8B"}
    )
    assert answer["model"] == "meta-llama/Llama-3.1-8B"


def test_a_kind_of_model_from_the_list_and_layers_from_the_geometry(client: TestClient) -> None:
    """A paste that cuts the list short after the architecture still has its geometry lines."""
    geometry = GEOMETRY.replace("print_info: arch             = llama\n", "")
    cut = "llama_model_loader: - kv   0:  general.architecture str  = llama\n"
    answer = _explain(client, cut + geometry + SMALL)
    assert answer["figures"][0]["agrees"] is True
    assert _codes(answer["missing"]) == set()
