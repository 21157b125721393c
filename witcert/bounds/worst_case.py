"""The largest total variation that per-token bounds allow: sup of TV over all logit errors |e_t| <= c_t.

**Reduction to a set.** p_t is proportional to p~_t w_t with e^-c_t <= w_t <= e^c_t. For the set S on which p exceeds
p~, TV = p(S) - p~(S), and p(S) increases in w_t on S and decreases off S. So, with U = sum over S of p~ e^c and D =
sum over the rest of p~ e^-c,

    sup TV = max over all sets S of f(S),    f(S) = U / (U + D) - p~(S),

attained by e_t = -c_t on S and +c_t off it (conversely p(S) - p~(S) <= TV for every S).

**No sort solves it.** Let all c_t = C. Then f depends on m = p~(S) alone, is strictly concave in m and largest, with
value tanh(C/2), at m* = 1 / (1 + e^C). Deciding whether the supremum reaches tanh(C/2) is deciding whether some
subset of the masses sums to m*: subset sum. Exact maximization is therefore NP-hard (in the masses and e^C, given as
fractions), whatever the sort key, and a threshold set is in general not optimal.

**What a sort does find.** If tokens could be split, S would be described by weights 0 <= z_t <= 1, and f changes in
z_t at the rate p~_t (e^c_t D / Z^2 + e^-c_t U / Z^2 - 1), Z = U + D: a convex function of c_t. At an optimum S is
where it is nonnegative, that is everything outside one interval of the tokens sorted by c (one side may be empty; for
Z > 1 the rate is negative at c = 0, so S is a set of the largest c). Whole tokens differ from this by the token that
would be split.

**What is computed here.** Up to ``EXACT_TOKENS`` tokens: all sets, so the exact supremum. Beyond: for every way to
place the heaviest tokens the best interval of the others, then ascent over blocks of ``BLOCK`` tokens, each moved in
all 2^BLOCK ways. The result is f(S) of an explicit S, hence attained; how far below the supremum it can be is bounded
by any of the upper bounds of this package, which all sit above the supremum.

f is evaluated without cancellation as [p~(S^c) X + p~(S) W] / (U + D) with X = sum over S of p~ (e^c - 1),
W = sum over the rest of p~ (1 - e^-c), and rounded down, so that no correct bound can lie below it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.bounds import checks
from witcert.bounds.rounding import LIBRARY, broadcast, depth, down, exact, pairwise_sum, result_dtype, round_down

EXACT_TOKENS = 12
"""Up to this many tokens the supremum is exact: all 2^12 sets are tried."""

BLOCK = 8
"""Tokens that are moved at once beyond that."""

_CAP = 700.0
"""Errors beyond are not used: e^700 is near the end of float64. Only a positive mass below 1e-280 could tell."""

_SWEEPS = 4
_POLISHED = 512
_SETS_TIMES_TOKENS = 1 << 15
_WORK = 1 << 20


def _enumerated(tokens: int) -> int:
    """How many tokens are tried in all combinations: 2^this times the number of the others stays below 2^15."""
    sizes = (k for k in range(EXACT_TOKENS, 4, -1) if (tokens - k + 1) << k <= _SETS_TIMES_TOKENS)
    return tokens if tokens <= EXACT_TOKENS else next(sizes, 4)


def worst_case_tv(p: Tensor, c: Tensor, *, polish: bool = True) -> Tensor:
    """The supremum of TV over all logit errors |e_t| <= c_t, exact up to 12 tokens and attained beyond; rounded down.

    p: served attention [..., T]. c: bounds on the logit errors [..., T], >= 0 (+inf counts as 700). Result: [...].
    polish=False stops, beyond 12 tokens, at the best interval complement or single token: also attained, faster by
    orders of magnitude, and further below the supremum.
    """
    moved_up = worst_case_set(p, c, polish=polish)
    p64, c64, moved_up = broadcast(exact(p), exact(c).clamp_max(_CAP), moved_up)
    terms = _terms(p64, c64)
    inside, outside = moved_up.to(torch.float64), (~moved_up).to(torch.float64)
    where = (inside, inside, outside, outside, outside)
    value = _objective(*(pairwise_sum(t * m) for t, m in zip(terms, where, strict=True)))
    units = 2 * LIBRARY + 10 + 4 * depth(p.shape[-1])
    return round_down(down(value / pairwise_sum(p64), units).clamp_max(1.0), result_dtype(p, c))


def worst_case_set(p: Tensor, c: Tensor, *, polish: bool = True) -> Tensor:
    """The set S, bool [..., T], behind :func:`worst_case_tv`: its logit errors are -c on S and +c off it."""
    checks.distribution("p", p)
    checks.nonnegative("c", c)
    checks.same_tokens("p and c", p, c)
    p64, c64 = broadcast(exact(p), exact(c).clamp_max(_CAP))
    tokens = p64.shape[-1]
    flat_p, flat_c = p64.reshape(-1, tokens), c64.reshape(-1, tokens)
    size = _enumerated(tokens) if polish or tokens <= EXACT_TOKENS else 0
    rows = max(1, _WORK // ((tokens - size + 1) << size))
    parts = [_search(flat_p[i : i + rows], flat_c[i : i + rows], size, polish) for i in range(0, flat_p.shape[0], rows)]
    return torch.cat(parts).reshape(p64.shape) if parts else torch.zeros_like(p64, dtype=torch.bool)


def _terms(p: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Per token: p~, X on S; p~, W, D off it."""
    return p, p * torch.expm1(c), p, p * -torch.expm1(-c), p * torch.exp(-c)


def _objective(mass_in: Tensor, x: Tensor, mass_out: Tensor, w: Tensor, d: Tensor) -> Tensor:
    """f of a set from the five sums over it and its complement, times sum p~; U = p~(S) + X. 0 where S is
    everything."""
    z = mass_in + x + d
    return torch.where(mass_out > 0, (mass_out * (x / z) + mass_in * (w / z)), 0.0)


def _codes(size: int, device: torch.device) -> Tensor:
    """All sets of ``size`` tokens as rows of a bool matrix [2^size, size]."""
    code = torch.arange(1 << size, device=device)
    return (code[:, None] >> torch.arange(size, device=device)) % 2 == 1


def _search(p: Tensor, c: Tensor, size: int, polish: bool) -> Tensor:
    """The set for each row of [N, T]; the ``size`` heaviest tokens are tried in all combinations."""
    terms = torch.stack(_terms(p, c))
    ranked = _ranked(p, terms[1])
    heavy, light = ranked[:, :size], ranked[:, size:]
    light = light.gather(-1, torch.argsort(c.gather(-1, light), dim=-1))
    codes = _codes(size, p.device)
    base = _split_sums(terms, heavy, codes)
    value, i, j = _best_interval(base, torch.stack([t.gather(-1, light) for t in terms]))
    pick = value.argmax(-1, keepdim=True)
    i, j = i.gather(-1, pick), j.gather(-1, pick)
    place = torch.arange(light.shape[-1], device=p.device)
    members = torch.zeros_like(p, dtype=torch.bool)
    members = members.scatter(-1, heavy, codes[pick[:, 0]]).scatter(-1, light, (place < i) | (place >= j))
    if light.shape[-1] == 0:
        return members
    alone = torch.zeros_like(members).scatter(-1, _best_alone(terms), True)
    found = torch.stack([members, alone])
    if polish:
        found = torch.stack([_polish(terms, start, ranked[:, :_POLISHED]) for start in (members, alone)])
    value = torch.stack([_value(terms, m) for m in found])
    return torch.where((value[0] >= value[1])[:, None], found[0], found[1])


def _ranked(p: Tensor, x: Tensor) -> Tensor:
    """Tokens by influence: the better of their rank in mass p and their rank in p (e^c - 1)."""
    ranks = [torch.argsort(torch.argsort(key, dim=-1, descending=True), dim=-1) for key in (p, x)]
    return torch.argsort(2 * torch.minimum(*ranks) + (ranks[0] > ranks[1]).long(), dim=-1)


def _value(terms: Tensor, members: Tensor) -> Tensor:
    """f of one set per row."""
    return _objective(*(terms * torch.stack([members, members, ~members, ~members, ~members])).sum(-1))


def _best_alone(terms: Tensor) -> Tensor:
    """The token [N, 1] that makes the best set of one token."""
    total = terms.sum(-1, keepdim=True)
    return _objective(*terms[:2], *(total[2:] - terms[2:]).clamp_min(0.0)).argmax(-1, keepdim=True)


def _split_sums(terms: Tensor, block: Tensor, codes: Tensor) -> Tensor:
    """The five sums over a block of tokens [N, k] for every way ``codes`` [K, k] to put them in or out: [5, N, K]."""
    into = codes.to(torch.float64).T
    return torch.stack([t.gather(-1, block) @ (into if n < 2 else 1.0 - into) for n, t in enumerate(terms)])


def _best_interval(base: Tensor, light: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For tokens sorted by c the best set [0, i) + [j, T) next to sums ``base`` [5, N, K]: f, i and j, each [N, K].

    i and j are improved in turn, from the empty set with j first and with i first. light: [5, N, T].
    """
    sums = torch.nn.functional.pad(light.cumsum(-1), (1, 0))[:, :, None, :]
    tokens = light.shape[-1]
    place = torch.arange(tokens + 1, device=light.device)

    def at(index: Tensor) -> Tensor:
        return sums.expand(-1, -1, index.shape[1], -1).gather(-1, index.expand(5, -1, -1, -1))

    def values(upto_j: Tensor, upto_i: Tensor) -> Tensor:
        middle = upto_j - upto_i
        parts = torch.cat((sums[:2, ..., -1:] - middle[:2], middle[2:])).clamp_min(0.0)
        return _objective(*(parts + base[..., None]))

    best: tuple[Tensor, Tensor, Tensor] | None = None
    for upper_first in (True, False):
        i = torch.zeros(base.shape[1:], dtype=torch.long, device=base.device)[..., None]
        j = torch.full_like(i, tokens)
        for turn in range(4 if tokens else 0):
            if (turn % 2 == 0) == upper_first:
                j = values(sums, at(i)).masked_fill(place < i, -1.0).argmax(-1, keepdim=True)
            else:
                i = values(at(j), sums).masked_fill(place > j, -1.0).argmax(-1, keepdim=True)
        found = values(at(j), at(i))
        best = _better(best, (found, i, j))
    assert best is not None
    value, i, j = best
    return value[..., 0], i[..., 0], j[..., 0]


def _better(
    a: tuple[Tensor, Tensor, Tensor] | None, b: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Element by element the triple with the larger first entry."""
    if a is None:
        return b
    first = a[0] >= b[0]
    return torch.where(first, a[0], b[0]), torch.where(first, a[1], b[1]), torch.where(first, a[2], b[2])


def _polish(terms: Tensor, members: Tensor, ranked: Tensor) -> Tensor:
    """Move blocks of ``BLOCK`` tokens, neighbours in influence or far apart, in all 2^BLOCK ways while f improves."""
    tokens = ranked.shape[-1]
    ranks = torch.arange(tokens, device=members.device)
    count = -(-tokens // BLOCK)
    blocks = [ranks[i::count] for i in range(count)] + [ranks[i * BLOCK : (i + 1) * BLOCK] for i in range(count)]
    for _ in range(_SWEEPS):
        before = members
        sums = (terms * torch.stack([members, members, ~members, ~members, ~members])).sum(-1)
        for ranks_of_block in blocks:
            members, sums = _move(terms, members, sums, ranked[:, ranks_of_block])
        if torch.equal(before, members):
            break
    return members


def _move(terms: Tensor, members: Tensor, sums: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """Put the tokens of ``block`` [N, k] where f is largest, the others staying; the new set and its sums [5, N]."""
    codes = _codes(block.shape[-1], members.device)
    ways = _split_sums(terms, block, codes)
    now = (members.gather(-1, block).long() << torch.arange(block.shape[-1], device=members.device)).sum(-1, True)
    current = now.expand(5, -1, -1)
    rest = (sums[..., None] - ways.gather(-1, current)).clamp_min(0.0)
    value = _objective(*(rest + ways))
    top, pick = value.max(-1, keepdim=True)
    pick = torch.where(top > value.gather(-1, now) * (1.0 + 1e-14), pick, now)
    sums = (rest + ways.gather(-1, pick.expand(5, -1, -1)))[..., 0]
    return members.scatter(-1, block, codes[pick[:, 0]]), sums
