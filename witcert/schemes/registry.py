"""The registry: one decorator turns a tensor function into a scheme that everything else can run.

A user's scheme is five lines::

    from witcert.schemes import register

    @register("mine", bytes_per_token=lambda d: d)
    def mine(x):
        return (x * 8).round() / 8

It lives as long as the process; ``get("mine")`` finds it by name.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.schemes.types import Served, Site

__all__ = ["Scheme", "get", "names", "register", "table"]

SchemeFunction = Callable[..., "Tensor | Served"]
Function = TypeVar("Function", bound=SchemeFunction)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_REGISTRY: dict[str, Scheme] = {}


@dataclass(frozen=True, eq=False)
class Scheme:
    """A quantizer seen as one tensor function: the exact tensor in, the tensor that attention reads back out.

    A scheme must never see a key twice: quantizing what was already dequantized adds a second residual that no witness
    of the first write covers. Call it once per token, on exact keys; where a cache requantizes, the witnesses of the
    writes have to be added up (triangle inequality).

    A channel that is not finite is never served as a number that looks right: with it, every channel that shares its
    scale becomes NaN (``fp8_e4m3_raw``, which has no scale, saturates infinities as engines do and keeps NaN). The same
    holds for a group whose scale would exceed float16. The meter then reports 1.
    """

    name: str
    function: SchemeFunction
    summary: str = ""
    source: str = ""
    bytes_function: Callable[..., float] | None = None
    per_token: bool = True
    capturable: bool = False

    def __call__(self, x: Tensor, site: Site | None = None) -> Served:
        """Apply the scheme to x [..., H, T, d] (KV heads, tokens, channels), whose tokens lie at site.

        Without a site the tokens lie in a fresh cache: layer 0, keys, slot t for token t, seed 0.
        """
        served = self._applied(x, site)
        for name, extra in (("step", served.step), ("excess", served.excess)):
            if extra is not None and not bool((extra >= 0).all()):
                raise InputError(f"scheme {self.name!r} returned a {name} with negative or NaN entries")
        return served

    def stored(self, x: Tensor, site: Site | None = None) -> Tensor:
        """What attention reads back, alone. Nobody looks at the values of step and excess, which would wait for the device."""
        return self._applied(x, site).x_hat

    def _applied(self, x: Tensor, site: Site | None) -> Served:
        _check_input(x)
        tokens = x.shape[-2]
        if site is None:
            site = Site.contiguous(tokens)
        elif site.slots.shape[-1] != tokens or site.slots.shape[:-1] not in (x.shape[:-3], torch.Size([])):
            raise InputError(f"site.slots has shape {tuple(site.slots.shape)}; x {tuple(x.shape)} has {tokens} tokens")
        with torch.no_grad():
            own = x.detach().clone()  # a function that works in place must not change the exact keys
            out = self.function(own, site) if _takes_site(self.function) else self.function(own)
        return self._checked(x, out if isinstance(out, Served) else Served(out))

    def bytes_per_token(self, head_dim: int, side: Literal["k", "v"] = "k") -> float:
        """Bytes that the cache stores for one token of one KV head; NaN if the scheme does not say."""
        if side not in ("k", "v"):
            raise InputError(f"side={side!r} is neither 'k' nor 'v'")
        if head_dim < 1:
            raise InputError(f"head_dim={head_dim!r} is not >= 1")
        if self.bytes_function is None:
            return math.nan
        args = (head_dim, side)[: _positional(self.bytes_function)]
        return float(self.bytes_function(*args))

    def with_options(self, **options: Any) -> Scheme:
        """The same scheme with other parameters: ``get("dither_int8").with_options(outlier_pairs=(30, 31))``."""
        function: Any = self.function
        if not is_dataclass(function) or isinstance(function, type):
            raise InputError(f"scheme {self.name!r} has no options")
        known = [f.name for f in fields(function)]
        for option in options:
            if option not in known:
                raise InputError(f"scheme {self.name!r} has no option {option!r}; it has {', '.join(known)}")
        changed: Any = replace(function, **options)
        name = f"{self.name}({', '.join(f'{k}={v!r}' for k, v in options.items())})" if options else self.name
        count = getattr(changed, "bytes_per_token", self.bytes_function)
        return Scheme(name, changed, self.summary, self.source, count, self.per_token)

    def _checked(self, x: Tensor, served: Served) -> Served:
        out = served.x_hat
        if not isinstance(out, Tensor):
            raise InputError(f"scheme {self.name!r} returned {type(out).__name__}; expected a tensor or a Served")
        if (out.shape, out.dtype, out.device) != (x.shape, x.dtype, x.device):
            raise InputError(
                f"scheme {self.name!r} returned {out.dtype} {tuple(out.shape)} on {out.device} for an input of "
                f"{x.dtype} {tuple(x.shape)} on {x.device}; they must agree"
            )
        for name, extra in (("step", served.step), ("excess", served.excess)):
            if extra is not None and (extra.shape != x.shape or extra.dtype not in (torch.float32, torch.float64)):
                raise InputError(
                    f"scheme {self.name!r} returned a {name} of {extra.dtype} {tuple(extra.shape)}; "
                    f"expected float32 or float64 {tuple(x.shape)}"
                )
        if served.dither_levels is not None and (served.dither_levels < 2 or served.step is None):
            raise InputError(f"scheme {self.name!r} returned dither_levels={served.dither_levels} (>= 2, with a step)")
        return served


def _check_input(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise InputError(f"x is {type(x).__name__}; expected a tensor [..., heads, tokens, channels]")
    if x.dtype not in _FLOATS:
        raise InputError(f"x is {x.dtype}; expected float16, bfloat16, float32 or float64")
    if x.ndim < 3 or not x.numel():
        raise InputError(f"x has shape {tuple(x.shape)}; expected [..., heads, tokens, channels], none of them empty")


def _positional(function: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in inspect.signature(function).parameters.values())


def _takes_site(function: SchemeFunction) -> bool:
    return "site" in inspect.signature(function).parameters


def register(
    name: str,
    *,
    bytes_per_token: Callable[..., float] | None = None,
    summary: str = "",
    source: str = "",
    replace: bool = False,
    per_token: bool = True,
    capturable: bool = False,
) -> Callable[[Function], Function]:
    """Register a function ``x -> x_hat`` (or one that returns a Served, or that takes ``(x, site)``) as a scheme.

    Parameters
    ----------
    name : what users type; must be new unless replace is true.
    bytes_per_token : ``head_dim -> bytes`` or ``(head_dim, side) -> bytes``, per token and KV head.
    summary : one line for tables; the default is the first line of the docstring.
    source : paper or engine that the scheme comes from.
    per_token : whether what is served for a token depends on that token alone; a growing cache holds only such schemes.
    capturable : whether the function only launches kernels for its result: it neither waits for the device, nor copies from
        the host, nor keeps anything between calls. Then a decode step that calls it can be replayed as a CUDA graph.
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"name={name!r} is not a name")
    if name in _REGISTRY and not replace:
        raise InputError(f"a scheme named {name!r} is already registered; pass replace=True to replace it")

    def add(function: Function) -> Function:
        if not callable(function) or isinstance(function, type):
            raise InputError(f"scheme {name!r}: register a function or a callable instance, not {function!r}")
        if _positional(function) - _takes_site(function) < 1:
            raise InputError(f"scheme {name!r}: the function takes no tensor; expected x, or (x, site)")
        line = summary or (inspect.getdoc(function) or "").split("\n", 1)[0]
        count = bytes_per_token or getattr(function, "bytes_per_token", None)
        _REGISTRY[name] = Scheme(name, function, line, source, count, per_token, capturable)
        return function

    return add


def unregister(name: str) -> None:
    """Take a scheme out of the registry again; an unknown name raises."""
    get(name)
    del _REGISTRY[name]


def get(name: str) -> Scheme:
    """The registered scheme of that name; an unknown one raises, naming those that are spelled nearly alike."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    near = difflib.get_close_matches(str(name), _REGISTRY, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"registered: {', '.join(_REGISTRY)}"
    raise InputError(f"unknown scheme {name!r}: {hint}")


def names() -> list[str]:
    """Names of all registered schemes, in the order of registration."""
    return list(_REGISTRY)


def table(head_dim: int = 128) -> list[dict[str, str]]:
    """One row per scheme for a table: name, summary, bytes per token and KV head (key and value side), source."""

    def count(scheme: Scheme) -> str:
        sides = [scheme.bytes_per_token(head_dim, "k"), scheme.bytes_per_token(head_dim, "v")]
        return " / ".join("unknown" if math.isnan(b) else f"{b:g}" for b in dict.fromkeys(sides))

    return [{"name": s.name, "summary": s.summary, "bytes": count(s), "source": s.source} for s in _REGISTRY.values()]
