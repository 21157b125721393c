"""The allocator: examples, and a state machine in random order whose invariants hold after every step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from witcert.errors import InputError, PoolFullError
from witcert.store.allocator import MAX_EPOCH, PageAllocator


class Machine(RuleBasedStateMachine):
    """Random reserve, fork, truncate and close against a model that names every token.

    A fork that finds no page returns its parent, so the bundle may name a sequence twice, also after it was closed.
    """

    sequences = Bundle("sequences")

    @initialize(pages=st.integers(1, 7), page_size=st.sampled_from([1, 16]))
    def start(self, pages: int, page_size: int) -> None:
        self.size = page_size
        self.allocator = PageAllocator(pages, page_size, 4 * page_size)
        self.tokens: dict[int, list[int]] = {}  # sequence -> names of its tokens
        self.content: dict[int, int] = {}  # slot -> name of the token that was written last
        self.handed: dict[int, int] = {}  # slot -> times it was handed out
        self.names = 0

    def _write(self, slots: np.ndarray, names: list[int]) -> None:  # type: ignore[type-arg]
        for slot, name in zip(slots.tolist(), names, strict=True):
            self.content[slot] = name
            self.handed[slot] = self.handed.get(slot, 0) + 1

    def _state(self) -> tuple[object, ...]:
        a = self.allocator
        rows = tuple((s, a.pages_of(s), a.length(s), a.version(s), a.stored(s)) for s in a.sequences)
        return rows, a.epochs.tobytes(), a.fill.tobytes(), a.free_pages, tuple(map(a.references, range(a.pages)))

    @rule(target=sequences)
    def open(self) -> int:
        seq = self.allocator.open()
        assert seq not in self.tokens
        self.tokens[seq] = []
        return seq

    @rule(seq=sequences, other=sequences, n=st.integers(0, 70), m=st.integers(0, 20))
    def reserve(self, seq: int, other: int, n: int, m: int) -> None:
        if seq not in self.tokens or other not in self.tokens:
            return
        seqs, counts = ([seq], [n]) if seq == other else ([seq, other], [n, m])
        before = self._state()
        over = any(len(self.tokens[s]) + c > 4 * self.size for s, c in zip(seqs, counts, strict=True))
        if over:
            with pytest.raises(InputError, match="the pool was made for"):
                self.allocator.reserve(seqs, counts)
            assert self._state() == before
            return
        try:
            got = self.allocator.reserve(seqs, counts)
        except PoolFullError:
            assert self._state() == before
            return
        assert len(got.slots) == sum(counts)
        assert len({*got.slots.tolist(), *got.moved.target.tolist()}) == len(got.slots) + len(got.moved.target)
        written = {*got.slots.tolist(), *got.moved.target.tolist()}
        for s in self.allocator.sequences:  # only what the new tokens' own sequences see was written
            if s not in seqs:
                assert not written & set(self.allocator.slots_of(s).tolist())
        self._write(got.moved.target, [self.content[x] for x in got.moved.source.tolist()])
        at = 0
        for s, c in zip(seqs, counts, strict=True):
            names = list(range(self.names, self.names + c))
            self.names += c
            self._write(got.slots[at : at + c], names)
            self.tokens[s] += names
            at += c

    @rule(target=sequences, seq=sequences)
    def fork(self, seq: int) -> int:
        if seq not in self.tokens:
            return seq
        before = self._state()
        try:
            child, moved = self.allocator.fork(seq)
        except PoolFullError:
            assert self._state() == before
            assert len(self.tokens[seq]) % self.size
            return seq
        self._write(moved.target, [self.content[x] for x in moved.source.tolist()])
        self.tokens[child] = list(self.tokens[seq])
        return child

    @rule(seq=sequences, share=st.floats(0, 1))
    def truncate(self, seq: int, share: float) -> None:
        if seq not in self.tokens:
            return
        length = int(share * len(self.tokens[seq]))
        self.allocator.truncate(seq, length)
        del self.tokens[seq][length:]

    @rule(seq=consumes(sequences))
    def close(self, seq: int) -> None:
        if seq in self.tokens:
            self.allocator.close(seq)
            del self.tokens[seq]
            with pytest.raises(InputError, match="not open"):
                self.allocator.length(seq)

    @invariant()
    def every_token_is_where_it_was_put(self) -> None:
        if not hasattr(self, "tokens"):
            return
        for seq, names in self.tokens.items():
            slots = self.allocator.slots_of(seq).tolist()
            assert [self.content[x] for x in slots] == names
            assert len(set(slots)) == len(slots) == self.allocator.length(seq)

    @invariant()
    def reference_counts_are_owners_and_nothing_leaks(self) -> None:
        if not hasattr(self, "tokens"):
            return
        a = self.allocator
        owners = [0] * a.pages
        for seq in self.tokens:
            pages = a.pages_of(seq)
            assert len(pages) == -(-a.length(seq) // self.size)
            for page in pages:
                owners[page] += 1
        assert owners == [a.references(p) for p in range(a.pages)]
        assert a.free_pages == owners.count(0)

    @invariant()
    def epochs_count_reuse(self) -> None:
        if hasattr(self, "tokens"):
            for slot, times in self.handed.items():
                assert self.allocator.epochs[slot] == times - 1


TestAllocator = Machine.TestCase
TestAllocator.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_full_pool_says_what_was_needed_and_changes_nothing() -> None:
    a = PageAllocator(3, 16, 64)
    s, t = a.open(), a.open()
    a.reserve([s], [33])
    with pytest.raises(PoolFullError, match=r"17 new tokens needs 2 pages of 16 tokens; 0 of 3 are free"):
        a.reserve([t], [17])
    with pytest.raises(PoolFullError, match="a fork needs 1 pages"):
        a.fork(s)
    assert a.sequences == (s, t)
    assert a.reserve([s], [15]).slots.tolist() == list(range(33, 48))


def test_shared_pages_are_left_alone() -> None:
    """Fork, cut into the shared page, go on: the page with two owners is copied, and later written by the last owner."""
    a = PageAllocator(4, 16, 64)
    s = a.open()
    a.reserve([s], [32])
    child, moved = a.fork(s)
    assert not len(moved.source)
    assert a.pages_of(child) == a.pages_of(s)
    a.truncate(child, 20)
    a.truncate(s, 25)
    got = a.reserve([child, s], [1, 1])
    assert got.moved.source.tolist() == list(range(16, 20))
    assert a.pages_of(child)[1] != a.pages_of(s)[1] == 1
    assert got.slots.tolist() == [a.pages_of(child)[1] * 16 + 4, 16 + 9]
    assert a.epochs[16 + 9] == 1
    assert (a.stored(child), a.stored(s)) == (32 + 4 + 1, 33)


def test_a_copy_of_a_shared_page_needs_a_page() -> None:
    """Two owners that both go on need one page between them: the last one may write where it is."""
    for pages, counts, fits in [(2, [1, 0], False), (2, [1, 1], False), (3, [1, 1], True)]:
        a = PageAllocator(pages, 16, 64)
        s = a.open()
        a.reserve([s], [32])
        child, _ = a.fork(s)
        a.truncate(child, 20)
        a.truncate(s, 25)
        before = a.epochs.copy(), a.pages_of(s), a.pages_of(child), a.length(s), a.length(child)
        if fits:
            got = a.reserve([s, child], counts)
            assert (len(got.moved.target), a.free_pages) == (9, 0)
            continue
        with pytest.raises(PoolFullError, match=f"{sum(counts)} new tokens needs 1 pages"):
            a.reserve([s, child], counts)
        assert np.array_equal(before[0], a.epochs)
        assert before[1:] == (a.pages_of(s), a.pages_of(child), a.length(s), a.length(child))


def test_a_slot_whose_epoch_is_used_up_is_never_handed_out_again() -> None:
    a = PageAllocator(2, 16, 64)
    s = a.open()
    a.reserve([s], [3])
    a.epochs[2] = MAX_EPOCH
    a.truncate(s, 2)
    with pytest.raises(PoolFullError, match="2\\^32 times"):
        a.reserve([s], [1])
    a.close(s)
    assert (a.free_pages, a.retired_pages) == (1, 1)
    t = a.open()
    with pytest.raises(PoolFullError, match="1 of 2 are free, 1 retired"):
        a.reserve([t], [17])
    assert 2 not in a.reserve([t], [16]).slots.tolist()


def test_refusals() -> None:
    a = PageAllocator(2, 16, 20)
    s = a.open()
    for match, seqs, counts in [
        ("would have 21 tokens", [s], [21]), ("not open", [9], [1]), ("counts=-1", [s], [-1]),
        ("no sequence twice", [s, s], [1, 1]), ("one count each", [s], [1, 2]),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=match):
            a.reserve(seqs, counts)
    with pytest.raises(InputError, match="length=1 is more"):
        a.truncate(s, 1)
    with pytest.raises(InputError, match="page_size=8"):
        PageAllocator(2, 8, 20)
