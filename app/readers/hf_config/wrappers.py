"""Model types that wrap a language model: which part of the config it is, and what type it has.

Image, audio and video parts keep nothing from token to token: what they make becomes positions of
the language model. Transformers' own wrappers are in defaults.json (`parts`); these come with code
of their own. A type in neither is unknown, whatever it wraps.
"""

from __future__ import annotations

from collections.abc import Mapping

# Names under which wrappers keep the language model, in the order they are looked for.
PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")

# Types of remote code, with the language model's type where the file may leave it out.
REMOTE: Mapping[str, str] = {
    "internvl_chat": "", "multi_modality": "llama", "deepseek_vl_v2": "deepseek_v2",
    "kimi_k3": "kimi_linear", "kimi_vl": "deepseek_v3", "NVLM_D": "qwen2", "h2ovl_chat": "",
    "ovis": "", "ovis2_5": "", "step3_vl": "", "glm4v_chat": "", "skywork_chat": "",
    "nemotron_vl": "", "Llama_Nemotron_Nano_VL": "", "eagle_chat": "", "keye_vl_1_5": "qwen3",
    "llava_llama": "llava", "llava_mistral": "mistral", "llava_qwen": "qwen2",
    "ernie4_5_vl": "ernie4_5_vl_moe_text", "minimax_vl_01": "minimax_text_01",
}  # fmt: skip
