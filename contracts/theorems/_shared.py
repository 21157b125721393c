"""Discharges that several theorems share, and the places in the sources that they name."""

from contracts.model import ByConstruction, Derived

STAGE1 = "witcert/kernels/decode/stage1.py:stage1_kernel"
STAGE2 = "witcert/kernels/decode/stage2.py:stage2_kernel"
WRITE = "witcert/kernels/dither_int8_write/kernel.py:_quantize"

# The weights. p is the softmax of the exact logits, pt that of the logits that the kernel computes; both are softmaxes
# of real numbers, so these are lemmas. That the kernel's own weights are rounded is gap C.
WEIGHT_NONNEG = Derived("softmax_nonneg", how="pt is the softmax of the computed logits, whose terms are exponentials")
WEIGHT_SUM = Derived("softmax_sum_one", how="pt is the softmax of the computed logits of a cell that has a token")
WEIGHT_EXACT = Derived(
    "softmax_exact",
    how="p is the softmax of the exact logits l and eps = l_hat - l: then p is pt exp(-eps) / Z",
)

# The bound of a token.
TOKEN_BOUND = (
    Derived(
        "arith_fold",
        how="exact store: c = sm sum_b q_b w_b with the witness that pays for residual and dot product",
    ),
    Derived(
        "half_step",
        how="packed store, half-step meter: c = sm sum |q_c| s_c / 2, plus the arithmetic of the logit",
    ),
    Derived(
        "adaptive_radius",
        how="packed store, Tier B: the radius, plus bias and arithmetic, outside the event that it may fail",
    ),
)
TOKEN_MAX = ByConstruction(
    STAGE2,
    "C is the maximum of all token bounds: over tiles and warps in stage 1, over splits here (cmax_merge)",
)

# Norms of bands are numbers of the theorem, not of the kernel: the kernel's are compared with them.
NORM_NONNEG = ByConstruction(
    "witcert/witness.py:band_norms",
    "a Euclidean norm, the root of a sum of squares, is not negative",
)
NORM_IS = ByConstruction(
    "witcert/witness.py:band_norms",
    "the theorem's number is the real norm of the band, by definition",
)
BAND_INDEX = ByConstruction(
    "witcert/witness.py:Bands.index",
    "unit * bands // units is below bands, since unit is below units",
)

GRID_SIZE = ByConstruction("witcert/schemes/dither_int8.py:LEVELS", "an 8-bit dither has n = 256 values")
