"""DRY: penalties for tokens that would continue a repetition of the text's last tokens.

The last tokens, back to the one behind the nearest breaker, may have stood before, in the window
that is looked at. The token behind each such place would continue a repetition. Where at least the
allowed number of tokens is repeated, its penalty is multiplier · base^(repeated - allowed), for its
longest repetition. Breakers themselves have no penalty. More than MOST_REPEATED repeated tokens
count as so many, so that the time for a long repetition is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Floats, Ints
from octavo.backends.step import Dry

MOST_REPEATED = 50  # MAX_REPEATED of SamplerOptions
MOST_PENALTY = 1e6  # beyond it floats would lose the logits, and no noise makes up for it


def apply_dry(dry: Dry, tokens: Sequence[int], row: Floats) -> None:
    """Lower the logits of the tokens that would continue a repetition, in place."""
    window = np.array(tokens[-dry.window :], np.int32)
    before, penalty = row.copy(), dry.multiplier
    places = np.arange(len(window) - 1)  # where an earlier occurrence may end
    for repeated in range(1, _num_free(window[-MOST_REPEATED:], dry.breakers) + 1):
        places = places[places >= repeated - 1]
        places = places[window[places - repeated + 1] == window[-repeated]]
        if repeated >= dry.allowed:
            continuing = window[places + 1]
            row[continuing] = before[continuing] - np.float32(min(penalty, MOST_PENALTY))
            penalty *= dry.base
        if not len(places):
            break
    row[[*dry.breakers]] = before[[*dry.breakers]]


def _num_free(window: Ints, breakers: Sequence[int]) -> int:
    """Return the number of tokens behind the last breaker."""
    broken = np.flatnonzero(np.isin(window, breakers))
    return len(window) - 1 - int(broken[-1]) if len(broken) else len(window)
