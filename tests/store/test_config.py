"""Configurations: what is refused, what a pool costs to the byte, how many pages fit in a budget."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from tests.store.common import DEVICE, FORMATS, config_of
from witcert.errors import InputError
from witcert.gate import Gate, GatedPool
from witcert.store import CachePool, PoolConfig

BASE: dict[str, Any] = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "pages": 4, "tokens": 64}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layers": 0}, "layers=0"),
        ({"heads": 5}, "heads=5"),
        ({"heads": 34}, "1 to 16 times"),
        ({"head_dim": 80}, "head_dim=80"),
        ({"pages": True}, "pages=True"),
        ({"page_size": 8}, "page_size=8"),
        ({"tokens": 2**24 + 1}, "tokens=16777217"),
        ({"format": "int4"}, "format='int4'"),
        ({"format": "scheme"}, "scheme=None"),
        ({"scheme": "rtn_int8"}, "goes with format='scheme' only"),
        ({"dtype": torch.float32}, "dtype=torch.float32"),
        ({"bands": 4}, "bands=4"),
        ({"pairing": "third"}, "pairing='third'"),
        ({"rotary_dim": 33}, "rotary_dim=33"),
        ({"rotary_dim": 66}, "rotary_dim=66"),
        ({"seed": -1}, "seed=-1"),
        ({"rounds": 8}, "rounds=8"),
        ({"dither_values": True}, "dither_values=True"),
        ({"side_pages": 3}, "side_pages=3"),
        ({"outlier_channels": torch.zeros(2, 2, 4).int()}, "only packed"),
        ({"format": "int8", "outlier_channels": torch.zeros(2, 2, 4)}, "expected int32"),
        ({"format": "int8", "outlier_channels": torch.zeros(2, 2, 4).int()}, "one twice"),
        ({"format": "int8", "outlier_channels": torch.tensor([0, 1, 2, 64]).int().expand(2, 2, 4)}, "outside 0..63"),
        ({"format": "int8", "outlier_channels": torch.arange(6).int().expand(2, 2, 6)}, "outlier pairs"),
    ],
)
def test_refusals(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        PoolConfig(**{**BASE, **changes})


@pytest.mark.parametrize("name", ["kivi_2bit", "kvquant_4bit"])
def test_schemes_of_several_tokens_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="quantizes several tokens together"):
        CachePool(PoolConfig(**BASE, format="scheme", scheme=name))


def test_an_undeclared_dependence_between_tokens_is_found() -> None:
    from witcert.schemes import register, unregister

    register("per_tensor", bytes_per_token=lambda d: d)(lambda x: (x / x.abs().amax() * 7).round() / 7 * x.abs().amax())
    try:
        with pytest.raises(InputError, match="token that stands alone"):
            CachePool(PoolConfig(**BASE, format="scheme", scheme="per_tensor"))
    finally:
        unregister("per_tensor")


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_are_those_of_the_tensors(name: str, page_size: int) -> None:
    pool = CachePool(config_of(name, page_size=page_size, pages=40), DEVICE)
    promised, found = pool.config.bytes_by_part(), pool.account()
    assert {k: v for k, v in found.items() if k in promised} == promised
    assert found["device"] == pool.config.device_bytes + found["tables"]
    assert found["host"] == pool.config.host_bytes
    tensors: dict[int, int] = {}  # by storage: nothing is counted twice, nothing is left out
    held = [*vars(pool.tensors).values(), pool._seals.tags, pool._side_seals.tags, pool.host.k, pool.host.v, pool.host.tags]  # type: ignore[union-attr]
    for x in held:
        if isinstance(x, torch.Tensor):
            tensors[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
    assert sum(tensors.values()) == found["device"] + found["host"] - found["tables"]


def test_bytes_of_a_token() -> None:
    """At d = 128, a token and KV head takes 512 bytes exact, 272 packed, 4 m for outliers, 32 for a witness of 16 bands."""
    base = {**BASE, "head_dim": 128, "layers": 1, "kv_heads": 1, "heads": 1, "pages": 1000, "tags": False}
    slots = 16000
    for changes, each in [
        ({"bands": None}, 512), ({}, 544), ({"format": "int8", "bands": None}, 272), ({"format": "int8", "bands": 8}, 288),
        ({"format": "int8-dither", "bands": None}, 276),
    ]:  # fmt: skip
        config = PoolConfig(**{**base, **changes})
        assert config.device_bytes == slots * each
        assert config.tokens_per_gib == 2**30 / each
    outliers = torch.tensor([[[0, 1, 64, 65]]]).int()
    config = PoolConfig(**{**base, "format": "int8", "bands": None, "outlier_channels": outliers})
    assert config.device_bytes == slots * (272 + 8) + 16
    tagged = PoolConfig(**{**base, "tags": True})
    assert tagged.device_bytes == slots * 544 + 1000 * 3 * 8


@pytest.mark.parametrize("name", FORMATS)
def test_a_budget_is_used_up_and_not_exceeded(name: str) -> None:
    fields = {f: getattr(config_of(name), f) for f in PoolConfig.__dataclass_fields__ if f != "pages"}
    config = PoolConfig.from_bytes(1_000_000, **fields)
    assert config.device_bytes <= 1_000_000 < PoolConfig(**fields, pages=config.pages + 1).device_bytes
    with pytest.raises(InputError, match="budget=1000 bytes holds no page"):
        PoolConfig.from_bytes(1000, **fields)


def test_memory_that_is_not_there_is_named_in_bytes() -> None:
    from witcert.errors import PoolFullError
    from witcert.store.backing import host_tensor

    huge = PoolConfig(**{**BASE, "pages": 2**25, "layers": 2**14, "tags": False})
    with pytest.raises(PoolFullError, match=f"a pool of {huge.device_bytes} bytes asked for"):
        CachePool(huge)
    with pytest.raises(PoolFullError, match=f"asked for {2**58} bytes of host memory and got none"):
        host_tensor((2**57,), torch.float16, pinned=False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_are_those_that_the_device_gave(name: str) -> None:
    """To the byte in what was asked of the allocator, whose blocks are larger: by up to 511 bytes, or by 1 MiB for a
    tensor of more than 1 MiB, where it does not split what it found free."""

    def held() -> tuple[int, int]:
        stats = torch.cuda.memory_stats()
        return stats["requested_bytes.all.current"], stats["allocated_bytes.all.current"]

    CachePool(config_of(name), "cuda")  # whatever is made once
    gc.collect()  # what other tests left must not be freed while the pool is made
    requested, allocated = held()
    pool = CachePool(config_of(name, pages=500), "cuda")
    asked, given = (now - before for now, before in zip(held(), (requested, allocated), strict=True))
    assert asked == pool.account()["device"]
    assert 0 <= given - asked <= 16 * 2**20
    assert pool.host is not None
    assert all(x.is_pinned() for x in (pool.host.k, pool.host.v, pool.host.tags))
    del pool
    assert held() == (requested, allocated)


@pytest.mark.parametrize("repaired", [False, True])
def test_memory_goes_back_with_the_pool(repaired: bool) -> None:
    """No cycle of references keeps a pool until the garbage collector runs: another may need its memory at once."""
    gc.disable()
    try:
        pool = CachePool(config_of("int8"), DEVICE)
        gated = GatedPool(pool, Gate(tau=0.1)) if repaired else None
        alive = weakref.ref(pool)
        del pool, gated
        assert alive() is None
    finally:
        gc.enable()
