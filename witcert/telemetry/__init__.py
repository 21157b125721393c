"""What the meters of a serving process say: counts on the device, sampled records, Prometheus metrics, a live page."""

from witcert.telemetry.recorder import Telemetry
from witcert.telemetry.snapshot import Point, Snapshot

__all__ = ["Point", "Snapshot", "Telemetry"]
