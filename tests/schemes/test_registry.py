"""The registry: what a user writes, what it refuses, and what the tables show."""

import math

import pytest
import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.schemes import DitherInt8, Served, Site, get, names, register, table
from witcert.schemes import registry as module


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REGISTRY", dict(module._REGISTRY))


def test_a_scheme_in_five_lines() -> None:
    @register("mine", bytes_per_token=lambda d: d)
    def mine(x: Tensor) -> Tensor:
        """Eighths."""
        return (x * 8).round() / 8

    scheme = get("mine")
    x = torch.randn(2, 5, 64)
    served = scheme(x)
    assert torch.equal(served.x_hat, mine(x))
    assert (served.step, served.dither_levels, served.excess) == (None, None, None)
    assert (scheme.name, scheme.summary, scheme.bytes_per_token(64)) == ("mine", "Eighths.", 64.0)
    assert "mine" in names()
    assert table()[-1] == {"name": "mine", "summary": "Eighths.", "bytes": "128", "source": ""}


def test_a_scheme_may_return_a_step_and_take_a_site() -> None:
    @register("both", bytes_per_token=lambda d, side: d if side == "k" else 2 * d, summary="s", source="here")
    def both(x: Tensor, site: Site) -> Served:
        assert site.side == "k"
        return Served((x * 8).round() / 8, torch.full(x.shape, 0.125))

    served = get("both")(torch.randn(2, 5, 64))
    assert served.step is not None
    assert get("both").bytes_per_token(64, "v") == 128.0
    assert table(64)[-1] == {"name": "both", "summary": "s", "bytes": "64 / 128", "source": "here"}


def test_bytes_that_are_not_said_are_unknown() -> None:
    register("silent")(lambda x: x)
    assert math.isnan(get("silent").bytes_per_token(64))
    assert table()[-1]["bytes"] == "unknown"


def test_in_place_work_does_not_reach_the_exact_keys() -> None:
    register("in_place")(lambda x: x.mul_(0.0))
    x = torch.randn(2, 5, 64)
    before = x.clone()
    assert not get("in_place")(x).x_hat.any()
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[..., :3], "'broken' returned torch.float32"),
        (lambda x: x.double(), "'broken' returned torch.float64"),
        (lambda x: x.numpy(), "'broken' returned ndarray"),
        (lambda x: None, "'broken' returned NoneType"),
        (lambda x: Served(x, torch.zeros(3)), "'broken' returned a step"),
        (lambda x: Served(x, x.half()), "'broken' returned a step"),
        (lambda x: Served(x, torch.full_like(x, -1.0)), "'broken' returned a step with negative"),
        (lambda x: Served(x, torch.full_like(x, math.nan)), "'broken' returned a step with negative or NaN"),
        (lambda x: Served(x, None, 256), "'broken' returned dither_levels=256"),
        (lambda x: Served(x, torch.zeros_like(x), 1), "'broken' returned dither_levels=1"),
        (lambda x: Served(x, torch.zeros_like(x), 4, x[0]), "'broken' returned a excess|'broken' returned an excess"),
    ],
)
def test_a_broken_scheme_is_named(function, message: str) -> None:  # type: ignore[no-untyped-def]
    register("broken")(function)
    with pytest.raises(InputError, match=message):
        get("broken")(torch.randn(2, 5, 64))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 5, 64, dtype=torch.int8), "int8"),
        (torch.zeros(2, 5, 64, dtype=torch.complex64), "complex64"),
        (torch.zeros(2, 5, 64).to(torch.float8_e4m3fn), "float8"),
        (torch.zeros(5, 64), "shape"),
        (torch.zeros(64), "shape"),
        (torch.zeros(2, 0, 64), "shape"),
        (torch.zeros(2, 5, 0), "shape"),
        ([[1.0]], "list"),
    ],
)
@pytest.mark.parametrize("name", ["identity", "dither_int8"])
def test_bad_tensors_are_refused(name: str, x: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        get(name)(x)


def test_a_site_for_other_tokens_is_refused() -> None:
    with pytest.raises(InputError, match=r"site\.slots"):
        get("identity")(torch.randn(2, 5, 64), Site.contiguous(6))
    wide = torch.arange(15).reshape(3, 5)
    with pytest.raises(InputError, match=r"site\.slots"):
        get("identity")(torch.randn(2, 2, 5, 64), Site(0, "k", wide, wide, 0))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("layer", -1), ("layer", 2**16), ("layer", 1.5), ("side", "q"), ("seed", -1), ("seed", 2**64)],
        *[("head0", 2**16), ("slots", torch.tensor([-1])), ("slots", torch.tensor([2**32]))],
        *[("slots", torch.tensor([1.0])), ("epochs", torch.tensor([2**32])), ("epochs", torch.tensor([0, 0]))],
        *[("slots", [0]), ("slots", torch.tensor(0))],
    ],
)
def test_a_site_out_of_range_is_refused(field: str, value: object) -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    fields = {"layer": 0, "side": "k", "slots": zero, "epochs": zero, "seed": 0, "head0": 0, field: value}
    with pytest.raises(InputError, match=field):
        Site(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrong", "near"), [("rtn_in8", "rtn_int8"), ("dither", "dither_int8"), ("KIVI_2bit", "kivi")])
def test_unknown_names_get_near_matches(wrong: str, near: str) -> None:
    with pytest.raises(InputError, match=f"unknown scheme '{wrong}'.*{near}"):
        get(wrong)


def test_unknown_name_without_a_near_match_lists_all() -> None:
    with pytest.raises(InputError, match="registered: identity, rtn_int8"):
        get("zzz")


def test_names_are_taken_once() -> None:
    with pytest.raises(InputError, match="already registered"):
        register("identity")(lambda x: x)
    register("identity", replace=True)(lambda x: -x)
    assert float(get("identity")(torch.ones(1, 1, 2)).x_hat[0, 0, 0]) == -1.0
    for bad in ("", "  "):
        with pytest.raises(InputError, match="name"):
            register(bad)
    with pytest.raises(InputError, match="takes no tensor"):
        register("empty")(lambda: torch.zeros(1))
    with pytest.raises(InputError, match="callable instance"):
        register("class")(DitherInt8)


def test_options_make_another_scheme() -> None:
    scheme = get("dither_int8").with_options(outlier_pairs=(3, 4), rounds=10)
    assert scheme.name == "dither_int8(outlier_pairs=(3, 4), rounds=10)"
    assert scheme.bytes_per_token(128) == 136 + 8
    assert scheme.summary == get("dither_int8").summary
    assert get("dither_int8").with_options().name == "dither_int8"
    with pytest.raises(InputError, match="no option 'outlier_pair'; it has group"):
        get("dither_int8").with_options(outlier_pair=1)
    register("plain")(lambda x: x)
    with pytest.raises(InputError, match="no options"):
        get("plain").with_options(a=1)


def test_what_is_stored_is_what_is_served() -> None:
    """``stored`` is x_hat; a wrong step is of no concern to it, a wrong result is."""
    x = torch.randn(2, 5, 64)
    for name in ("rtn_int4", "fp8_e4m3_scaled", "dither_int8"):
        site = Site.contiguous(5)
        trusted = Site.trusted(0, "k", site.slots, site.epochs, 0)
        assert torch.equal(get(name).stored(x, trusted), get(name)(x, site).x_hat)
    register("bad step")(lambda x: Served(x, torch.full_like(x, -1.0)))
    assert torch.equal(get("bad step").stored(x), x)
    with pytest.raises(InputError, match="negative or NaN"):
        get("bad step")(x)
    register("bad shape", capturable=True)(lambda x: x[..., :1])
    assert get("bad shape").capturable
    with pytest.raises(InputError, match="must agree"):
        get("bad shape").stored(x)


def test_options_may_not_be_capturable() -> None:
    """What another option does is not known: only what was registered as capturable is replayed."""
    assert get("rtn_int4").capturable
    assert not get("rtn_int4").with_options(group=16).capturable
    assert not get("dither_int8").capturable  # its stream checks the ranges of its counters


def test_bytes_at_head_dim_128() -> None:
    """The figures of the documentation, key side and value side."""
    expected = {
        "identity": (256, 256),
        "rtn_int8": (136, 136),
        "rtn_int4": (72, 72),
        "rtn_int2": (40, 40),
        "sign_1bit": (24, 24),
        "fp8_e4m3_raw": (128, 128),
        "fp8_e4m3_scaled": (132, 132),
        "kivi_2bit": (48, 48),
        "kvquant_4bit": (69.12, 73.12),
        "dither_int8": (136, 136),
        "stochastic_int8": (136, 136),
    }
    for name, (key, value) in expected.items():
        assert get(name).bytes_per_token(128, "k") == pytest.approx(key)
        assert get(name).bytes_per_token(128, "v") == pytest.approx(value)
    assert get("rtn_int8").bytes_per_token(80) == 80 + 2 * 3
    for bad in ((0, "k"), (64, "q")):
        with pytest.raises(InputError):
            get("identity").bytes_per_token(*bad)  # type: ignore[arg-type]


def test_every_row_of_the_table_says_something() -> None:
    for row in table():
        assert all(row.values()), row
