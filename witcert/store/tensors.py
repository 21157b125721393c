"""The device tensors of a pool: one of each kind for all layers, so that each layer's store is a view of its share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from witcert.errors import PoolFullError
from witcert.kernels.formats import GROUP, Dither, ExactStore, PackedStore
from witcert.store.config import PoolConfig

__all__ = ["PoolTensors"]


class PoolTensors:
    """Payload, scales, outliers, witness, epochs and side pool, allocated once; PoolFullError names the bytes.

    Exact formats: k, v [layers, slots, Hkv, d], witness [layers, slots, Hkv, B]. Packed: codes, scales, outliers and witness
    [layers, pages, Hkv, page_size, n]. Epochs int32 [slots], shared by all layers. Side: [layers, side slots, 1, n].
    """

    def __init__(self, config: PoolConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        c, d = config, config.head_dim
        rows = (c.layers, c.pages, c.kv_heads, c.page_size) if c.packed else (c.layers, c.slots, c.kv_heads)
        self.witness = None if c.bands is None else self._new((*rows, c.bands), torch.float16)
        self.epochs = self._epochs() if c.format in ("scheme", "int8-dither") else None
        self.outlier_channels: Tensor | None = None
        self.k_outlier: Tensor | None = None
        self.k_scale: Tensor | None = None
        self.v_scale: Tensor | None = None
        payload = torch.int8 if c.packed else c.dtype
        self.k, self.v = (self._new((*rows, d), payload) for _ in range(2))
        if c.packed:
            self.k_scale, self.v_scale = (self._new((*rows, d // GROUP), torch.float16) for _ in range(2))
            if c.outlier_channels is not None:
                # a copy: the caller's may change, or lie where kernels cannot read it
                self.outlier_channels = self._new(c.outlier_channels.shape, torch.int32).copy_(c.outlier_channels)
                self.k_outlier = self._new((*rows, c.outliers), torch.float16)
        self.stores = [self._store(layer) for layer in range(c.layers)]
        side = (c.layers, c.side_pages * c.page_size, 1)
        self.side_k, self.side_v = (self._new((*side, d), c.dtype) for _ in range(2))
        self.side_witness = None if c.bands is None else self._new((*side, c.bands), torch.float16)
        self.side = [
            ExactStore(self.side_k[i], self.side_v[i], None if self.side_witness is None else self.side_witness[i])
            for i in range(c.layers if c.side_pages else 0)
        ]

    def _new(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        try:
            return torch.empty(shape, dtype=dtype, device=self.device)
        except (RuntimeError, MemoryError) as e:
            size = math.prod(shape) * dtype.itemsize
            total = self.config.device_bytes
            reason = str(e).splitlines()[0] if str(e) else type(e).__name__
            raise PoolFullError(f"a pool of {total} bytes asked for {size} of them on {self.device}: {reason}") from e

    def _epochs(self) -> Tensor:
        return self._new((self.config.slots,), torch.int32).zero_()

    def _store(self, layer: int) -> ExactStore | PackedStore:
        c = self.config

        def share(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[layer]

        if not c.packed:
            return ExactStore(self.k[layer], self.v[layer], share(self.witness))
        assert self.k_scale is not None
        assert self.v_scale is not None
        dithered = c.format == "int8-dither"
        return PackedStore(
            k_code=self.k[layer], k_scale=self.k_scale[layer], v_code=self.v[layer], v_scale=self.v_scale[layer],
            epochs=self.epochs if dithered else None,
            dither=Dither(c.seed, layer, c.rounds, c.dither_values) if dithered else None,
            k_outlier=share(self.k_outlier), outlier_channels=share(self.outlier_channels), witness=share(self.witness),
        )  # fmt: skip

    @property
    def rows(self) -> list[Tensor]:
        """Tensors that hold the rows of tokens, of all layers."""
        found = (self.k, self.v, self.k_scale, self.v_scale, self.k_outlier, self.witness)
        return [x for x in found if x is not None]

    def copy_rows(self, source: Tensor, target: Tensor) -> None:
        """Copy the stored bits of tokens, in all layers, from slots to other slots (int64 [N] on the device)."""
        page = self.config.page_size
        for x in self.rows:
            if self.config.packed:
                x[:, target // page, :, target % page] = x[:, source // page, :, source % page]
            else:
                x[:, target] = x[:, source]

    def sealed_parts(self) -> dict[str, tuple[Tensor, ...]]:
        """What the tags of a page cover, by part, laid out as :class:`witcert.store.seal.Seals` wants it."""
        c = self.config

        def paged(x: Tensor) -> Tensor:
            return x if c.packed else x.view(c.layers, c.pages, c.page_size, *x.shape[2:])

        parts: dict[str, tuple[Tensor, ...]] = {"keys": (paged(self.k),), "values": (paged(self.v),)}
        if self.k_scale is not None and self.v_scale is not None:
            parts["scales"] = (self.k_scale, self.v_scale)
        if self.k_outlier is not None:
            parts["outliers"] = (self.k_outlier,)
        if self.witness is not None:
            parts["witness"] = (paged(self.witness),)
        if self.epochs is not None and c.packed:
            parts["epochs"] = (self.epochs.view(c.pages, c.page_size),)
        return parts

    def sealed_side(self) -> dict[str, tuple[Tensor, ...]]:
        """The same for the side pool, token-major."""
        c = self.config
        named = {"keys": self.side_k, "values": self.side_v, "witness": self.side_witness}
        shape = (c.layers, c.side_pages, c.page_size, 1)
        return {name: (x.view(*shape, x.shape[-1]),) for name, x in named.items() if x is not None}

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of the tensors as they are."""

        def size(*tensors: Tensor | None) -> int:
            return sum(x.numel() * x.element_size() for x in tensors if x is not None)

        codes = {"codes": size(self.k, self.v)} if self.config.packed else {"payload": size(self.k, self.v)}
        if self.config.packed:
            codes["scales"] = size(self.k_scale, self.v_scale)
            codes["outliers"] = size(self.k_outlier, self.outlier_channels)
        side = size(self.side_k, self.side_v, self.side_witness)
        return {**codes, "witness": size(self.witness), "epochs": size(self.epochs), "side": side}
