"""Witnesses as written, against exact band norms, and the bound that they give, against adversarial queries."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from contracts.checks._data import Pairing, Plan, band_of_channel, draw, hard_tokens, rows_of, write
from contracts.checks._queries import adversarial, decode_one, extend_one
from contracts.checks._screen import RELATIVE, Decision, above, exactly, first, norm_sum_at_most
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert.kernels.decode import BandMeter
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.formats import ExactStore
from witcert.kernels.witness_write import witness_write
from witcert.witness import Bands, query_norms, token_bound

WRITE_FACTOR = Fraction(2**20 + 1, 2**20)
"""What a written witness promises beyond the norm of the residual."""
SEED = 60611
HALF = (torch.float16, torch.float16)


def _spread(rows: Tensor, member: Tensor) -> Tensor:
    """Sums of squares by band, float64 [..., B], of what is finite."""
    return torch.where(rows.isfinite(), rows, 0.0).square() @ member


def covered(what: str, k: Tensor, k_hat: Tensor, w: Tensor, band: Tensor, gamma: float) -> float:
    """Raise unless w >= (1 + 2^-20) |k_hat_b - k_b| + gamma |k_hat_b| in every band; smallest relative distance.

    k, k_hat float64 [T, H, d], w float64 [T, H, B], band [d]. A band with something that is not finite has w = +inf.
    """
    member = torch.nn.functional.one_hot(band, w.shape[-1]).to(torch.float64).to(k.device)  # [d, B]
    residual = k_hat - k
    broken = (~(k.isfinite() & k_hat.isfinite())).double() @ member > 0  # [T, H, B]
    claimed = broken & ~(w == torch.inf)
    if bool(claimed.any()):
        raise Violation(f"{what}: band {first(claimed)} of a key that is not finite has a finite witness")
    squares, keys = _spread(residual, member), _spread(k_hat, member)
    need = torch.where(broken, 0.0, squares.sqrt() * float(WRITE_FACTOR) + gamma * keys.sqrt())

    def holds(cell: tuple[int, ...]) -> bool:
        token, head, b = cell
        inside = (band == b).to(k.device)
        old, new = exactly(k[token, head, inside]), exactly(k_hat[token, head, inside])
        bound = float(w[cell])
        a = sum(((y - x) ** 2 for x, y in zip(old, new, strict=True)), Fraction(0)) * WRITE_FACTOR**2
        return bound >= 0 and norm_sum_at_most(bound, (a, Fraction(gamma) ** 2 * sum(y**2 for y in new)))

    return above(what, w, need, need * RELATIVE, holds)


def _served(rng: torch.Generator, k: Tensor, dtype: torch.dtype) -> Tensor:
    """Served keys of every kind: noise, k itself, one channel off by just more than a float16, a power of two.

    The float32 just above a float16, and the least one that exceeds it with the promised factor 1 + 2^-20.
    """
    device = k.device
    noise = torch.randn(k.shape, generator=rng, device=device) * 0.02 + 1
    served = (k.float() * noise).to(dtype)
    served[1::5] = k[1::5].to(dtype)
    if dtype == torch.float32 and k.dtype == torch.float32:
        code = torch.randint(0x0C00, 0x7000, k[2::5, :, 7].shape, generator=rng, device=device)
        served[2::5] = k[2::5] = 0.0
        above_half = code.to(torch.int16).view(torch.float16).float()
        divided = (above_half.double() / float(WRITE_FACTOR)).float()
        above_half[1::2] = divided[1::2]
        served[2::5, :, 7] = torch.nextafter(above_half, torch.full_like(above_half, torch.inf))
        served[3::5] = k[3::5] = 0.0
        power = torch.randint(-149, -20, k[3::5, :, 9].shape, generator=rng, device=device)
        served[3::5, :, 9] = torch.ldexp(torch.ones_like(power, dtype=torch.float32), power)
    return served


@discharges("arith_fold.h_w_sq", "arith_fold.h_nk_sq", "witness_mono.h_witness", "band_cauchy_schwarz.h_nr_sq")
def written_norms(setting: Setting) -> Outcome:
    """Every witness that a write kernel leaves is at least the exact norm of its band and the arithmetic fold."""
    rng = draw(setting, SEED)
    tokens, heads = (1 << 15, 8) if setting.full else (48, 2)
    cases, margin = 0, float("inf")
    single: list[tuple[int, int, Pairing, int | None, float, tuple[torch.dtype, torch.dtype], int]] = [
        (64, 16, "half", None, 0.0, (torch.float32, torch.float32), 1),
        (64, 8, "adjacent", None, 2.0**-9, (torch.bfloat16, torch.bfloat16), 16),
        (128, 16, "half", None, dot_gamma(128), HALF, 16),
        (128, 16, "half", 32, 0.01, (torch.bfloat16, torch.float16), 1),
        (256, 16, "half", 0, 2.0**-20, HALF, 1),
    ]
    for head_dim, count, pairing, rotary, gamma, dtypes, page in single:
        k = hard_tokens(rng, tokens, heads, head_dim, dtypes[0])
        k_hat = _served(rng, k, dtypes[1])
        out = torch.zeros(-(-2 * tokens // page), heads, page, count, dtype=torch.float16, device=setting.device)
        slots = torch.randperm(len(out) * page, generator=rng, device=setting.device)[:tokens]
        bands = Bands(head_dim, count, pairing, rotary)
        witness_write(k, k_hat, slots, out, bands=bands, gamma=gamma)
        band = band_of_channel(head_dim, count, pairing, rotary)
        w = rows_of(out, slots, page).double()
        what = f"witness_write d={head_dim} B={count} {pairing} rotary={rotary} gamma={gamma:.3g}"
        margin = min(margin, covered(what, k.double(), k_hat.double(), w, band, gamma))
        cases += w.numel()
    for plan in (
        Plan(128, 1, torch.bfloat16, dithered=False, bands=8),
        Plan(64, 16, bands=16, gamma=2.0**-12),
        Plan(64, 1, torch.bfloat16, pairs=4, bands=8, pairing="adjacent"),
        Plan(128, 16, torch.float32, rounds=10, bands=16, gamma=1e-6),
        Plan(64, 16, dithered=False, bands=16, pairs=2, gamma=dot_gamma(64)),
    ):
        k = hard_tokens(rng, tokens, heads, plan.head_dim, plan.dtype)
        done = write(rng, plan, k, k.flip(0))
        assert plan.bands is not None
        band = band_of_channel(plan.head_dim, plan.bands, plan.pairing)
        margin = min(margin, covered(str(plan), k.double(), done.served_keys(), done.witness(), band, plan.gamma))
        cases += done.witness().numel()
    return Outcome(cases, (SEED,), margin, "of the norm", note="exact where float64 is too close")


def _query_rows(rng: torch.Generator, count: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Queries [count, d]: wide, with one-band, subnormal and extreme rows."""
    x = torch.randn(count, head_dim, generator=rng, device=rng.device)
    x *= torch.exp2(torch.randint(-20, 8, (count, 1), generator=rng, device=rng.device).float())
    info = torch.finfo(dtype)
    x[0::8, ::3] = 0.0
    x[1] = min(info.max, 65504.0)
    x[2] = 2.0**-24
    x[3] = 0.0
    x[3, 5] = 2.0**-24
    x[4] = 0.0
    x[5] = x[5].to(torch.float8_e4m3fn).float()
    return x.to(dtype)


def _decide_norm(bound: Tensor, q: Tensor, band: Tensor, count: int) -> Decision:
    """Whether a bound [rows * B, 1, 16] is at least the norm of its query in band ``row % B``, over the rationals."""

    def decide(cell: tuple[int, ...]) -> bool:
        numbers = exactly(q[cell][(band == cell[0] % count).to(q.device)])
        return Fraction(float(bound[cell])) ** 2 >= sum(x**2 for x in numbers)

    return decide


@discharges("witness_mono.h_query", "band_cauchy_schwarz.h_nq_sq", "band_cauchy_schwarz.h_band")
def query_side(setting: Setting) -> Outcome:
    """A token whose witness is 1 in one band and 0 elsewhere gives a bound of at least the query's exact norm there."""
    rng = draw(setting, SEED + 1)
    rows = 1024 if setting.full else 1
    cases, margin = 0, float("inf")
    plans: list[tuple[int, int, Pairing, torch.dtype]] = [
        (64, 16, "half", torch.float16), (128, 8, "adjacent", torch.bfloat16)
    ]  # fmt: skip
    if setting.full:
        plans += [(256, 16, "half", torch.bfloat16), (128, 16, "adjacent", torch.float16)]
        plans += [(64, 8, "half", torch.float16), (256, 8, "adjacent", torch.float16)]
    for head_dim, count, pairing, dtype in plans:
        band = band_of_channel(head_dim, count, pairing)
        member = torch.nn.functional.one_hot(band, count).to(torch.float64).to(setting.device)
        key = torch.zeros(count, 1, head_dim, dtype=dtype, device=setting.device)
        store = ExactStore(key, key, torch.eye(count, dtype=torch.float16, device=setting.device)[:, None].contiguous())
        q = _query_rows(rng, 16 * rows, head_dim, dtype).reshape(-1, 1, 16, head_dim)
        every = torch.arange(count, device=setting.device).repeat(len(q))
        wide = q.repeat_interleave(count, 0)  # [rows * B, 1, 16, d]
        meter = BandMeter(pairing)
        readings = [("decode", decode_one(wide, store, every, 1, 1.0, meter).c)]
        readings.append(("extend", extend_one(wide, store, every, 1.0, meter).c))
        package = query_norms(q, Bands(head_dim, count, pairing)).double().movedim(-1, 1).reshape(-1, 1, 16)
        readings.append(("query_norms", package))
        squares = (q.double().square() @ member).movedim(-1, 1).reshape(-1, 1, 16)  # [rows * B, 1, 16]
        truth = squares.sqrt()

        for name, bound in readings:
            what = f"{name} d={head_dim} B={count} {pairing} {dtype}: query norm"
            margin = min(margin, above(what, bound, truth, truth * RELATIVE, _decide_norm(bound, wide, band, count)))
            cases += bound.numel()
    return Outcome(cases, (SEED + 1,), margin, "of the norm")


def _one_hot_bands(head_dim: int, count: int, pairing: Pairing, device: torch.device) -> tuple[Tensor, Tensor]:
    """Bands that writers and readers give each channel: bool [d, B] each, from one-hot residuals and queries."""
    eye = torch.eye(head_dim, dtype=torch.float16, device=device)[:, None].contiguous()  # [d, 1, d]
    w = torch.full((head_dim, 1, count), 7.0, dtype=torch.float16, device=device)
    every = torch.arange(head_dim, device=device)
    witness_write(torch.zeros_like(eye), eye, every, w, bands=Bands(head_dim, count, pairing))
    # A query with one channel, on tokens whose witness is 1 in one band: c is 1 where the channel is in that band.
    key = torch.zeros(count, 1, head_dim, dtype=torch.float16, device=device)
    store = ExactStore(key, key, torch.eye(count, dtype=torch.float16, device=device)[:, None].contiguous())
    queries = eye[:, 0].expand(count, 1, head_dim, head_dim)  # [B, 1, d, d]
    c = extend_one(queries, store, torch.arange(count, device=device), 1.0, BandMeter(pairing)).c  # [B, 1, d]
    return w[:, 0] != 0, c[:, 0].T > 0.5


@discharges("rope_band_unitary.h_layout", "rope_band_unitary.h_band")
def layout(setting: Setting) -> Outcome:
    """Each channel lies in one band, the same for writers and readers; the channels of a pair share it."""
    cases = 0
    shapes: list[tuple[int, int, Pairing]] = [(64, 16, "half"), (64, 8, "adjacent"), (128, 16, "half")]
    if setting.full:
        shapes += [(256, 16, "half"), (256, 8, "adjacent"), (128, 8, "half"), (128, 16, "adjacent")]
    for head_dim, count, pairing in shapes:
        what = f"d={head_dim} B={count} {pairing}"
        expected = torch.nn.functional.one_hot(band_of_channel(head_dim, count, pairing), count).bool()
        declared = torch.nn.functional.one_hot(Bands(head_dim, count, pairing).index, count).bool()
        written, read = _one_hot_bands(head_dim, count, pairing, setting.device)
        for name, mask in (("Bands", declared), ("witness_write", written), ("extend", read)):
            wrong = mask.cpu() != expected
            if bool(wrong.any()):
                channel, b = first(wrong)
                raise Violation(f"{name} {what}: channel {channel} and band {b}: contrary to the layout")
        half = head_dim // 2
        pairs = [(i, i + half) if pairing == "half" else (2 * i, 2 * i + 1) for i in range(half)]
        if sorted(c for pair in pairs for c in pair) != list(range(head_dim)):
            raise Violation(f"{what}: the pairs are not a partition of the channels")
        for one, other in pairs:
            if not torch.equal(written[one], written[other]):
                raise Violation(f"{what}: channels {one} and {other} are a pair in different bands")
        cases += 3 * expected.numel()
    return Outcome(cases, (), 0.0, "bands, compared for equality")


@discharges("rope_band_unitary.conclusion")
def rotation(setting: Setting) -> Outcome:
    """Turning every pair by a rational angle changes no witness: equal bits, where squares are small integers."""
    rng = draw(setting, SEED + 2)
    tokens = 1 << 16 if setting.full else 64
    cases = 0
    # (a, b, c) with a^2 + b^2 = c^2: the pair (x, y) goes to (a x - b y, b x + a y), whose norm is c times as large.
    triples = torch.tensor([[3, 4, 5], [-4, 3, 5], [5, 12, 13], [-12, -5, 13], [0, 1, 1], [1, 0, 1]])
    shapes: list[tuple[int, int, Pairing]] = [(64, 16, "half"), (128, 8, "adjacent")]
    for head_dim, count, pairing in shapes:
        half = head_dim // 2
        row = torch.randint(0, len(triples), (tokens,), generator=rng, device=setting.device)
        a, b, c = triples.to(setting.device)[row].T[:, :, None]  # each [T, 1]: one angle a token, signs vary by pair
        flip = torch.randint(0, 2, (tokens, half), generator=rng, device=setting.device) * 2 - 1
        x = torch.randint(-12, 13, (tokens, 2, half), generator=rng, device=setting.device)
        y = torch.stack((a * x[:, 0] - flip * b * x[:, 1], flip * b * x[:, 0] + a * x[:, 1]), 1)
        out = []
        for pair in (x * c[:, None], y):
            lay = pair.flatten(1) if pairing == "half" else pair.transpose(1, 2).flatten(1)
            residual = lay.to(torch.float16)[:, None].contiguous()  # [T, 1, d]
            if not torch.equal(residual.long()[:, 0], lay):
                raise Violation("the residual is not exact in float16")  # an error of this check
            w = torch.zeros(tokens, 1, count, dtype=torch.float16, device=setting.device)
            every = torch.arange(tokens, device=setting.device)
            witness_write(torch.zeros_like(residual), residual, every, w, bands=Bands(head_dim, count, pairing))
            out.append(w)
            key, band = torch.zeros_like(residual).double(), band_of_channel(head_dim, count, pairing)
            covered(f"rotation {pairing}", key, residual.double(), w.double(), band, 0.0)
        if not torch.equal(out[0], out[1]):
            token, _, b_wrong = first(out[0] != out[1])
            raise Violation(f"{pairing}: RoPE changes the witness of token {token}, band {b_wrong}")
        cases += out[0].numel()
    return Outcome(cases, (SEED + 2,), 0.0, "bits, compared for equality")


def _logit_error(q: Tensor, residual: Tensor, served: Tensor, gamma: float, scale: float) -> tuple[Tensor, Tensor]:
    """scale (|q . r| + gamma sum |q k_hat|) and how far float64 may be from it: [T, H, 16] each."""
    wide = q.double()
    products = wide * residual[:, :, None]
    error = products.sum(-1).abs() + gamma * (wide * served[:, :, None]).abs().sum(-1)
    return scale * error, scale * RELATIVE * (products.abs().sum(-1) + error)


def _decide(bound: Tensor, q: Tensor, k: Tensor, k_hat: Tensor, gamma: float, scale: float) -> Decision:
    """Whether a bound [T, H, 16] covers the error of one query, over the rationals."""

    def decide(cell: tuple[int, ...]) -> bool:
        rows = list(zip(exactly(q[cell]), exactly(k[cell[:2]]), exactly(k_hat[cell[:2]]), strict=True))
        error = abs(sum((x * (new - old) for x, old, new in rows), Fraction(0)))
        error += Fraction(gamma) * sum(abs(x * new) for x, _, new in rows)
        return Fraction(float(bound[cell])) >= Fraction(scale) * error

    return decide


@discharges("arith_fold.conclusion", "witness_mono.conclusion", "band_cauchy_schwarz.conclusion")
def bound_of_one_token(setting: Setting) -> Outcome:
    """c of decode, extend and the package is at least the logit error, with the worst rounding that gamma allows."""
    rng = draw(setting, SEED + 3)
    tokens, heads = (2048, 8) if setting.full else (16, 2)
    keep = tokens if setting.full else 2
    cases, margin = 0, float("inf")
    plans: list[tuple[Plan, bool]] = [
        (Plan(64, 16, bands=16, gamma=dot_gamma(64)), True),
        (Plan(64, 1, torch.bfloat16, bands=8, pairing="adjacent", gamma=dot_gamma(64)), True),
        (Plan(64, 1, bands=16), False),
    ]
    if setting.full:
        plans += [(Plan(d, 1, bands=16, gamma=dot_gamma(d)), True) for d in (128, 256)]
        plans += [(Plan(128, 16, torch.bfloat16, bands=16, pairs=4), False), (Plan(256, 1, bands=16), False)]
    for plan, exact in plans:
        k = hard_tokens(rng, tokens, heads, plan.head_dim, plan.dtype)
        k = torch.where(k.isfinite() & (k.abs() < 1e4), k, 1.0)
        if exact:  # a store of served keys with a witness
            served = (k.float() * (1 + 0.02 * torch.randn(k.shape, generator=rng, device=k.device))).to(plan.dtype)
            rows = (-(-tokens // plan.page_size) + 1) * plan.page_size
            slots = torch.randperm(rows, generator=rng, device=k.device)[:tokens]
            pool = torch.full((rows, heads, plan.head_dim), torch.nan, dtype=plan.dtype, device=k.device)
            pool[slots] = served
            w = torch.full((rows, heads, plan.bands or 16), torch.nan, dtype=torch.float16, device=k.device)
            bands = Bands(plan.head_dim, plan.bands or 16, plan.pairing)
            witness_write(k, served, slots, w, bands=bands, gamma=plan.gamma)
            store, k_hat, written = ExactStore(pool, pool, w), served.double(), w[slots]
        else:
            done = write(rng, plan, k, k)
            store, k_hat, slots = done.store, done.served_keys(), done.slots  # type: ignore[assignment]
            written, bands = done.witness().half(), Bands(plan.head_dim, plan.bands or 16, plan.pairing)
        pick = torch.randperm(tokens, generator=rng, device=k.device)[:keep]
        k64, k_hat, slots, written = k[pick].double(), k_hat[pick], slots[pick], written[pick]
        q = adversarial(rng, k_hat - k64, k_hat, bands.index, plan.dtype)
        scale = 1.75 if plan.page_size == 16 else plan.head_dim**-0.5
        meter = BandMeter(plan.pairing)
        readings = [("decode", decode_one(q, store, slots, plan.page_size, scale, meter).c)]
        if plan.page_size == 1:
            readings.append(("extend", extend_one(q, store, slots, scale, meter).c))
        readings.append(("token_bound", token_bound(query_norms(q, bands), written[:, :, None], scale)[..., 0]))
        truth, allowance = _logit_error(q, k_hat - k64, k_hat, plan.gamma, scale)

        for name, bound in readings:
            decide = _decide(bound, q, k64, k_hat, plan.gamma, scale)
            kind = "exact store" if exact else "packed store"
            margin = min(margin, above(f"{name}, {kind}, {plan}", bound, truth, allowance, decide))
            cases += bound.numel()
    return Outcome(cases, (SEED + 3,), margin, "of the logit error")


@discharges("query_cast_term.conclusion")
def cast_query(setting: Setting) -> Outcome:
    """Attention with q cast to fp8 errs by at most the witness term and the cast term of what is stored."""
    rng = draw(setting, SEED + 4)
    tokens, heads, head_dim = (1 << 14, 8, 128) if setting.full else (64, 2, 64)
    bands = Bands(head_dim, 16)
    k = hard_tokens(rng, tokens, heads, head_dim, torch.float16)
    k = torch.where(k.isfinite() & (k.abs() < 1e4), k, 1.0)
    done = write(rng, Plan(head_dim, bands=16), k, k)
    k64, k_hat, w = k.double(), done.served_keys(), done.witness()
    q = adversarial(rng, k_hat - k64, k_hat, bands.index, torch.float16)  # [T, H, 16, d]
    cast = q.float().clamp(-448, 448).to(torch.float8_e4m3fn).double()
    lost = q.double() - cast
    term = token_bound(query_norms(q, bands), w[:, :, None], 1.0)[..., 0]
    key_norms = query_norms(k_hat, bands)
    term = term + token_bound(query_norms(lost, bands), key_norms[:, :, None], 1.0)[..., 0]
    products = q.double() * k64[:, :, None]
    others = cast * k_hat[:, :, None]
    truth = (products - others).sum(-1).abs()
    allowance = RELATIVE * (products.abs() + others.abs()).sum(-1)

    def holds(cell: tuple[int, ...]) -> bool:
        numbers = (q[cell], cast[cell], k64[cell[:2]], k_hat[cell[:2]])
        rows = zip(*map(exactly, numbers), strict=True)
        error: Fraction = sum((x * old - y * new for x, y, old, new in rows), Fraction(0))
        return Fraction(float(term[cell])) >= abs(error)

    margin = above("query cast to fp8 e4m3", term, truth, allowance, holds)
    return Outcome(term.numel(), (SEED + 4,), margin, "of the logit error")
