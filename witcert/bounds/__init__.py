"""The mathematics of the meter in PyTorch: every bound as a function of plain tensors, batched over [..., T].

Inputs are float32 or float64 with the tokens in the last dimension; inside, everything is float64; results come back
in the dtype of the inputs (float64 if any input is), rounded toward the safe side. A function that bounds returns a
number that is at least the real number that its formula has at the given floats: see :mod:`witcert.bounds.rounding`
for the derivation of every allowance. The names are those of the theorems in ``formal/``.

* ``accumulators``  one pass over the tokens: log A, log A-, C; merging splits; what a page-in changes
* ``variation``     bounds on the total variation from the accumulators, and the meter
* ``logits``        bounds on the logit errors of one token: bands, half step, scaled Cauchy-Schwarz, dither radii
* ``output``        from total variation to the attention output
* ``truth``         the total variation itself
* ``worst_case``    the largest total variation that given logit bounds allow
"""

from witcert.bounds.accumulators import (
    Accumulators,
    accumulate,
    log_accumulator,
    lse_merge,
    merge_accumulators,
    page_in_bound,
    page_in_log_a,
)
from witcert.bounds.logits import adaptive_radius, band_bound, half_step, scaled_cs, subgaussian_radius
from witcert.bounds.output import output_bound
from witcert.bounds.truth import total_variation, total_variation_of_errors
from witcert.bounds.variation import (
    dispersion_unsound,
    eform,
    meter,
    one_sub_ratio,
    retention,
    sharp,
    tanh_half,
    tanh_rival,
    two_sided,
)
from witcert.bounds.worst_case import worst_case_set, worst_case_tv

__all__ = [
    "Accumulators",
    "accumulate",
    "adaptive_radius",
    "band_bound",
    "dispersion_unsound",
    "eform",
    "half_step",
    "log_accumulator",
    "lse_merge",
    "merge_accumulators",
    "meter",
    "one_sub_ratio",
    "output_bound",
    "page_in_bound",
    "page_in_log_a",
    "retention",
    "scaled_cs",
    "sharp",
    "subgaussian_radius",
    "tanh_half",
    "tanh_rival",
    "total_variation",
    "total_variation_of_errors",
    "two_sided",
    "worst_case_set",
    "worst_case_tv",
]
