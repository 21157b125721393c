"""A gated pool in random order: whatever was written, shared, cut, repaired or damaged, no reading is below the truth."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from tests.gate.test_chunk import served
from tests.gate.test_gated import METERS, append, gated, meter_of
from tests.store.common import DEVICE
from witcert.errors import PoolFullError
from witcert.gate import Attended, Gate, chunk
from witcert.kernels.decode import Reading

SCALE = 64**-0.5
LONGEST = 96
SEEDS = st.integers(0, 2**31)


def variation(exact: Tensor, mixed: Tensor, q: Tensor) -> Tensor:
    """Total variation of each query head, float64 [Hq], between keys [T, Hkv, d] as they were written and as they are read."""
    group = q.shape[0] // exact.shape[1]
    a, b = (
        torch.softmax(torch.einsum("hd,thd->ht", q.double(), x.double().repeat_interleave(group, 1)) * SCALE, -1)
        for x in (exact, mixed)
    )
    return (a - b).abs().sum(-1) / 2


class Machine(RuleBasedStateMachine):
    """Sequences of two layers, 4 query heads on 2 KV heads, in a pool of 20 pages with 6 side pages a layer."""

    name = ""
    seen: ClassVar[Counter[str]] = Counter()
    """What all runs of a format did: readings compared, pages repaired and refused, pages restored."""
    least = float("inf")
    """Smallest distance of a reading to the truth, over all runs of a format."""

    @initialize(tau=st.sampled_from([0.003, 0.03, 0.3]), mode=st.sampled_from(["block", "head"]), seed=SEEDS)
    def start(self, tau: float, mode: Any, seed: int) -> None:
        torch.manual_seed(seed)
        self.gated, self.got, self.open = gated(self.name, Gate(tau=tau, mode=mode, chunk=8), [33], pages=20, side_pages=6)
        self.pool, self.meter = self.got.pool, meter_of(self.gated, METERS[self.name])

    def query(self, *shape: int, size: float) -> Tensor:
        return (torch.randn(*shape, 4, 64, device=DEVICE) * size).to(self.pool.config.dtype)

    def some(self, data: st.DataObject) -> list[int]:
        """Between one and three of the sequences that have tokens."""
        there = [s for s in self.open if self.pool.length(s)]
        return data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True)) if there else []

    def compare(self, readings: tuple[Reading, ...], at: Any, truth: Tensor) -> None:
        for r in readings:
            excess = torch.as_tensor(r.meter.value)[at].double() - truth
            assert bool((excess >= -1e-15).all()), (r.meter.theorem, excess)  # 1e-15: the truth's own float64
            type(self).least = min(self.least, float(excess.min()))
            self.seen["readings"] += len(truth)

    def count(self, done: Attended | chunk.ChunkAttended) -> None:
        self.seen["repaired"] += done.pages
        self.seen["refused"] += done.refused

    def add(self, seqs: list[int], counts: list[int]) -> bool:
        """Whether there was room for so many new tokens."""
        if any(self.pool.length(s) + n > LONGEST for s, n in zip(seqs, counts, strict=True)):
            return False
        try:
            append(self.gated, self.got, seqs, counts)
        except PoolFullError:
            return False
        return True

    @rule(n=st.integers(1, 40), seed=SEEDS)
    def begin(self, n: int, seed: int) -> None:
        torch.manual_seed(seed)
        seq = self.pool.open()
        if self.add([seq], [n]):
            self.open.append(seq)
        else:
            self.pool.close(seq)

    @rule(data=st.data(), layer=st.integers(0, 1), size=st.sampled_from([1.0, 6.0, 30.0]), seed=SEEDS)
    def step(self, data: st.DataObject, layer: int, size: float, seed: int) -> None:
        """One new token of some sequences, and a query to each."""
        torch.manual_seed(seed)
        seqs = self.some(data)
        if not seqs or not self.add(seqs, [1] * len(seqs)):
            return
        q = self.query(len(seqs), size=size)
        done = self.gated.attend(layer, q, seqs, scale=SCALE, meter=self.meter)
        self.count(done)
        for b, seq in enumerate(seqs):
            exact = self.got.exact[seq, layer][0]
            mixed = served(self.got, self.gated, seq, layer, len(exact))[0]
            self.compare(done.output.readings, b, variation(exact, mixed, q[b]))
        if not done.refused:
            assert bool((~self.gated.above(done.output.readings)).all())

    @rule(data=st.data(), layer=st.integers(0, 1), size=st.sampled_from([1.0, 6.0, 30.0]), seed=SEEDS)
    def turn(self, data: st.DataObject, layer: int, size: float, seed: int) -> None:
        """Up to 9 new tokens of some sequences at once: above 8 nothing is repaired for them."""
        torch.manual_seed(seed)
        seqs = self.some(data)
        counts = [data.draw(st.integers(0, 9)) for _ in seqs]
        prefix = [self.pool.length(s) for s in seqs]
        if not any(counts) or not self.add(seqs, counts):
            return
        wide = max(counts)
        new = [self.query(len(seqs), wide, size=size)]
        for which in (0, 1):
            x = torch.full((len(seqs), wide, 2, 64), torch.nan, dtype=new[0].dtype, device=DEVICE)
            for b, (seq, n) in enumerate(zip(seqs, counts, strict=True)):
                x[b, :n] = self.got.exact[seq, layer][which][prefix[b] :]
            new.append(x)
        table, lens = self.pool.table(seqs, back=counts), torch.tensor(counts, dtype=torch.int32, device=DEVICE)
        done = chunk.attend(
            self.gated, layer, *new, table, lens, seqs=seqs, prefix=prefix, queries=counts, meter=self.meter, scale=SCALE
        )
        assert (done.fired is None) == (wide > 8)
        self.count(done)
        for b, (seq, n) in enumerate(zip(seqs, counts, strict=True)):
            exact = self.got.exact[seq, layer][0]
            mixed = torch.cat((served(self.got, self.gated, seq, layer, prefix[b])[0], exact[prefix[b] :].double()))
            for i in range(n):
                end = prefix[b] + i + 1
                self.compare(done.output.readings, (b, i), variation(exact[:end], mixed[:end], new[0][b, i]))
                if done.fired is not None and not done.refused:
                    assert not bool(self.gated.above(done.output.readings)[b, i].any())

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        for seq in self.some(data)[:1]:
            try:
                self.open.append(self.got.fork(seq))
            except PoolFullError:
                return

    @rule(data=st.data(), share=st.floats(0, 1))
    def truncate(self, data: st.DataObject, share: float) -> None:
        for seq in self.some(data)[:1]:
            self.got.truncate(seq, int(share * self.pool.length(seq)))

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        for seq in self.some(data)[:1]:
            self.open.remove(seq)
            self.pool.close(seq)

    @rule(data=st.data(), layer=st.integers(0, 1), head=st.integers(0, 1), bit=st.integers(0, 7))
    def damage(self, data: st.DataObject, layer: int, head: int, bit: int) -> None:
        """A bit of a sealed page flips between two steps: a sweep names it, and the page is written anew from the host."""
        self.pool.seal_side()
        assert self.pool.sweep(1.0, bit) == []
        seals = self.pool._sealed()
        used = [p for p in range(self.pool.config.pages) if self.pool.allocator.references(p) and seals.sealed(layer, p)]
        if not used:
            return
        page, row = data.draw(st.sampled_from(used)), data.draw(st.integers(0, 15))
        codes = self.pool.tensors.k[layer]
        part = codes[page, head, row] if self.pool.config.packed else codes[page * 16 + row, head]
        part.view(torch.int8)[5] ^= 1 << bit if bit < 7 else -128
        (found,) = self.pool.sweep(1.0, bit)
        assert (found.layer, found.page, found.head, found.part) == (layer, page, head, "keys")
        self.pool.restore(layer, [page])
        self.seen["restored"] += 1
        assert self.pool.sweep(1.0, bit) == []

    @invariant()
    def repaired_rows_are_exact_and_every_side_page_has_one_owner(self) -> None:
        if not hasattr(self, "pool"):
            return
        packed, where, repairs = self.pool.config.packed, self.pool.exact_pages, self.gated.repairs
        assert repairs is not None
        assert np.array_equal(repairs._map.cpu().numpy(), where)
        for layer in range(2):
            here = where[layer][where[layer] >= 0]
            assert repairs.counts[layer] == len(here)
            if packed:
                taken = self.pool._side_taken[layer]
                assert sorted(here.tolist()) == sorted(taken)
                assert not taken & set(self.pool._side_free[layer])
                assert len(taken) + self.pool.side_available(layer) == 6
            store: Any = self.pool.side[layer] if packed else self.pool.stores[layer]
            for seq in self.open:
                slots = self.pool.allocator.slots_of(seq)
                for h in range(2):
                    page = where[layer, slots // 16, h]
                    some = page >= 0
                    at = torch.from_numpy(page[some].astype(np.int64) * 16 + slots[some] % 16)
                    exact = self.got.exact[seq, layer][0][torch.from_numpy(some), h] if len(slots) else at
                    assert torch.equal(store.k[at, 0 if packed else h], exact) or not len(at)

    def teardown(self) -> None:
        if hasattr(self, "gated"):
            book = self.gated.ledger.summary()
            assert book["cells"] == book["certified"] + book["repaired"] + book["uncertified"]


@pytest.mark.parametrize("name", list(METERS))
def test_any_order(name: str) -> None:
    """4 formats, 12 runs of 25 operations each, derandomized: the same ones every time. For a format that is some 900 readings
    (twice as many with Tier B) compared with the truth, with repairs, refusals and restored pages among them; the smallest
    distance was 1.1e-10, and is printed."""

    class Named(Machine):
        seen: ClassVar[Counter[str]] = Counter()

    Named.name = name
    case: Any = Named.TestCase
    case.settings = settings(
        max_examples=12, stateful_step_count=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
    print(f"{name}: {dict(Named.seen)}; smallest distance {Named.least:.2e}")
    assert Named.seen["readings"] > 150
    assert Named.seen["repaired"] > 10
    assert Named.seen["restored"] > 3
    assert Named.seen["refused"] > 0 or name == "scheme"  # repaired in place: there is always room
