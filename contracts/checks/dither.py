"""The dither of the kernels: its law over all 256 bytes, a draw of its own for every site, one stream for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from contracts.checks._data import GROUP, Plan, Written, draw, hard_tokens, rows_of, write
from contracts.checks._device import draw_words
from contracts.checks._philox import forward, inverse, known_answers, site_counter
from contracts.checks._queries import one_token_table
from contracts.checks._screen import first
from contracts.checks.int8 import SLACK
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert.golden import mp
from witcert.kernels.decode import Tuning, decode
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.extend import extend
from witcert.kernels.formats import PackedStore
from witcert.kernels.philox.reference import pack_counter, philox4x32

SEED = 60631
VALUES = 4
"""Different numbers of a group, each on eight of its channels."""


def _classes(rng: torch.Generator, count: int, head_dim: int) -> Tensor:
    """Rows [count, d]: each group holds 4 numbers eight times, of every size, with ties, zeros and a least scale."""
    groups = head_dim // GROUP
    size = torch.exp2(torch.randint(-18, 9, (count, groups, 1), generator=rng, device=rng.device).float())
    values = torch.randn(count, groups, VALUES, generator=rng, device=rng.device) * size
    values[0, 0] = torch.tensor([-126.5, 0.0, 0.5, -3.0 / 512])  # scale 1: ties
    values[0, -1] = 2.0**-24 * torch.arange(VALUES, device=rng.device)  # the least scale
    return values.to(torch.float16).repeat(1, 1, GROUP // VALUES).flatten(1)


def _by_byte(setting: Setting) -> tuple[Tensor, Tensor, Tensor, int]:
    """Codes of each number under each byte, from the write kernel: x and s float64 [N], codes int64 [N, 256], cases.

    Every number is written to many slots and epochs, on eight channels and all heads. Its code must depend on nothing
    but the byte there; every byte must occur.
    """
    rng = draw(setting, SEED)
    head_dim, heads, kinds, copies = (128, 8, 128, 128) if setting.full else (64, 2, 1, 352)
    row = _classes(rng, kinds, head_dim)
    k = row.repeat(copies, 1)[:, None].expand(-1, heads, -1).contiguous()  # [copies * kinds, H, d]
    done = write(rng, Plan(head_dim, 16, layer=7), k, k)
    byte = done.bytes(0)  # [T, H, d]
    code, scale = done.codes(0)
    group = torch.arange(head_dim, device=k.device) // GROUP
    kind = torch.arange(len(k), device=k.device) % kinds
    number = (kind[:, None] * (head_dim // GROUP) + group) * VALUES + torch.arange(head_dim, device=k.device) % VALUES
    total = kinds * head_dim // GROUP * VALUES
    cell = (number[:, None] * 256 + byte).flatten()
    low = torch.full((total * 256,), 999, device=k.device).scatter_reduce(0, cell, code.long().flatten(), "amin")
    high = torch.full((total * 256,), -999, device=k.device).scatter_reduce(0, cell, code.long().flatten(), "amax")
    low, high = low.reshape(total, 256), high.reshape(total, 256)
    if bool((low == 999).any()):
        raise Violation(f"number and byte {first(low == 999)} never occur: the bytes do not run over all 256 values")
    if not torch.equal(low, high):
        at = first(low != high)
        raise Violation(f"number {at[0]} under byte {at[1]} has two codes, {int(low[at])} and {int(high[at])}")
    x = torch.empty(total, dtype=torch.float64, device=k.device)
    s = torch.empty_like(x)
    every = number[:, None].expand_as(code).flatten()
    x[every], s[every] = k.double().flatten(), scale.flatten()
    if not torch.equal(s[every], scale.flatten()):
        raise Violation("the scale of a token depends on its slot or epoch")
    return x, s, low, code.numel()


@discharges("grid_dither_law.conclusion", "grid_mgf.conclusion")
def grid_law(setting: Setting) -> Outcome:
    """Over all 256 bytes the residual takes each grid value once, moved by at most 1/512, and stays within s/2."""
    x, s, code, cases = _by_byte(setting)
    some = s > 0
    x, s, code = x[some], s[some], code[some]
    # n - xi = (256 n - j) / 256 + 255/512: a cyclic shift of the grid exactly if the integers are 256 consecutive ones.
    numbers = 256 * code - torch.arange(256, device=code.device)  # [N, 256]
    least, most = numbers.amin(1), numbers.amax(1)
    ordered = numbers.sort(1).values
    wrong = (most - least != 255) | (ordered.diff(dim=1) != 1).any(1)
    if bool(wrong.any()):
        at = first(wrong)[0]
        raise Violation(f"x = {float(x[at])!r}, s = {float(s[at])!r}: the residual does not run over the grid")
    # theta = (least + 255) / 256 - x/s; |theta| <= 1/512 + slack, with everything times 512 s. Rounded by 2^-53.
    off = (s * (2 * least + 510).double() - 512 * x).abs()
    bad = off > s * (1 + 512 * SLACK) * (1 - 2.0**-50)
    if bool(bad.any()):
        at = first(bad)[0]
        raise Violation(f"x = {float(x[at])!r}, s = {float(s[at])!r}: theta is {float(off[at] / s[at] / 512)!r}")
    for end in (least, most):
        size = (s * (2 * end + 255).double() - 512 * x).abs()
        if bool((size > s * (256 + 512 * SLACK) * (1 - 2.0**-50)).any()):
            raise Violation("a residual is larger than s (1/2 + 2^-16)")
    margin = float((1 + 512 * SLACK - off / s).min() / 512)
    grid = [mp.mpf(2 * int(u - least[0]) - 255) / 512 for u in ordered[0].tolist()]  # as the kernel's codes have it
    for power in range(-8, 13):
        for sign in (1, -1):
            rate = sign * mp.mpf(2) ** power
            average = sum(mp.exp(rate * g) for g in grid) / 256
            if average > mp.exp(rate * rate * (1 - mp.mpf(4) ** -8) / 24):
                raise Violation(f"the average of exp({rate} g) over the kernel's grid is above its bound")
    note = f"{len(x)} numbers, each under all 256 bytes; moment-generating function at 42 rates"
    return Outcome(cases, (SEED,), margin, "steps (theta)", note=note)


@discharges(
    "weighted_sum_mgf.h_inj", "two_sided_tail.h_inj", "adaptive_radius.h_inj",
    "tierB_request_sound.h_inj", "tierB_adaptive_sound.h_inj",
)  # fmt: skip
def counters(setting: Setting) -> Outcome:
    """Inverting Philox on the device's words gives back slot, epoch, layer, head, side and block: no sites collide."""
    if not known_answers():
        raise Violation("the Philox of this check differs from the published answers")
    rng = draw(setting, SEED + 1)
    count, heads, blocks = (1 << 15, 8, 16) if setting.full else (128, 2, 16)
    slots = torch.randint(0, 2**31, (count,), generator=rng, device=setting.device)
    epochs = torch.randint(-(2**31), 2**31, (count,), generator=rng, device=setting.device)
    slots[:8] = torch.tensor([0, 1, 2, 65536, 0, 1, 2**31 - 1, 255], device=setting.device)
    epochs[:8] = torch.tensor([0, 0, 0, 0, 1, 1, -1, 2**31 - 1], device=setting.device)
    cases = 0
    for seed, layer, rounds in ((0, 0, 7), (2**64 - 1, 65535, 10), (2**63 + 60631, 255, 7), (1 << 32, 256, 10)):
        words = draw_words(slots.int(), epochs.int(), seed, layer, heads, blocks, rounds)  # [N, H, 2, blocks, 4]
        sides = [site_counter(layer, heads, slots, epochs, side, blocks) for side in (0, 1)]
        expected = torch.stack(sides, 2)
        got = inverse(words, seed, rounds)
        wrong = (got != expected).any(-1)
        if bool(wrong.any()):
            at = first(wrong)
            raise Violation(
                f"slot {int(slots[at[0]])}, epoch {int(epochs[at[0]])}, layer {layer}, head {at[1]}, side {at[2]}, "
                f"block {at[3]} draws the words of counter {got[at].tolist()}; expected {expected[at].tolist()}"
            )
        few = slice(0, 64)
        reference = pack_counter(
            layer=layer, head=torch.arange(heads)[:, None, None], slot=slots[few, None, None, None].cpu(),
            epoch=epochs[few, None, None, None].cpu() & 0xFFFFFFFF, block=torch.arange(blocks),
            side=torch.arange(2)[:, None],
        )  # fmt: skip
        if not torch.equal(reference, expected[few].cpu()):
            raise Violation("pack_counter of the package lays out another counter")
        if not torch.equal(philox4x32(reference, seed, rounds), words[few].cpu()):
            raise Violation("philox4x32 of the package differs from the device")
        if not torch.equal(forward(expected[few], seed, rounds), words[few]):
            raise Violation("the device's words are not those of the published algorithm")
        cases += words.numel() // 4
    return Outcome(cases, (SEED + 1,), 0.0, "counters, compared for equality", note="words inverted round by round")


def _drawn_by_writer(rng: torch.Generator, plan: Plan, slots: Tensor, heads: int) -> tuple[Written, Tensor]:
    """The bytes that the write kernel dithers keys and values with, [2, T, H, d], found by bisection from codes alone.

    Scale 1 (a channel at 126.5 in each group): x = 1/2 - xi(j) + 1/1024 has code 1 if the byte is at least j, else 0.
    The bytes of that channel itself are found by a second search with another channel at 126.5.
    """
    tokens, device = len(slots), slots.device
    shape = (2, tokens, heads, plan.head_dim)
    bytes_ = torch.zeros(shape, dtype=torch.int64, device=device)
    channel = torch.arange(plan.head_dim, device=device)
    done = None
    for anchor in (0, 1):
        fixed = channel % GROUP == anchor
        found = torch.zeros_like(bytes_)
        for bit in reversed(range(8)):
            trial = found | 1 << bit  # is the byte at least this?
            x = torch.where(fixed, 126.5, 0.5 - (2 * trial - 255).double() / 512 + 1.0 / 1024).to(torch.float32)
            if done is None:
                done = write(rng, plan, x[0], x[1], slots)
            else:
                dither_int8_write(x[0], x[1], slots, done.store)
                done = replace(done, k=x[0], v=x[1])
            for side in (0, 1):
                code, scale = done.codes(side)
                if not bool((scale == 1.0).all()):
                    raise Violation(f"a group with a maximum of 126.5 has scale {float(scale[scale != 1.0][0])!r}")
                found[side] = torch.where(code >= 1, trial[side], found[side])
        bytes_ = torch.where(fixed, bytes_, found) if anchor == 0 else torch.where(channel % GROUP == 0, found, bytes_)
    assert done is not None
    return done, bytes_


def _fill(store: PackedStore) -> None:
    """Scale 1 and codes 0 everywhere: what is served is -xi."""
    for pool, value in ((store.k_code, 0), (store.v_code, 0), (store.k_scale, 1.0), (store.v_scale, 1.0)):
        pool.fill_(value)


def _byte_of(name: str, served: Tensor) -> Tensor:
    """The byte behind each served -xi = (255 - 2 j) / 512, which must be within 2^-12 of one."""
    j = (255 - 512 * served.double()) / 2
    if not bool(((j - j.round()).abs() <= 2.0**-4).all()):
        raise Violation(f"{name} serves a number that is no dither of a code 0")
    return j.round().long()


def _of_group(name: str, value: Tensor) -> Tensor:
    """Outputs [T, H * 16, d] of equal queries: those of one query of each KV head [T, H, d], which all 16 must be."""
    groups = value.reshape(len(value), -1, 16, value.shape[-1])
    if not torch.equal(groups, groups[:, :, :1].expand_as(groups)):
        raise Violation(f"{name} serves different values to equal queries of one KV head")
    return groups[:, :, 0]


def _drawn_by_readers(done: Written) -> dict[str, Tensor]:
    """The bytes of keys and values that decode and extend subtract, from their outputs on one token: [T, H, d] each."""
    store, slots, plan = done.store, done.slots, done.plan
    _fill(store)
    tokens, (heads, head_dim), device = len(slots), (store.kv_heads, plan.head_dim), slots.device
    out: dict[str, Tensor] = {}
    # Queries with one channel, 16 at a time: the logit is the served key of that channel.
    eye = torch.eye(head_dim, dtype=torch.float16, device=device).reshape(-1, 1, 1, 16, head_dim)
    q = eye.expand(-1, tokens, heads, 16, head_dim)  # [d/16, T, H, 16, d]
    tuning = Tuning(tile=16, warps=1, stages=1, splits=1)
    table = one_token_table(slots.repeat(head_dim // 16), plan.page_size)
    rows = q.reshape(-1, heads * 16, head_dim).contiguous()
    lse = decode(rows, store, table, scale=1.0, window=1, tuning=tuning).lse
    lse = lse.reshape(-1, tokens, heads, 16).permute(1, 2, 0, 3).reshape(tokens, heads, head_dim)
    out["decode, keys"] = _byte_of("decode, keys", lse)
    # The query 0 gives every token the same weight, exactly; as many heads as above, since every variant is compiled.
    none = torch.zeros(tokens, heads * 16, head_dim, dtype=torch.float16, device=device)
    table = one_token_table(slots, plan.page_size)
    value = decode(none, store, table, scale=1.0, window=1, tuning=tuning).out
    out["decode, values"] = _byte_of("decode, values", _of_group("decode", value))
    if plan.page_size == 1:
        # Keys of the chunk of -2000 in every channel leave their tokens no weight at all.
        chunk = head_dim // 16
        rows = q.transpose(0, 1).reshape(tokens, chunk, heads * 16, head_dim).contiguous()
        low = torch.full((tokens, chunk, heads, head_dim), -2000.0, dtype=torch.float16, device=device)
        lens = torch.full((tokens,), chunk, dtype=torch.int32, device=device)
        lse = extend(rows, low, low, store, table, lens, scale=1.0).lse
        lse = lse.reshape(tokens, chunk, heads, 16).transpose(1, 2).reshape(tokens, heads, head_dim)
        out["extend, keys"] = _byte_of("extend, keys", lse)
        # The first token of the chunk sees itself, with value 0 and the same weight: half of the cached value.
        zero = torch.zeros_like(low)
        value = extend(torch.zeros_like(rows), zero, zero, store, table, lens, scale=1.0).out
        out["extend, values"] = _byte_of("extend, values", _of_group("extend", value[:, 0]).double() * 2)
    return out


@discharges(
    "weighted_sum_mgf.h_coord", "two_sided_tail.h_coord", "adaptive_radius.h_coord",
    "tierB_request_sound.h_coord", "tierB_adaptive_sound.h_coord",
)  # fmt: skip
def streams(setting: Setting) -> Outcome:
    """Each channel's byte is that of its site in the writer and in both readers, recovered from their outputs alone."""
    rng = draw(setting, SEED + 2)
    tokens, heads = (512, 8) if setting.full else (1, 2)
    cases = 0
    plans = [Plan(64, 1, torch.float32, layer=300), Plan(64, 16, torch.float32, rounds=10, seed=77)]
    if setting.full:
        plans += [Plan(128, 1, torch.float32, layer=65535), Plan(256, 1, torch.float32, rounds=10, seed=2**40)]
    for plan in plans:
        slots = torch.randperm(max(64, 2 * tokens), generator=rng, device=setting.device)[:tokens]
        done, written = _drawn_by_writer(rng, plan, slots, heads)
        expected = [done.bytes(side) for side in (0, 1)]
        seen = {"write, keys": written[0], "write, values": written[1], **_drawn_by_readers(done)}
        for name, got in seen.items():
            wanted = expected["values" in name]
            if not torch.equal(got, wanted):
                token, head, channel = first(got != wanted)
                raise Violation(
                    f"{name}, {plan}: slot {int(slots[token])}, head {head}, channel {channel} has byte "
                    f"{int(got[token, head, channel])}; its site has {int(wanted[token, head, channel])}"
                )
            cases += got.numel()
    return Outcome(cases, (SEED + 2,), 0.0, "bytes, compared for equality", note="write, decode, extend; both sides")


def _rows(store: PackedStore, slots: Tensor) -> list[Tensor]:
    """What a store keeps of slots, as integers [T, H, ...]."""
    pools = (store.k_code, store.k_scale, store.v_code, store.v_scale)
    return [rows_of(pool, slots, store.page_size).view(pool.dtype) for pool in pools]


def _same(what: str, got: list[Tensor], expected: list[Tensor]) -> int:
    for name, x, y in zip(("k_code", "k_scale", "v_code", "v_scale"), got, expected, strict=True):
        equal = (x == y) | ((x != x) & (y != y))
        if not bool(equal.all()):
            raise Violation(f"{what}: {name} of {first(~equal)} differs")
    return sum(x.numel() for x in got)


def _replayed(launch: Callable[[], None]) -> None:
    """The launch, captured in a CUDA graph and replayed."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    torch.cuda.synchronize()


@discharges("tierB_adaptive_sound.h_fresh")
def fresh(setting: Setting) -> Outcome:
    """Scales depend on no dither and codes on that of their site alone: not on batch, order, paging, replay or age."""
    rng = draw(setting, SEED + 3)
    tokens, heads, head_dim = (1 << 14, 8, 128) if setting.full else (40, 2, 64)
    k, v = (hard_tokens(rng, tokens, heads, head_dim, torch.float16) for _ in range(2))
    plan = Plan(head_dim, 16)
    done = write(rng, plan, k, v)
    store, slots = done.store, done.slots
    assert store.epochs is not None
    epochs = store.epochs.clone()
    before = [x.clone() for x in _rows(store, slots)]
    other = PackedStore.empty(store.slots, heads, head_dim, 1, dither=store.dither, device=setting.device)
    assert other.epochs is not None
    other.epochs.copy_(epochs)
    order = torch.randperm(tokens, generator=rng, device=setting.device)
    padded = torch.cat((slots[order], torch.tensor([-1, store.slots], device=setting.device))).int()
    extra = torch.cat((order, order[:2]))
    fused = torch.cat((k, v), 2)[extra].flatten(1)  # strided, as out of one projection
    wide = fused.view(-1, heads, 2 * head_dim)
    cases = 0

    def reordered() -> None:
        dither_int8_write(wide[..., :head_dim], wide[..., head_dim:], padded, other)

    _replayed(reordered) if setting.device.type == "cuda" else reordered()
    cases += _same("reordered, strided, pages of 1, replayed", _rows(other, slots), before)
    for part in range(min(tokens, 3)):  # one token at a time, over what is there
        one = slice(part, part + 1)
        dither_int8_write(v[one], k[one], slots[one], store)
        dither_int8_write(k[one], v[one], slots[one], store)
    cases += _same("one token at a time", _rows(store, slots), before)
    store.epochs.add_(1)
    dither_int8_write(k, v, slots, store)
    after = _rows(store, slots)
    cases += _same("another epoch: scales", [before[0], after[1], before[2], after[3]], before)
    for side in (0, 2):
        alike = (after[side] == before[side]).flatten(1).all(1)
        busy = (before[side].abs().flatten(1) > 1).sum(1) > 24  # tokens whose codes would hardly all stay by chance
        if bool((alike & busy).any()):
            raise Violation(f"slot {int(slots[first(alike & busy)[0]])} repeats its dither in the next epoch")
    store.epochs.copy_(epochs)
    dither_int8_write(k, v, slots, store)
    cases += _same("the first epoch again", _rows(store, slots), before)
    again = done.bytes(0)
    store.epochs.add_(1)
    if bool((done.bytes(0) == again).flatten(1).all(1).any()):
        raise Violation("the definition repeats a draw")
    return Outcome(cases, (SEED + 3,), 0.0, "bits, compared for equality")
