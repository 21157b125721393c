"""The dither and its law: Factorial, CoshSinh, GridLaw, GridMgf, Tail, TokenTail, AdaptiveRadius."""

from contracts.model import Assumed, ByConstruction, Checked, Cited, Contract, Output
from contracts.theorems._shared import GRID_SIZE, WRITE

_DRAWS = Assumed("E", "that an outcome is uniform over all, its coordinates independent: Philox instead of coin flips")

CONTRACTS = (
    Contract(
        "factorial_growth",
        "a69b37210678aee248f9ddeff3b57f56a331ce88cfe47037b98839f57f6f9790",
        "729e9b00c0a32a0a4a14bcd43c75720f85996c140a0cb215698fa1a4e67d12b4",
        conclusion=Output(
            "no output rests on it (it is kept for citation): the statement itself, over the integers",
            "corollaries.statements",
        ),
    ),
    Contract(
        "cosh_le_exp_half_sq",
        "dc318efa064aebf426985dc1c07644939b8a0c68000faa27bcb9c7de8699bee4",
        "3afec772a7cd22b1ed4aaa1352b45a13f16f38ac41631c8afb7f41c949566deb",
        conclusion=Cited("sinh_double_pow", "grid_mgf"),
    ),
    Contract(
        "sinh_le",
        "8350c445bc35c06c7e4f1ddf1aff57d14f3aca78c66bc42f64cc25e3af250add",
        "4b9b8e6b2dffe10f5225be33e241fbe17f46777c733c6c69fd4a954f1a008a7c",
        conclusion=Output(
            "no output rests on it (it is kept for citation): the statement itself, at 50 digits",
            "corollaries.statements",
        ),
        hypotheses={"h_nonneg": Checked("corollaries.statements", how="the statement is evaluated for x >= 0 only")},
    ),
    Contract(
        "grid_dither_law",
        "7fe582d2422779ab32ca82cc2f97c75c27820e9214ad61cd2edc7d715bffedff",
        "63654feb5ebc859312808b255c8b8c49adad97bb2878c78a7cd925b5ff91522b",
        conclusion=Output(
            "residuals of written keys: as the byte runs over its 256 values, the grid shifted by one theta",
            "dither.grid_law",
        ),
        hypotheses={
            "h_pos": GRID_SIZE,
            "h_scale": ByConstruction(WRITE, "a group has scale 0 only if all of it is 0, and is then served exactly"),
            "h_round": Checked(
                "int8.codes",
                how="every code is within 1/2 of x/s + xi, and 2^-16 for the rounding of x/s + xi itself (slack)",
            ),
        },
    ),
    Contract(
        "grid_mgf",
        "6e4301a1a464f2478f37c07fc9dcdeb590e4159d2b2c022e62602583083928b2",
        "61dd6548b954e052d70be295402d754d76ea3f536ef4ed554f765bc471410c98",
        conclusion=Output(
            "the 256 dithers that the kernels use: the average of exp(l g) against its bound, at 50 digits",
            "dither.grid_law",
        ),
    ),
    Contract(
        "weighted_sum_mgf",
        "887b997605f8587fb8ed1f585f45dbac9b67a07bd44ec10a82a3ce2c98668eb9",
        "a27224acd8fdce48006cbb27950cfa989ab2326a252f258865cf54b3c840a75d",
        conclusion=Output(
            "weighted sums of the dithers of written tokens, over many tokens, against the bound",
            "tails.weighted_sums",
        ),
        hypotheses={
            "h_coord": Checked("dither.streams", how="every channel has a byte of a draw that is made"),
            "h_inj": (Checked("dither.counters", how="no two channels of a token share a byte of a draw"), _DRAWS),
        },
    ),
    Contract(
        "two_sided_tail",
        "d2bd44c4c607fa8a9fd3bc579f0fe878e8a0b14777aec38b987bb7e204c63039",
        "674bf9f531087c65506008997e8aa095438c33ec129c3a2696bb2f69c41e7518",
        conclusion=Output(
            "shares of weighted sums of the dithers of written tokens beyond u, against the bound",
            "tails.weighted_sums",
        ),
        hypotheses={
            "h_nonneg": ByConstruction(
                "witcert/kernels/decode/budget.py:subgaussian_factor",
                "u is a root times a root",
            ),
            "h_variance": ByConstruction(
                "witcert/kernels/decode/budget.py:TINY",
                "where no scale meets the query the error is 0 (two_sided_tail_zero), below TINY"
            ),
            "h_coord": Checked("dither.streams", how="every channel has a byte of a draw that is made"),
            "h_inj": (Checked("dither.counters", how="no two channels of a token share a byte of a draw"), _DRAWS),
        },
    ),
    Contract(
        "adaptive_radius_det",
        "65aa2d41683c0d029f24de1ba665240b31d67247e5ff0faee3c16f5ca4604adc",
        "8ca74b8be26e8f940dd935c772d6f7cbed11c53d4ecd22c37eb8ba18c794fe25",
        conclusion=Output(
            "c of the adaptive reading where kappa^2 = 3 d, for queries that see the dither",
            "int8.deterministic_bounds",
        ),
        hypotheses={
            "h_half": Checked(
                "int8.residuals",
                how="every residual is within half a step of the stored scale, 1 + 2^-14 included",
            ),
        },
    ),
    Contract(
        "adaptive_radius",
        "a498704f8fd819daf4fbfdc7878e438d8b14fdfdaabcf84ec641962f4ec14594",
        "681ed5b955578af742cc3cd2fa4391abef1b07781d14d15489721a87fac430d4",
        conclusion=Output(
            "c of the adaptive reading under an adversary who sees the dither: no failure, where the other radius fails",
            "request.adaptive",
        ),
        hypotheses={
            "h_coord": Checked("dither.streams", how="every channel has a byte of a draw that is made"),
            "h_inj": (Checked("dither.counters", how="no two channels of a token share a byte of a draw"), _DRAWS),
            "h_radius": (
                ByConstruction(
                    "witcert/kernels/decode/budget.py:kappa",
                    "kappa^2 = d + sqrt(9 d log(1/delta) / 2), rounded up",
                ),
                Checked("request.adaptive", how="the bound that is read is at least kappa times the exact root"),
            ),
        },
    ),
)
