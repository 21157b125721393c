"""The bound of one token from what is stored: Bands, Rope, Ru16."""

from contracts.model import Assumed, ByConstruction, Checked, Contract, Output
from contracts.theorems._shared import BAND_INDEX, NORM_IS, NORM_NONNEG

_WITNESS_NONNEG = ByConstruction(
    "witcert/kernels/witness_write/kernel.py:band_witness",
    "a root times a positive factor, rounded up to a code without a sign"
)
_DYADIC = ByConstruction(
    "witcert/kernels/rounding.py:ru16_bits",
    "a nonnegative finite float32 is a / b with b = 2^149 or a smaller power of two"
)
_FINITE = ByConstruction(
    "witcert/kernels/rounding.py:ru16_bits",
    "the code is below 0x7C00; from there on it is +infinity, which the meter reads as 1"
)

CONTRACTS = (
    Contract(
        "band_cauchy_schwarz",
        "bb8478bab70d63ece22d250e1b4755b36f161f65a7d77682cccf2a07d87299c4",
        "e99cec7ae6c8b1eae9d1aee8f956642b08c4589a1939b3cbf6af4f688c99c910",
        conclusion=Output(
            "c of decode and extend on one token: at least |sm q . r| for adversarial queries",
            "crosscheck.four_ways", "witness.bound_of_one_token",
        ),
        hypotheses={
            "h_band": (
                BAND_INDEX,
                Checked(
                    "witness.query_side",
                    how="a token whose witness is 1 in one band answers to the channels of that band",
                ),
            ),
            "h_nq": NORM_NONNEG,
            "h_nr": NORM_NONNEG,
            "h_nq_sq": Checked(
                "witness.query_side",
                how="the exact norm, over the rationals, of the channels that the kernel takes for the band",
            ),
            "h_nr_sq": Checked(
                "witness.written_norms",
                how="the exact norm, over the rationals, of the residual of the stored bits",
            ),
        },
    ),
    Contract(
        "witness_mono",
        "cb7b75a277d0663787e465c1ddf5dce81599ee3cd2403d8545bcd924cd761420",
        "1d0cac1f4bc42e2ac73f368583ebaf680dc75e0742805d67290ea32f834efaaa",
        conclusion=Output(
            "c of decode and extend, from stored witnesses and rounded query norms",
            "witness.bound_of_one_token",
        ),
        hypotheses={
            "h_band": BAND_INDEX,
            "h_nq": NORM_NONNEG,
            "h_nr": NORM_NONNEG,
            "h_nq_sq": NORM_IS,
            "h_nr_sq": NORM_IS,
            "h_query": Checked(
                "witness.query_side",
                how="the query's band norm as the kernel rounds it is at least the exact one",
            ),
            "h_witness": Checked(
                "witness.written_norms",
                how="every written witness is at least the exact norm of its band",
            ),
        },
    ),
    Contract(
        "query_cast_term",
        "57a7d20e08c64d0a3f038c7cf9d194cac30b10f631f424722d67b2cf7409b037",
        "94b03e76ae790a4e65af7d55d6e03f21f6296e0a0a66727a8a6b4bfd9152eea6",
        conclusion=Output(
            "stored witnesses plus the cast term, for attention that reads q as fp8 e4m3",
            "witness.cast_query",
        ),
        hypotheses={
            "h_band": BAND_INDEX,
            "h_nq": NORM_NONNEG,
            "h_nr": NORM_NONNEG,
            "h_ndq": NORM_NONNEG,
            "h_nk": NORM_NONNEG,
            "h_nq_sq": ByConstruction("witcert/witness.py:query_norms", "the norm of q, rounded up"),
            "h_nr_sq": ByConstruction(
                "witcert/witness.py:witness",
                "the stored witness is at least the norm of the residual",
            ),
            "h_ndq_sq": ByConstruction(
                "witcert/witness.py:band_norms",
                "the norm of q - q', rounded up by the backend that casts",
            ),
            "h_nk_sq": ByConstruction("witcert/witness.py:band_norms", "the norm of the served key, rounded up"),
        },
    ),
    Contract(
        "arith_fold",
        "1d56672e3fb50b2f84c4eb1133f17ba1f3d8c78395998692543f4c16a25db89f",
        "1eef96e675b8f5ce4d2a94e35e87d7cc13bc1c547b80df25bfdc3646afdc1341",
        conclusion=Output(
            "c of decode and extend against the error of the computed logit, worst rounding included",
            "witness.bound_of_one_token",
        ),
        hypotheses={
            "h_band": BAND_INDEX,
            "h_gamma": ByConstruction(
                "witcert/kernels/witness_write/budget.py:write_factors",
                "a gamma outside [0, 1) is refused",
            ),
            "h_nq": NORM_NONNEG,
            "h_w": _WITNESS_NONNEG,
            "h_nk": NORM_NONNEG,
            "h_nq_sq": ByConstruction(
                "witcert/kernels/decode/stage1.py:_query_bands",
                "RU16 of the computed norm times 1 + 2^-16 (witness_mono.h_query is checked)"
            ),
            "h_w_sq": Checked(
                "witness.written_norms",
                how="every written witness covers the exact norm of the residual",
            ),
            "h_nk_sq": Checked("witness.written_norms", how="and gamma times the exact norm of the served key"),
            "h_arith": (
                Checked(
                    "meter.one_token",
                    how="the computed logit is within gamma sum |q_c k_c| of the exact dot product",
                ),
                Assumed(
                    "O",
                    "how a matrix instruction accumulates cannot be exhausted; the constant covers what is documented",
                ),
            ),
        },
    ),
    Contract(
        "half_step",
        "23b10339b18fd2fb24abcd6d843d3c67530451727ad21b257c0b94877d7eafa7",
        "6135fdbe1ad2984ea71ea8560984793842f5b18b684ad6d49d1d1f4ed371d0d4",
        conclusion=Output(
            "c of the half-step meter, from stored scales alone, for adversarial queries",
            "crosscheck.four_ways", "int8.deterministic_bounds",
        ),
        hypotheses={
            "h_step": Checked(
                "int8.residuals",
                how="|k_hat - k| <= s/2 on every written code, s the stored scale times 1 + 2^-14",
            ),
        },
    ),
    Contract(
        "scaled_cs",
        "7461fd2b0ec2c82fc2080515bd3570e94f46f122c58edddc843195e529bd64ce",
        "961cbaecb34fb58f3f3df221d67e2fbc5aed2921edc6f643f54d65113787edd9",
        conclusion=Output(
            "stored scales and residuals of written keys: the scaled form against |q . r|",
            "int8.deterministic_bounds",
        ),
        hypotheses={
            "h_zero": Checked("int8.residuals", how="where the stored scale is 0 the served key is the exact one"),
        },
    ),
    Contract(
        "rope_band_unitary",
        "34be4756045c17369c72dab9c536c0bfd2c36a07b6869e8053bd6330382fb215",
        "ba81518aaa334fd129489e540ed76fc9d5bb3f71257562d6c7d3b50043722fac",
        conclusion=Output(
            "witnesses written before and after a rotation by rational angles: the same bits",
            "witness.rotation",
        ),
        hypotheses={
            "h_layout": Checked("witness.layout", how="the pairs of both layouts are all channels, each once"),
            "h_band": Checked("witness.layout", how="the channels of a pair share a band"),
            "h_unit": (
                ByConstruction(
                    "witcert/kernels/witness_write/launch.py:witness_write",
                    "k and k_hat are both taken after RoPE, so no rotation in floats comes between witness and query",
                ),
                Assumed("R", "an engine that rotates after the witness was taken rotates by rounded sines and cosines"),
            ),
            "h_fst": ByConstruction(
                "witcert/witness.py:Bands",
                "the theorem's y is the rotated x, by definition of RoPE on its pairs",
            ),
            "h_snd": ByConstruction(
                "witcert/witness.py:Bands",
                "the theorem's y is the rotated x, by definition of RoPE on its pairs",
            ),
        },
    ),
    Contract(
        "ru16_ge",
        "3d73baadb3e7335c52ece70b01cbe1bd99d0fed11a9ad5f7fcdebdeadc0bed5a",
        "27ab15a679d5ff164a082f4f7e6ae14d6eb86291364f4a5efdc597e0382a90cd",
        conclusion=Output(
            "the code of the kernels' and the package's RU16: at least the input",
            "rounding.ru16_exhaustive",
        ),
        hypotheses={"h_pos": _DYADIC, "h_finite": _FINITE},
    ),
    Contract(
        "ru16_lt_next",
        "a6cfa343cb29d64e1230a4d1fb71e1c3f1e235068549eb9d9a3a0b5a7709d66e",
        "513900b1f7d00d2fc76bc83e562201e81b4603711cbfa6676d09ba63928bdca5",
        conclusion=Output("the code of RU16: no smaller binary16 number would do", "rounding.ru16_exhaustive"),
        hypotheses={
            "h_pos": _DYADIC,
            "h_finite": _FINITE,
            "h_half": ByConstruction(
                "witcert/kernels/rounding.py:ru16_bits",
                "v ranges over the values of the codes below 0x7C00",
            ),
            "h_lt": ByConstruction(
                "witcert/kernels/rounding.py:ru16_bits",
                "v is any smaller value; the next code down is the largest",
            ),
        },
    ),
    Contract(
        "ru16_overflow",
        "e3451d729cddc02f4f621f9223089ce0b1362358d436407b159e7d4eb2d47a35",
        "daf8f0a3c1f3b0769d425324b01c4fbea67a6c04380d809a5373aec2c3ddb93c",
        conclusion=Output("RU16 gives +infinity exactly above 65504", "rounding.ru16_exhaustive"),
        hypotheses={"h_pos": _DYADIC},
    ),
)
