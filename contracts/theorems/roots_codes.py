"""Corollaries that no proof cites, on rounding, rotations and the dither, each with a check of its own."""

from contracts.model import ByConstruction, Checked, Contract, Output, Same
from contracts.theorems._shared import GRID_SIZE

_SCALE = Same("grid_dither_law.h_scale", how="the same stored scale")
_RU16 = "witcert/kernels/rounding.py:ru16_bits"

CONTRACTS = (
    Contract(
        "rope_residual_half_split",
        "de489b968684d2f4323935e38d88f6e15186be775ba23c9878a43400a0dfb218",
        "abe93be8309c3d7e8befebadb884777cded401e5e27006111096f56a3dd0c978",
        conclusion=Output(
            "witnesses written before and after a rotation by rational angles, half-split pairs: the same bits",
            "corollaries.rotated_residual",
        ),
        hypotheses={
            "h_band": Same("rope_band_unitary.h_band", how="the channels of a pair share a band"),
            "h_unit": Same("rope_band_unitary.h_unit", how="the same rotation"),
        },
    ),
    Contract(
        "rope_residual_adjacent",
        "12c30a014609609305857bb875e01d9c529e5f365c8e0fc23fb6c754afed2c64",
        "28c1230654c7c237a58046acf845843800e1d9a5babb2d68b61d694ad83db73e",
        conclusion=Output(
            "witnesses written before and after a rotation by rational angles, adjacent pairs: the same bits",
            "corollaries.rotated_residual",
        ),
        hypotheses={
            "h_band": Same("rope_band_unitary.h_band", how="the channels of a pair share a band"),
            "h_unit": Same("rope_band_unitary.h_unit", how="the same rotation"),
        },
    ),
    Contract(
        "halfValue_lt",
        "082f23281d20807df2525905505365c462236ae130ec7196c585b3c8ffe6e3e8",
        "897142eb955d8525024d75b6da748489c77418b48da69008ffa21e8f9ee192de",
        conclusion=Output("the values of the binary16 codes as the device reads them", "corollaries.binary16"),
        hypotheses={"h_lt": Checked("corollaries.binary16", how="every code below 0x7C00 and the next one")},
    ),
    Contract(
        "ru16_pred_lt",
        "a802a52e5f26562b8b40cb678b2197b5567d4610d0513d149c41f69e9efeb531",
        "d9de5e36799674cc9ee9baf3829f52e3cc1378368640153957ef967af7ec8176",
        conclusion=Output("the code below that of RU16 is below the input", "corollaries.binary16"),
        hypotheses={
            "h_pos": Same("ru16_ge.h_pos", how="the same inputs"),
            "h_code": ByConstruction(_RU16, "a code below 0x7C00 is below 31744"),
            "h_finite": Same("ru16_ge.h_finite", how="the same codes"),
        },
    ),
    Contract(
        "ru16_of_isHalf",
        "c9e6d9bb6eb78158ed29b6fc4d4f70d5647d1efe66b33d4d103b24422001a7c5",
        "6fb0b8e43340993f9662e9137b954bc1cdbdadfa98b9291325f484158d12b16e",
        conclusion=Output("RU16 keeps every binary16 number", "corollaries.binary16"),
        hypotheses={
            "h_half": Checked("corollaries.binary16", how="the inputs are the values of all 31744 finite codes"),
        },
    ),
    Contract(
        "ru16_mono",
        "9e9db62aa589d5173a5b738e1dd7e3d14d7e76eca88c4d29834ea381681ebd80",
        "1c1fbd5fd16d2e6837c5678d05c0c26261393fb2ded0b9c7824b62b6746d3340",
        conclusion=Output("RU16 of sorted inputs is sorted", "corollaries.binary16"),
        hypotheses={
            "h_pos": Same("ru16_ge.h_pos", how="the same inputs"),
            "h_pos'": Same("ru16_ge.h_pos", how="the same inputs"),
            "h_le": Checked("corollaries.binary16", how="inputs are taken in order"),
            "h_finite": Same("ru16_ge.h_finite", how="inputs up to 65504"),
        },
    ),
    Contract(
        "ru16_ge_field",
        "4dfb103952dada8ca5bfed436ea351e5b474e369330dd79854b623bc97903700",
        "cb49ad5d98a042899fb6d7649a7de15139bf02a0da9a68c8e6e1d35cdaf96069",
        conclusion=Output("RU16 as a number is at least its input", "corollaries.binary16"),
        hypotheses={
            "h_pos": Same("ru16_ge.h_pos", how="the same inputs"),
            "h_finite": Same("ru16_ge.h_finite", how="the same codes"),
            "h_le": ByConstruction(_RU16, "x is the input a / b itself"),
        },
    ),
    Contract(
        "noclip_of_scale",
        "dadd621f42c44582b47d3dba72bc385b3e853f55257ad005f7b98fe53fa19425",
        "dd70f55d530a11655c9eaee5913a7402a5c3c02460c279f61aad68b221803325",
        conclusion=Output("every written key is within 126.5 stored scales of its group", "corollaries.codes"),
        hypotheses={
            "h_limit": ByConstruction(
                "witcert/schemes/dither_int8.py:DIVISOR",
                "the largest code is Q = 127, and 126.5 = Q - 1/2",
            ),
            "h_amax": ByConstruction(
                "witcert/kernels/dither_int8_write/kernel.py:_quantize",
                "amax is the largest magnitude of the group",
            ),
            "h_scale": Checked("corollaries.codes", how="every stored scale times 126.5 is at least the exact amax"),
        },
    ),
    Contract(
        "round_of_computed",
        "0cff99d496dd159336721e1cfcc356ef4788c9a8a72f8844e0dd510ae612965e",
        "0f774a7fc9164cbabd6de078eb5847cc929505d68680aaa1400c1725c2f32166",
        conclusion=Output("every written code is within 1/2 + 2^-16 of the exact x/s + xi", "corollaries.codes"),
        hypotheses={
            "h_round": Checked("corollaries.codes", how="the code is nearest to x/s + xi as IEEE float32 computes it"),
            "h_computed": Checked("corollaries.codes", how="which is within 2^-16 of the exact one"),
        },
    ),
    Contract(
        "grid_dither_average",
        "727b2f3e5b0dba3ba87d95467555f717fee6bb9b5973ba96cfb0b56ef522c706",
        "28c9b86ebe24e0019a6b96597674fc3babca13b724f772a19be4dcbff79b5ab9",
        conclusion=Output(
            "residuals over all 256 bytes are the grid moved by one theta, so every average over them is",
            "corollaries.executable",
        ),
        hypotheses={
            "h_pos": GRID_SIZE,
            "h_scale": _SCALE,
            "h_round": Checked(
                "corollaries.executable",
                how="x/s + xi is exact in float32 for these keys, and the code nearest to it, ties to even",
            ),
        },
    ),
    Contract(
        "grid_mean",
        "66c3a3dda53d9da97911439530a2ac129eddfb8415495d774492d725501be689",
        "31400c464a9cdb52dad5a54e403ce2bb6c8aba997d5010015235ce7b997233f3",
        conclusion=Output("the grid of all 256 bytes has mean 0", "corollaries.executable"),
        hypotheses={"h_pos": GRID_SIZE},
    ),
    Contract(
        "grid_eq_signs",
        "4aa59c171dc617b0e8b2a5421bb36837cd5bbc5f2af6b3a6ade1894ce9898df9",
        "3a942bee50336d7811307e12dc8f629f309e28a502a2a73b3e2b9b92a53aea3c",
        conclusion=Output(
            "the grid value of each byte is the signed powers of two of its bits",
            "corollaries.executable",
        ),
        hypotheses={"h_index": Checked("corollaries.executable", how="all 256 bytes")},
    ),
    Contract(
        "ditherCode_law",
        "0c8975d3875b8626255edbb10d3b4a00bd1463540e0757dd18d218b3c0c72e34",
        "a5f5129423c6e6d00486b8aea32392cad105ff041a96a4d433137dd799987c70",
        conclusion=Output(
            "written codes equal the executable rounding of x/s + xi, ties included",
            "corollaries.executable",
        ),
        hypotheses={"h_pos": GRID_SIZE, "h_scale": _SCALE},
    ),
    Contract(
        "two_sided_tail_zero",
        "66b0ae58618151dfc521a7855b58b02c2ac4e66badbba64960bf2e473dfd800b",
        "600bcc24a1c194d8fd79ff0f30ec678a0c9aed2e0063674472c494781cbbc6b5",
        conclusion=Output("c of both Tier B readings for queries that meet no scale", "corollaries.no_variance"),
        hypotheses={
            "h_nonneg": Same("two_sided_tail.h_nonneg", how="the same radius"),
            "h_variance": Checked(
                "corollaries.no_variance",
                how="the query is 0 outside the outlier channels, whose step is 0",
            ),
        },
    ),
)
