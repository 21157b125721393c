"""INT8 with subtractive dither, and its negative control: the same codes read back without subtracting the dither."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.philox.reference import CHANNELS_PER_DRAW, draw_bytes, pack_counter, philox4x32
from witcert.schemes.grid import GROUP, STEP, channel_scale, exact_step, serve, work_dtype
from witcert.schemes.registry import register
from witcert.schemes.types import Served, Site

__all__ = ["LEVELS", "DitherInt8", "StochasticInt8", "dither", "xi"]

LEVELS = 256
DIVISOR = 126.5

# What float32 adds to the ideal residual s * (g + theta): see DitherInt8.
EXCESS = 2.0**-16


def dither(site: Site, heads: int, head_dim: int, rounds: int = 7) -> Tensor:
    """The dither bytes of every channel at a site: int64 [..., H, T, d] in 0..255.

    Channel c of a token takes its byte from the draw whose counter names layer, KV head, slot, epoch, side and block
    c // 16: it depends on where the token is stored and on nothing else.
    """
    if rounds not in (7, 10):
        raise InputError(f"rounds={rounds!r} is neither 7 nor 10")
    if heads < 1 or head_dim < 1 or site.head0 + heads > 2**16:
        raise InputError(f"heads={heads!r}, head_dim={head_dim!r}: expected >= 1, and head0 + heads <= 2^16")
    device = site.slots.device
    blocks = -(-head_dim // CHANNELS_PER_DRAW)
    head = site.head0 + torch.arange(heads, device=device)
    counter = pack_counter(
        layer=site.layer,
        head=head[:, None, None],
        slot=site.slots[..., None, :, None],
        epoch=site.epochs[..., None, :, None],
        block=torch.arange(blocks, device=device),
        side=0 if site.side == "k" else 1,
    )  # [..., H, T, blocks, 4]
    return draw_bytes(philox4x32(counter, site.seed, rounds)).flatten(-2)[..., :head_dim]


def xi(byte: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The dither of a byte j: ``(2j + 1 - 256) / 512``, exact in float32; between +-255/512, never 0."""
    return (2 * byte.to(dtype) + (1 - LEVELS)) / (2 * LEVELS)


@dataclass(frozen=True)
class DitherInt8:
    """8-bit codes with a subtractive dither that the reader regenerates: the residual follows a proved finite law.

    Parameters
    ----------
    group : channels that share a scale; the last group of a head may be smaller.
    rounds : Philox rounds, 7 or 10.
    outlier_pairs : RoPE pairs that are stored exactly and do not count in the maximum of their group, either for every
        KV head alike, ``(30, 31)``, or one tuple per KV head, ``((30, 31), (28, 29))``; chosen once, before serving.
    pairing : how channels pair up, "half" or "adjacent".

    Notes
    -----
    ``s = RU16(amax / 126.5)`` per group, stored in fp16, and it is the stored s that quantizes;
    ``n = round(x/s + xi)``, ``x_hat = s * (n - xi)``.

    *No code is clipped.* RU16 of the computed quotient is at least amax/126.5 * (1 - 2^-24), so ``|x/s| <= 126.5 * (1 +
    2^-23)`` and the rounded quotient is at most 126.5 + 2^-16; the dither is at most 255/512, so the sum stays below
    126.9986 and rounds to at most 127. A quotient amax/126.5 that underflows is replaced by the least positive fp16,
    which only makes |x/s| smaller; s = 0 means that the whole group is 0. A group whose scale exceeds fp16 (amax above
    8.28e6, or not finite) has s = +inf, and is read back as NaN.

    *Rounding.* With y = fl(x/s), |y| < 127: the quotient errs by 2^-18, and so does the sum y + xi. n - xi is a
    multiple of 1/512 below 128, exact; the product with s errs by at most 2^-24 * 127.5 * s < 2^-17 * s. So ``|x_hat -
    x| <= s * (1/2 + 2^-16)``, which the step s * (1 + 2^-14) covers. For the law, fix y and let xi run over its grid:
    the values n - xi - y are 1/256 apart modulo 1 and lie within 2^-18 of [-1/2, 1/2], so they are a cyclic shift of
    the grid moved by theta, |theta| <= 1/512 + 2^-18. Quotient and product add 2^-18 and 2^-17: excess = 2^-16 * s.

    For a half-precision tensor x_hat is rounded once more, and step and excess grow by that (up to s/4 in bfloat16). A
    reader that dequantizes in float32 is modelled by passing ``x.float()``.
    """

    group: int = GROUP
    rounds: int = 7
    outlier_pairs: tuple[int, ...] | tuple[tuple[int, ...], ...] = ()
    pairing: Literal["half", "adjacent"] = "half"

    def __post_init__(self) -> None:
        if self.group < 1:
            raise InputError(f"group={self.group!r} is not >= 1")
        if self.rounds not in (7, 10):
            raise InputError(f"rounds={self.rounds!r} is neither 7 nor 10")
        if self.pairing not in ("half", "adjacent"):
            raise InputError(f"pairing={self.pairing!r} is neither 'half' nor 'adjacent'")

    def outliers(self, head_dim: int, heads: int) -> Tensor | None:
        """Boolean [H, 1, d] (or [1, 1, d]): channels stored exactly; None if there are none."""
        if not self.outlier_pairs:
            return None
        rows = [row for row in self.outlier_pairs if isinstance(row, tuple)]
        if not rows:
            rows = [tuple(pair for pair in self.outlier_pairs if isinstance(pair, int))]
        elif len(rows) != heads:
            raise InputError(f"outlier_pairs has {len(rows)} rows; expected one per KV head, {heads}")
        if sum(map(len, rows)) != sum(len(p) if isinstance(p, tuple) else 1 for p in self.outlier_pairs):
            raise InputError(f"outlier_pairs={self.outlier_pairs!r} mixes pairs and rows of pairs")
        mask = torch.zeros(len(rows), 1, head_dim, dtype=torch.bool)
        for head, row in enumerate(rows):
            for pair in row:
                if head_dim % 2 or not 0 <= pair < head_dim // 2:
                    raise InputError(f"outlier_pairs has {pair!r}; expected 0..{head_dim // 2 - 1}, even head_dim")
                first, second = (pair, pair + head_dim // 2) if self.pairing == "half" else (2 * pair, 2 * pair + 1)
                mask[head, 0, first] = mask[head, 0, second] = True
        return mask

    def encode(self, x: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        """What the cache stores, outliers aside: codes int8 [..., H, T, d] and scales float16 [..., H, T, d/group]."""
        work = x.to(work_dtype(x))
        keep = self.outliers(x.shape[-1], x.shape[-3])
        scale = channel_scale(work, DIVISOR, self.group, None if keep is None else keep.to(x.device))
        drawn = xi(dither(site, x.shape[-3], x.shape[-1], self.rounds).to(x.device), work.dtype)
        code = (work / torch.where(scale > 0, scale, 1.0) + drawn).round()
        unused = ~scale.isfinite() if keep is None else ~scale.isfinite() | keep.to(x.device)
        return code.masked_fill(unused, 0.0).to(torch.int8), scale[..., :: self.group].to(torch.float16)

    def decode(self, code: Tensor, scale: Tensor, site: Site, dtype: torch.dtype = torch.float32) -> Tensor:
        """Read back: s * (n - xi) in the working precision, NaN where the stored scale is not finite."""
        drawn = xi(dither(site, code.shape[-3], code.shape[-1], self.rounds).to(code.device), dtype)
        return self._times(self._spread(scale, code.shape[-1], dtype), code.to(dtype) - drawn)

    def _spread(self, scale: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
        return scale.to(dtype).repeat_interleave(self.group, -1)[..., :head_dim]

    @staticmethod
    def _times(scale: Tensor, multiple: Tensor) -> Tensor:
        return torch.where(scale.isfinite(), scale * multiple, math.nan)

    def __call__(self, x: Tensor, site: Site) -> Served:
        code, stored = self.encode(x, site)
        work = work_dtype(x)
        wide = self.decode(code, stored, site, work)
        scale = self._spread(stored, x.shape[-1], work)
        keep = self.outliers(x.shape[-1], x.shape[-3])
        step, excess = scale * STEP, scale * EXCESS
        if keep is not None:
            keep = keep.to(x.device)
            exact = exact_step(x)
            wide = torch.where(keep, x.to(work), wide)
            step, excess = torch.where(keep, exact, step), torch.where(keep, exact, excess)
        return serve(x, wide, step, LEVELS, excess)

    def bytes_per_token(self, head_dim: int) -> float:
        rows = [row for row in self.outlier_pairs if isinstance(row, tuple)]
        pairs = max(map(len, rows)) if rows else len(self.outlier_pairs)
        return head_dim + 2 * -(-head_dim // self.group) + 4 * pairs


@dataclass(frozen=True)
class StochasticInt8:
    """Unbiased stochastic rounding to 8 bits, the negative control: the codes of dither_int8, read back as s * n.

    The residual has mean 0 (up to 1/512 of s) but depends on x: its variance reaches s^2/4, three times that of the
    subtractive dither, and so does its sub-Gaussian proxy. A meter that treats it as dither is wrong, and must be
    caught. ``|x_hat - x| <= s * (1/2 + 2^-17 + 255/512) < s``, so the step is 2 s, with no law.
    """

    group: int = GROUP
    rounds: int = 7

    def __call__(self, x: Tensor, site: Site) -> Served:
        base = DitherInt8(self.group, self.rounds)
        code, stored = base.encode(x, site)
        scale = base._spread(stored, x.shape[-1], work_dtype(x))
        return serve(x, base._times(scale, code.to(scale.dtype)), 2.0 * scale)

    def bytes_per_token(self, head_dim: int) -> float:
        return DitherInt8(self.group).bytes_per_token(head_dim)


register(
    "dither_int8",
    summary="8-bit subtractive dither, per token, groups of 32 channels; the residual follows a proved law",
    source="Schuchman 1964; Gray and Stockham 1993; WitCert's finite law",
)(DitherInt8())
register(
    "stochastic_int8",
    summary="8-bit stochastic rounding (negative control: three times the variance proxy)",
    source="non-subtractive dither; Gray and Stockham 1993",
)(StochasticInt8())
