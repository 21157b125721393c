"""An attached model: its hooks, its caches, its record, and the way back to what the model was."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from witcert.budget import Budget
from witcert.errors import CorruptionError, InputError, UnsupportedModelError, WitCertError
from witcert.gate import Gate, Ledger, chunk
from witcert.gate.gated import Attended, GatedPool
from witcert.hf import serving
from witcert.hf.cache import CertifiedCache, is_fresh
from witcert.hf.chunks import LayerChunk, chunk_record, over_prefix, reduced, stacked
from witcert.hf.records import Record, RequestReport, StepRecord, summarize
from witcert.hf.refusals import check_request
from witcert.hf.sequences import Rows
from witcert.kernels.decode import TierBMeter
from witcert.store import CachePool, ops
from witcert.store.seal import Damage

__all__ = ["Attachment", "Observer", "is_attached"]

Observer = Callable[[int, Tensor, "tuple[int, ...]", "dict[str, Any]", Attended], None]
_CACHE_NAMES = ("cache", "past_key_values")
_REPLACED = ("generate_batch", "init_continuous_batching", "continuous_batching_context_manager")
_attached: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def is_attached(model: Any) -> bool:
    """Whether the model runs on a certified cache now."""
    return model in _attached


class Attachment:
    """A model that runs on a certified cache, until ``detach`` or the end of the ``with`` block.

    pool, gated, gate, ledger, budget, meter : what it runs on. modules : the attention module of each layer.
    dtype : 16-bit type to which q, k and v are rounded, or None where the model computes in the pool's type.
    fixed_queries : the caller's word that the tokens are a given text, not the model's own.
    sweep : share of the pages in use that is compared with its content tags before each decode step.
    healed : damage that a sweep found and wrote anew from the backing store. What was read between the damage and its
        finding was metered by witnesses of other bits: nothing is promised about those steps.
    """

    def __init__(
        self, model: Any, pool: CachePool, gate: Gate, meter: Any, budget: Budget, *, modules: list[Any],
        dtype: torch.dtype | None, fixed_queries: bool, telemetry: Any, observer: Observer | None,
        on_step: Callable[[StepRecord], None] | None, sweep: float = 0.0, graphs: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.pool, self.gate, self.meter, self.budget = model, pool, gate, meter, budget
        self.ledger = Ledger()
        self.gated = GatedPool(pool, gate, self.ledger)
        self.gated.replays.enabled = graphs
        self.modules, self.dtype, self.fixed_queries = modules, dtype, fixed_queries
        self.telemetry, self.observer, self.on_step = telemetry, observer, on_step
        self.sweep, self._sweeps = sweep, 0
        self.healed: list[Damage] = []
        self._parameters = inspect.signature(model.forward).parameters
        self._cache_name = next((n for n in _CACHE_NAMES if n in self._parameters), "")
        if not self._cache_name:
            raise UnsupportedModelError(f"{type(model).__name__}.forward takes no cache")
        self._kept: list[tuple[Record, Rows]] = []
        self._caches: weakref.WeakSet[CertifiedCache] = weakref.WeakSet()
        self._requests: list[tuple[int, list[CertifiedCache]]] = []
        self._undo: list[Callable[[], object]] = []
        self.attached = False

    # ---- coming and going

    def install(self) -> None:
        """Put functions and hooks in place; on any failure the model is as before."""
        model = self.model
        before = model.config._attn_implementation
        with _lock:
            if model in _attached:
                raise InputError(f"this {type(model).__name__} is attached already; detach it first")
            _attached[model] = self
        self._undo.append(lambda: _attached.pop(model, None))
        try:
            serving.register()
            self._undo.append(lambda: model.set_attn_implementation(before))
            model.set_attn_implementation(serving.NAME)
            self._check_implementation()
            pre = model.register_forward_pre_hook(self._before, with_kwargs=True)
            self._undo.append(pre.remove)
            post = model.register_forward_hook(self._after, with_kwargs=True, always_call=True)
            self._undo.append(post.remove)
            self._replace("generate", self._generate(model.generate))
            for name in _REPLACED:
                if hasattr(model, name):
                    self._replace(name, _refuse(name))
            self.attached = True
        except BaseException:
            self._restore()
            raise

    def _replace(self, name: str, function: Callable[..., Any]) -> None:
        model, missing = self.model, object()
        own = model.__dict__.get(name, missing)
        model.__dict__[name] = function
        self._undo.append(
            lambda: model.__dict__.pop(name, None) if own is missing else model.__dict__.update({name: own})
        )

    def _restore(self) -> None:
        problems: list[Exception] = []
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as e:
                problems.append(e)
        if problems:
            raise problems[0]

    def detach(self) -> None:
        """Give the model back as it was and close every cache; reports stay. Detaching twice does nothing."""
        if not self.attached:
            return
        self.attached = False
        self._abort()
        try:
            self._restore()
        finally:
            for cache in list(self._caches):
                cache.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    # ---- around a forward

    def _check_implementation(self) -> None:
        found = self.model.config._attn_implementation
        if found != serving.NAME:
            raise WitCertError(
                f"the model's attention implementation is {found!r}, not WitCert's: its attention would run unmetered; "
                "detach before changing it"
            )

    def _check_state(self) -> None:
        self._check_implementation()
        if torch.compiler.is_compiling() or getattr(self.model, "_compiled_call_impl", None) is not None:
            raise UnsupportedModelError("an attached model cannot be compiled: detach it first")
        if self.model.training:
            raise InputError("the model is in training mode: call model.eval() first")
        if self.pool.stores and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise UnsupportedModelError(
                "an attached model's forward cannot be captured in a CUDA graph: its cache grows"
            )

    def _abort(self) -> None:
        """Take back forwards of this attachment that never came to their end."""
        running = serving.stack()
        while running and running[-1].attachment is self:
            forward = running.pop()
            forward.cache.rows.undo(forward.unwritten())

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        """Put a certified cache where there is none, and reserve room for the new tokens."""
        self._abort()
        self._check_state()
        kwargs = dict(zip(self._parameters, args, strict=False)) | kwargs
        _check_arguments(kwargs)
        tokens = kwargs.get("input_ids") if kwargs.get("input_ids") is not None else kwargs.get("inputs_embeds")
        if not isinstance(tokens, Tensor) or tokens.ndim < 2:
            raise InputError("an attached model needs input_ids or inputs_embeds, [batch, tokens]")
        given = [n for n in _CACHE_NAMES if kwargs.get(n) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} are both given; pass one cache")
        cache = kwargs.pop(given[0]) if given else None
        for name in _CACHE_NAMES:
            kwargs.pop(name, None)
        if not isinstance(cache, CertifiedCache):
            is_fresh(cache)
            cache = self.new_cache()
        elif cache.attachment is not self:
            raise InputError("this cache belongs to another attachment, or to one that was detached")
        batch, columns = int(tokens.shape[0]), int(tokens.shape[1])
        cache.written.clear()
        if self.sweep and columns == 1:
            self._check_pages()
        chunk = cache.rows.begin(kwargs.get("attention_mask"), batch, columns)
        check = not chunk.single or not cache.record.steps
        serving.stack().append(serving.Forward(self, cache, chunk, check))
        kwargs[self._cache_name] = cache
        kwargs["use_cache"] = True
        return (), kwargs

    def _check_pages(self) -> None:
        """Compare a random share of the pages in use with their tags; write damaged ones anew, or raise CorruptionError."""
        self._sweeps += 1
        found = self.pool.sweep(self.sweep, self._sweeps)
        lost = [d for d in found if self.pool.backing is None or d.part.startswith(("backing", "side"))]
        if lost:
            raise CorruptionError(f"{lost[0]} is not what was written, and there is no checked copy of it; this request cannot "
                                  "go on")  # fmt: skip
        for layer in sorted({d.layer for d in found}):
            self.pool.restore(layer, sorted({d.page for d in found if d.layer == layer}))
        self.healed += found

    def _after(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Check that every layer was served here, and keep the record; undo the forward otherwise."""
        running = serving.stack()
        if not running or running[-1].attachment is not self:
            return
        forward = running.pop()
        cache, new = forward.cache, forward.chunk
        missing = forward.missing()
        if output is None or missing:
            cache.rows.undo(forward.unwritten())
            cache.written.clear()
            if output is None:
                return  # an error is on its way already
            raise UnsupportedModelError(
                f"layers {missing} did not run their attention on the certified cache; nothing of this forward is certified"
            )
        cache.rows.commit()
        self.pool.seal_side()
        cache.written.clear()
        record = cache.record
        if not new.single:
            if not record.steps:
                record.prompt = tuple(cache.rows.lengths())
            over = over_prefix(new.lens, new.prefix)
            if self.meter is not None and any(over):
                layers = [forward.chunks[i] for i in range(len(self.modules))]
                record.chunks.append(
                    chunk_record(layers, steps=len(record.steps), sequences=cache.sequences, tokens=over,
                                 heads=self.pool.config.heads)
                )  # fmt: skip
            unmetered = over if self.meter is None else [0] * len(over)
            exact = [n - seen for n, seen in zip(new.lens, over, strict=True)]
            for counts, more in ((record.unmetered, unmetered), (record.exact, exact)):
                counts += [0] * (len(more) - len(counts))
                for row, n in enumerate(more):
                    counts[row] += n
            return
        step = self._step_record(cache, [forward.attended[i] for i in range(len(self.modules))])
        record.steps.append(step)
        if self.on_step is not None:
            self.on_step(step)

    def _step_record(self, cache: CertifiedCache, layers: list[Attended]) -> StepRecord:
        fired = [a.fired for a in layers]
        return StepRecord(
            step=len(cache.record.steps),
            sequences=cache.sequences,
            lengths=tuple(cache.rows.lengths()),
            before=stacked([[r.meter for r in a.before] for a in layers]),
            after=stacked([[r.meter for r in a.output.readings] for a in layers]),
            fired=torch.stack([f for f in fired if f is not None]) if all(f is not None for f in fired) else None,
            pages=sum(a.pages for a in layers),
            bytes=sum(a.bytes for a in layers),
            refused=sum(a.refused for a in layers),
        )

    # ---- what a layer asks for

    def convert(self, x: Tensor) -> Tensor:
        """x in the type of the pool; InputError if that would round without the caller having said so."""
        want = self.pool.config.dtype
        if x.dtype != want and self.dtype is None:
            raise InputError(f"the model computed {x.dtype} where {want} was expected; pass dtype= to round to 16 bits")
        return x.detach().to(want)

    def step(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, sequences: tuple[int, ...], options: dict[str, Any]
    ) -> Attended:
        """A decode step of one layer, q [batch, Hq, d], k and v [batch, Hkv, d]: stored, metered, gated, reported."""
        into = None
        if self.telemetry is not None and self.observer is None and self.meter is not None:
            into = self.telemetry.stage(layer, len(q), 2 if isinstance(self.meter, TierBMeter) else 1)
        attended = self.gated.step(layer, q, k, v, slots, sequences, meter=self.meter, into=into, **options)
        if self.observer is not None:
            self.observer(layer, q, sequences, options, attended.apart())
        if self.telemetry is not None:
            self.telemetry.record(
                layer, attended.output.readings, repaired=attended.fired, bytes=attended.bytes, request=sequences
            )
        return attended

    def extend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, forward: serving.Forward, options: dict[str, Any]
    ) -> Tensor:
        """Attention of several new tokens, [batch, C, heads, d] each, over the stored prefix and over themselves.

        Where some row has a prefix, every query that sees one is metered and reported, and repaired for up to ``Gate.chunk``
        tokens.
        """
        new = forward.chunk
        if forward.prefix is None:
            before = self.pool.table(forward.cache.sequences, back=new.lens)
            counts = torch.tensor([new.lens, over_prefix(new.lens, new.prefix)], dtype=torch.int32, device=q.device)
            forward.prefix = before, counts[0], counts[1]
        table, lens, metered = forward.prefix
        if not any(new.prefix):  # every key is one of this forward's own, and exact
            return ops.extend(self.pool, layer, q, k, v, table, lens, **options).out
        sequences = forward.cache.sequences
        done = chunk.attend(
            self.gated, layer, q, k, v, table, lens, seqs=sequences, prefix=new.prefix,
            queries=over_prefix(new.lens, new.prefix), meter=self.meter, **options,
        )  # fmt: skip
        if self.meter is not None:
            kept = reduced(done.output.readings, metered, self.gate.tau, done.before)
            forward.chunks[layer] = LayerChunk(kept, done.pages, done.bytes, done.refused)
            if self.telemetry is not None:
                self.telemetry.record(
                    layer, done.output.readings, repaired=done.fired, bytes=done.bytes, request=sequences, lens=metered
                )
        return done.output.out

    # ---- requests

    @property
    def cache(self) -> CertifiedCache | None:
        """The cache that was made last, if it is still in use."""
        live = {id(c.rows): c for c in self._caches if not c.closed}
        return next((live[id(rows)] for _, rows in reversed(self._kept) if id(rows) in live), None)

    @property
    def records(self) -> list[Record]:
        """What was metered, one record a cache, oldest first."""
        return [record for record, _ in self._kept]

    def new_cache(self) -> CertifiedCache:
        """An empty cache, to be passed to the model; its rows are those of the first forward."""
        if not self.attached:
            raise InputError("the model is detached")
        group, made = self._requests[-1] if self._requests else (1, [])
        rows, record = Rows(self.pool), Record(group=group)
        cache = CertifiedCache(rows, record, len(self.modules), serving.write)
        made.append(cache)
        self.adopt(cache)
        return cache

    def adopt(self, cache: CertifiedCache) -> None:
        """Take a cache into the report, and close it when the model is detached."""
        cache.attachment = self
        self._caches.add(cache)
        self._kept.append((cache.record, cache.rows))

    def _generate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            if self.fixed_queries:
                raise InputError("fixed_queries=True promises a given text; generate makes its own")
            self._check_state()
            with self._request(check_request(self.model, args, kwargs)) as made:
                output = original(*args, **kwargs)
                if not isinstance(output, Tensor):
                    made.clear()  # the output carries the cache: its owner closes it
            return output

        generate.__doc__ = original.__doc__
        return generate

    @contextmanager
    def _request(self, group: int) -> Iterator[list[CertifiedCache]]:
        made: list[CertifiedCache] = []
        self._requests.append((group, made))
        try:
            yield made
        finally:
            self._requests.pop()
            self._abort()
            for cache in made:
                cache.close()

    def report(self) -> list[RequestReport]:
        """The requests so far, in the order in which they began; a prompt with its beams is one."""
        out: list[RequestReport] = []
        stored = self.pool.config.max_pages * self.pool.config.page_size
        for record, rows in self._kept:
            lengths = rows.lengths()
            for start in range(0, len(lengths), record.group):
                out.append(
                    summarize(
                        record, range(start, min(start + record.group, len(lengths))), lengths, rows.encoded,
                        budget=self.budget, stored=stored, tau=self.gate.tau, guarantee=self.gate.label,
                        fixed_queries=self.fixed_queries,
                    )
                )  # fmt: skip
        return out


def _refuse(name: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedModelError(f"{name} keeps its own paged cache; an attached model does not run it")

    return refused


def _check_arguments(kwargs: dict[str, Any]) -> None:
    """Refuse what a forward on the pool cannot honour."""
    if kwargs.get("use_cache") is False:
        raise InputError("use_cache=False on an attached model would attend without a meter; detach it first")
    if kwargs.get("output_attentions"):
        raise UnsupportedModelError("output_attentions=True: the fused kernels never form the attention weights")
    mask = kwargs.get("attention_mask")
    if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2):
        raise UnsupportedModelError("attention_mask is not [batch, tokens]; WitCert takes padding masks only")
    for name in ("pixel_values", "input_features", "token_type_ids", "mm_token_type_ids", "encoder_hidden_states"):
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(f"{name}: WitCert serves plain text only")
