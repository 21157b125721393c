"""The law of weighted sums of dithers: exactly over the grid, and counted over the dithers of written keys."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from contracts.checks._data import Plan, draw, write
from contracts.checks.request import tail
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert.golden import mp

SEED = 60680
CHANCE = 1e-9
"""How unlikely a count must be, were the bound true, before it is called a violation; the seeds are fixed."""


def _weights(d: int, device: torch.device) -> dict[str, Tensor]:
    """Weights of channels, float64 [d]: the shapes at which a tail is heaviest, lightest and lopsided."""
    at = torch.arange(d, device=device, dtype=torch.float64)
    one, two = torch.zeros(d, device=device, dtype=torch.float64), torch.zeros(d, device=device, dtype=torch.float64)
    one[5], two[3], two[9] = 1.0, 1.0, -1.0
    return {"equal": torch.ones_like(at), "one": one, "two": two, "geometric": 0.5**at * (at < 9), "signs": 1 - 2 * (at % 2)}


@discharges("weighted_sum_mgf.conclusion", "two_sided_tail.conclusion")
def weighted_sums(setting: Setting) -> Outcome:
    """Shares of |sum a_c g_c| > u over written tokens within 2 exp(-u^2/2V), by the exact binomial law; mgf at 50 digits.

    A key that is 0 beside one that is not has code 0 and is served as -s xi, so the store shows the dithers themselves.
    """
    rng = draw(setting, SEED)
    tokens, heads, d = (1 << 17, 8, 64) if setting.full else (64, 8, 64)
    k = torch.zeros(tokens, heads, d, dtype=torch.float16, device=setting.device)
    k[:, :, ::32] = 126.5  # scale 1
    served = write(rng, Plan(d), k, k).served_keys()
    bulk = torch.arange(d, device=setting.device) % 32 != 0
    g = -served[:, :, bulk].flatten(0, 1)  # [T * H, 62]
    if bool((g.abs() > 255 / 512).any()) or bool(((g * 512 + 255) % 2 != 0).any()):
        raise Violation("a key that is 0 is not served as a dither of the grid times the scale")
    grid = [mp.mpf(2 * j - 255) / 512 for j in range(256)]
    cases, least = 0, math.inf
    for name, a in _weights(g.shape[1], setting.device).items():
        variance = float((a * a).sum()) / 12
        total = g @ a
        for share in (0.5, 0.1, 1e-2, 1e-3):
            u = math.sqrt(2 * variance * math.log(2 / share))
            beyond = int((total.abs() > u).sum())
            if beyond > share * len(g) and tail(len(g), beyond, share) < CHANCE:
                raise Violation(f"weights {name}: {beyond} of {len(g)} sums beyond {u}, whose share is at most {share}")
            cases, least = cases + len(g), min(least, share - beyond / len(g))
        for size in (0.5, -40.0):
            average = mp.mpf(1)
            for c, times in Counter(a.tolist()).items():
                average *= (sum(mp.exp(size * c * x) for x in grid) / 256) ** times
            bound = mp.exp(mp.mpf(size) ** 2 * sum(mp.mpf(c) ** 2 for c in a.tolist()) / 24)
            if average > bound:
                raise Violation(f"weights {name}: the average of exp({size} sum a g) is {average}, above {bound}")
            cases += 1
    if least < -0.05:
        raise Violation(f"a share is {-least} above its bound, beyond what chance explains at this size")
    return Outcome(cases, (SEED,), max(least, 0.0), "of the share")
