"""Checks of a served tensor in exact arithmetic."""

from fractions import Fraction

import torch
from torch import Tensor

from witcert.schemes import Served


def check_step(x: Tensor, served: Served) -> float:
    """Assert ``|x_hat - x| <= step/2`` on every channel, with no tolerance; return the largest ratio of the two.

    The comparison in float64 errs by less than 2^-40 of either side, so cells that it finds well inside are inside; the
    others, and the 40 nearest to the limit, are decided over the rationals.
    """
    assert served.step is not None
    assert bool((served.step >= 0).all())
    residual = (served.x_hat.double() - x.double()).abs().flatten()
    half = served.step.double().flatten() / 2
    claimed = half.isfinite()
    ratio = torch.where(half > 0, residual / half, torch.where(residual == 0, 0.0, torch.inf))[claimed]
    assert not ratio.isnan().any()
    count = max(min(40, ratio.numel()), int((ratio > 1 - 2.0**-40).sum()))
    assert count <= 5000, "too many cells at the limit to decide one by one"
    cells = zip(
        *(t.flatten()[claimed][ratio.topk(count).indices].tolist() for t in (x, served.x_hat, served.step)), strict=True
    )
    worst = Fraction(0)
    for exact, read, step in cells:
        error = abs(Fraction(read) - Fraction(exact))
        assert error <= Fraction(step) / 2, (exact, read, step)
        if step:
            worst = max(worst, 2 * error / Fraction(step))
    return float(worst)
