"""The endpoints over HTTP: exposition that parses back to the counts, bounded labels, read-only, closed when in doubt."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from witcert.errors import InputError, MissingExtraError, WitCertError
from witcert.telemetry import Snapshot, Telemetry
from witcert.telemetry.prometheus import GROUPS, layer_groups
from witcert.telemetry.server import Server, page

from .common import BATCH, HEADS, LAYERS, fill, proved

METRICS = {
    "witcert:tv_bound", "witcert:certified_steps_total", "witcert:uncertified_steps_total", "witcert:nan_cells_total",
    "witcert:repairs_total", "witcert:pagein_bytes_total", "witcert:contract_violations_total",
}  # fmt: skip


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    t = Telemetry(LAYERS, HEADS)
    yield t
    t.close()


def get(server: Server, path: str = "", **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(server.url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers["Content-Type"], e.read().decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in text_string_to_metric_families(text) for s in f.samples}


def test_metrics_are_the_counts(telemetry: Telemetry) -> None:
    meters = fill(telemetry, 4, repaired=3, bytes=512)
    telemetry.record(0, (proved(torch.tensor([[float("nan")] * HEADS])),))
    telemetry.snapshot()
    with telemetry.serve(0) as server:
        # What a Prometheus server asks for; OpenMetrics would turn the colons into underscores.
        status, kind, text = get(server, "metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert status == 200
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert set(re.findall(r"^# TYPE (\S+)", text, re.M)) == METRICS
    got = samples(text)
    for i, tier in enumerate(("proved", "proved-nonadaptive")):
        label = (("tier", tier),)
        x = meters[:, :, i].double()
        lost = HEADS if i == 0 else 0
        assert got["witcert:certified_steps_total", label] == int((x <= 0.2).sum())
        assert got["witcert:uncertified_steps_total", label] == int((x > 0.2).sum()) + lost
        assert got["witcert:nan_cells_total", label] == lost
        for layer in range(LAYERS):
            group = (("layer_group", f"{layer}-{layer}"), label[0])
            cells, extra = x[:, layer], lost if layer == 0 else 0
            assert got["witcert:tv_bound_count", group] == cells.numel() + extra
            assert 0 <= got["witcert:tv_bound_sum", group] - float(cells.sum()) - extra <= cells.numel() * 2.0**-24
            for (name, labels), value in got.items():
                if name == "witcert:tv_bound_bucket" and set(group) <= set(labels):
                    edge = float(dict(labels)["le"])
                    assert value == int((cells <= edge).sum()) + (extra if edge >= 1 else 0), edge
    assert got["witcert:repairs_total", ()] == 4 * LAYERS * 3
    assert got["witcert:pagein_bytes_total", ()] == 4 * LAYERS * 512
    assert got["witcert:contract_violations_total", ()] == HEADS


def test_labels_are_bounded_whatever_the_model_and_the_requests() -> None:
    telemetry = Telemetry(200, 64)
    for step in range(30):
        meter = torch.rand(2, 64)
        telemetry.record(step * 5, (proved(meter),), request=[f"user-{step}", step])
    telemetry.snapshot()
    with telemetry.serve(0) as server:
        found = samples(get(server, "metrics")[2])
    labels = [dict(pairs) for _, pairs in found]
    assert {name for x in labels for name in x} == {"tier", "layer_group", "le"}
    assert {x["tier"] for x in labels if "tier" in x} == {"proved", "proved-nonadaptive"}
    assert len({x["layer_group"] for x in labels if "layer_group" in x}) == GROUPS
    assert len({x["le"] for x in labels if "le" in x}) <= 20
    assert len(found) <= 2 * GROUPS * 20 + 20


@pytest.mark.parametrize("layers", [1, 2, 7, 8, 9, 30, 200])
def test_layer_groups_cover_every_layer_once(layers: int) -> None:
    groups = layer_groups(layers)
    assert len(groups) == min(layers, GROUPS)
    assert [i for _, rows in groups for i in range(layers)[rows]] == list(range(layers))
    for name, rows in groups:
        assert name == f"{rows.start}-{rows.stop - 1}"


def test_a_registry_of_yours(telemetry: Telemetry) -> None:
    registry = CollectorRegistry()
    registry.register(telemetry.collector())
    fill(telemetry, 1)
    telemetry.snapshot()
    value = registry.get_sample_value("witcert:certified_steps_total", {"tier": "proved"})
    assert value == int(telemetry.snapshot().tier("proved").certified.sum())


def test_page_and_snapshot(telemetry: Telemetry) -> None:
    with telemetry.serve(0) as server:
        for fresh in (True, False):
            status, kind, text = get(server)
            assert (status, kind) == (200, "text/html; charset=utf-8")
            assert not re.search(r"(src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
            status, kind, text = get(server, "snapshot.json?layer=..%2f..")
            assert (status, kind) == (200, "application/json")
            got = Snapshot.from_json(json.loads(text))
            if not fresh:
                assert got.steps == 2
            fill(telemetry, 2) if fresh else None
            telemetry.snapshot()
        head = urllib.request.Request(server.url + "metrics", method="HEAD")
        with urllib.request.urlopen(head, timeout=20) as answer:
            assert answer.read() == b""
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["x", "../etc/passwd", "metrics/", "snapshot.json/..", "%2e%2e/page.html"])
def test_nothing_else_is_there(telemetry: Telemetry, path: str) -> None:
    with telemetry.serve(0) as server:
        assert get(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_can_only_be_read(telemetry: Telemetry, method: str) -> None:
    with telemetry.serve(0) as server:
        request = urllib.request.Request(server.url + "metrics", data=b"x=1", method=method)
        with pytest.raises(urllib.error.HTTPError) as e:
            urllib.request.urlopen(request, timeout=20)
        assert e.value.code == 405


def test_a_foreign_name_that_leads_here_gets_nothing(telemetry: Telemetry) -> None:
    with telemetry.serve(0) as server:
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "[::2]", ""):
            assert get(server, "snapshot.json", Host=host)[0] == 403, host
        for host in ("localhost", f"localhost:{server.port}", "127.0.0.1", "[::1]:80"):
            assert get(server, "snapshot.json", Host=host)[0] == 200, host


def test_only_this_machine_reaches_it_by_default(telemetry: Telemetry) -> None:
    with telemetry.serve(0) as server:
        assert server._http.server_address[0] == "127.0.0.1"


def test_a_taken_port_is_one_clear_error(telemetry: Telemetry) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(WitCertError, match=f"port {port}: it is taken"):
            telemetry.serve(port)
    with telemetry.serve(0) as server, pytest.raises(WitCertError, match="taken"):
        telemetry.serve(server.port)
    with pytest.raises(WitCertError, match=r"203\.0\.113\.1"):
        telemetry.serve(0, host="203.0.113.1")
    for port in (-1, 65536, True, "80"):
        with pytest.raises(InputError, match="port"):
            telemetry.serve(port)  # type: ignore[arg-type]


def test_the_port_is_free_after_close() -> None:
    telemetry = Telemetry(1, 1)
    server = telemetry.serve(0)
    telemetry.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=5)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))


def test_a_client_that_says_nothing_does_not_block_others(telemetry: Telemetry) -> None:
    with telemetry.serve(0) as server, socket.create_connection(("127.0.0.1", server.port)):
        assert get(server, "metrics")[0] == 200


def test_requests_while_cells_are_recorded(telemetry: Telemetry) -> None:
    """Every snapshot is consistent: both tiers, all layers, the same number of whole steps."""
    stop = threading.Event()
    seen: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(telemetry.read())

    thread = threading.Thread(target=read)
    thread.start()
    fill(telemetry, 40)
    stop.set()
    thread.join()
    assert len(seen) > 3
    for s in seen:
        assert all(t.cells.tolist() == [s.steps * BATCH * HEADS] * LAYERS for t in s.tiers)


def test_no_answer_while_the_device_must_not_be_touched(telemetry: Telemetry) -> None:
    """During a capture the last snapshot is served, or 503 where there is none."""
    with telemetry.exclusive():
        result: list[Any] = []

        def ask() -> None:
            try:
                result.append(telemetry.recent(wait=0.05))
            except WitCertError as e:
                result.append(e)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert isinstance(result[0], WitCertError)
    old = telemetry.snapshot()
    fill(telemetry, 1)
    with telemetry.exclusive():
        thread = threading.Thread(target=lambda: result.append(telemetry.recent(age=0.0, wait=0.05)))
        thread.start()
        thread.join()
    assert result[1] is old


def test_without_the_extra(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"witcert\[metrics\]"):
        telemetry.serve(0)


def test_a_page_of_a_snapshot_cannot_be_broken_out_of() -> None:
    text = page({"jsonl_error": "</script><script>alert(1)</script>"})
    assert "</script><script>alert" not in text
    assert text.count("</script>") == page().count("</script>")
    start = text.index('id="data">') + len('id="data">')
    assert json.loads(text[start : text.index("</script>", start)])["jsonl_error"].startswith("</script>")
