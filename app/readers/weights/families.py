"""Every decoder family by model type."""

from __future__ import annotations

from app.readers.weights.decoder import Decoder
from app.readers.weights.dense import DENSE, SAME
from app.readers.weights.gemma import GEMMA
from app.readers.weights.hybrid import HYBRID, SAME_HYBRID
from app.readers.weights.latent import LATENT, SAME_LATENT
from app.readers.weights.moe import MOE, SAME_MOE
from app.readers.weights.own_code import OWN_CODE, SAME_OWN_CODE
from app.readers.weights.specials import SPECIALS

_ROWS = {**DENSE, **MOE, **LATENT, **HYBRID, **GEMMA, **SPECIALS, **OWN_CODE}
_SAME = {**SAME, **SAME_MOE, **SAME_LATENT, **SAME_HYBRID, **SAME_OWN_CODE}
DECODERS: dict[str, Decoder] = {
    **_ROWS,
    **{name: _ROWS[kin] for name, kin in _SAME.items()},
}
