"""Chunks over paged stores for tests: ragged prefixes and chunks, poisoned past every length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.kernels.decode.build import values_of
from tests.kernels.decode.common import DEVICE, make
from witcert.kernels.decode.launch import Meter
from witcert.kernels.extend import ExtendOutput, extend
from witcert.kernels.extend.reference import Row, extend_reference
from witcert.kernels.formats import ExactStore, PackedStore, PageTable


@dataclass
class Chunk:
    """Arguments of extend, and the exact keys [slots, Hkv, d] that the store approximates."""

    q: Tensor
    k: Tensor
    v: Tensor
    lens: Tensor
    store: ExactStore | PackedStore
    table: PageTable
    exact: Tensor
    scale: float
    meter: Meter | None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> int:
        return self.q.shape[2] // self.k.shape[2]

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, ExactStore | PackedStore, PageTable, Tensor]:
        return self.q, self.k, self.v, self.store, self.table, self.lens

    def run(self, **changes: Any) -> ExtendOutput:
        return extend(*self.arguments(), **({"scale": self.scale, "meter": self.meter} | self.options | changes))

    def reference(self, **changes: Any) -> dict[tuple[int, int, int], Row]:
        return extend_reference(*self.arguments(), **({"scale": self.scale, "meter": self.meter} | self.options | changes))


def options_of(names: str, heads: int, window: int = 11, softcap: float = 4.0) -> dict[str, Any]:
    """Keyword arguments for names such as "window-softcap-sinks"; "plain" is none of them."""
    out: dict[str, Any] = {}
    if "window" in names:
        out["window"] = window
    if "softcap" in names:
        out["softcap"] = softcap
    if "sinks" in names:
        out["sinks"] = torch.randn(heads).to(DEVICE)
    return out


def poison_chunk(case: Chunk, value: float = torch.nan) -> None:
    """What lies past the length of a chunk must not matter."""
    for b, n in enumerate(case.lens.tolist()):
        for x in (case.q, case.k, case.v):
            x[b, n:] = value


def chunk_case(
    variant: str, prefix: list[int], lens: list[int], *, chunk: int | None = None, hkv: int = 1, group: int = 2, d: int = 64,
    page: int = 16, kind: str = "normal", options: str = "plain", window: int = 11, softcap: float = 4.0,
    device: str = DEVICE,
) -> Chunk:  # fmt: skip
    """A chunk over the store that decode's tests make for this variant; q, k, v of the kind."""
    stored, meter = make(variant, prefix, hkv, group, d, page, kind, device)
    dtype, chunk = stored.q.dtype, max(1, *lens) if chunk is None else chunk
    q = values_of("normal" if kind in ("zero", "flat") else kind, (len(prefix), chunk, hkv * group, d), dtype)
    k = values_of(kind, (len(prefix), chunk, hkv, d), dtype)
    v = values_of("normal", (len(prefix), chunk, hkv, d), dtype)
    if kind == "huge":
        q /= 300
    out = Chunk(
        q.to(device), k.to(device), v.to(device), torch.tensor(lens, dtype=torch.int32, device=device), stored.store,
        stored.table, stored.k, stored.scale, meter, options_of(options, hkv * group, window, softcap),
    )  # fmt: skip
    poison_chunk(out)
    return out


def meters(got: ExtendOutput) -> list[Tensor]:
    """The meter of each reading, [batch, C, Hq]."""
    return [torch.as_tensor(reading.meter.value) for reading in got.readings]


def tensors(got: ExtendOutput) -> list[Tensor]:
    """Everything that a launch wrote."""
    out = [got.out, got.lse]
    for reading in got.readings:
        out += [torch.as_tensor(reading.meter.value), reading.log_a, reading.c_max]
    return out


def same_bits(a: ExtendOutput, b: ExtendOutput) -> bool:
    """Whether two launches wrote the same, NaN included."""
    pairs = zip(tensors(a), tensors(b), strict=True)
    return all(torch.equal(torch.nan_to_num(x, 7.0), torch.nan_to_num(y, 7.0)) for x, y in pairs)
