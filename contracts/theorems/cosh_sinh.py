"""Contracts of the lemmas of ``WitCert.Core.CoshSinh``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("exp_two_mul", "80d64ba6523ce971", "4d68a815536d1770", "", "exp_four_mul cosh_two_mul sinh_two_mul"),
    lemma("exp_four_mul", "1accc5338a483788", "b5f5bf8c34f9512a", "", "cosh_double"),
    lemma("cosh_neg", "6421ac3d151e507d", "b76ecc6aa3ec3f74", "", "cosh_le_exp_half_sq"),
    lemma("cosh_pos", "3ec2684dc3268c7c", "b9d2c8173d0a5bb8", "", "cosh_double sinh_double_pow grid_mgf"),
    lemma("cosh_sq_sub_sinh_sq", "5f4fcb15f8a1bd69", "8acc25147e51a650", "", "cosh_small"),
    lemma("cosh_two_mul", "ab6b1b76b7d3644e", "a226145c77670c98", "", "cosh_small cosh_double"),
    lemma("sinh_two_mul", "66d81fa0ea91945e", "f50bf711603a07ae", "", "sinh_double_pow"),
    lemma("sinh_nonneg", "2f9f3714f8087a8e", "224b4fd294fab710", "h_nonneg", "cosh_small"),
    lemma("sinh_small", "21d996417a69cb98", "a234158af556a41b", "hy2", "cosh_small sinh_le"),
    lemma("cosh_small", "8e6c589ac3bcd52e", "293fd214d4b652eb", "hy hy2", "cosh_le_exp_half_sq"),
    lemma("cosh_double", "c76dfa496c9e5485", "190405c37f3082e2", "hz", "cosh_double_pow"),
    lemma("cosh_double_pow", "b7e465c82dba4349", "bf21ac9204d445c2", "hz", "cosh_le_exp_half_sq"),
    lemma("le_of_forall_le_mul_exp", "3c14a3825b53f6b4", "60a4e206f30571f8", "hb hab",
          "cosh_le_exp_half_sq sinh_le hoeffding_two_point"),
    lemma("exists_small", "07c09a61f4cddf96", "3a545ab61dc49ad3", "hx hK ht",
          "cosh_le_exp_half_sq sinh_le hoeffding_two_point"),
    lemma("sinh_double_pow", "df64416faaee16a1", "96178c4de1381153", "hy hs", "sinh_le"),
)
