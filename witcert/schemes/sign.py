"""One bit per channel: the sign, and the mean magnitude of the group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.schemes.grid import GROUP, serve, work_dtype
from witcert.schemes.registry import register
from witcert.schemes.types import Served

__all__ = ["Sign"]


@dataclass(frozen=True)
class Sign:
    """``x_hat = +-mean|x|``, the mean over each group of 32 channels of a token, stored in fp16.

    The mean magnitude is the factor of least squared error. The sign of 0 is +. No step: the group mean bounds none of
    its channels. A group whose mean exceeds fp16, or is not finite, is NaN.
    """

    group: int = GROUP

    def __call__(self, x: Tensor) -> Served:
        work = x.to(work_dtype(x))
        parts = torch.split(work.abs(), self.group, dim=-1)
        mean = torch.cat([part.mean(-1, keepdim=True).expand_as(part) for part in parts], -1)
        scale = mean.to(torch.float16).to(work.dtype)
        scale = torch.where(scale.isfinite(), scale, torch.nan)
        return serve(x, torch.where(work < 0, -scale, scale), None)

    def bytes_per_token(self, head_dim: int) -> float:
        return head_dim / 8 + 2 * -(-head_dim // self.group)


register(
    "sign_1bit",
    summary="sign and mean magnitude, per token, groups of 32 channels",
    source="Rastegari et al., XNOR-Net, 2016",
    capturable=True,
)(Sign())
