"""The gate: cells above a threshold are repaired from exact keys and values before their output leaves the layer."""

from witcert.gate.config import Gate
from witcert.gate.ledger import Ledger, Traffic
from witcert.gate.predict import BlockSums, Plan, plan, predicted_meter

__all__ = ["BlockSums", "Gate", "Ledger", "Plan", "Traffic", "plan", "predicted_meter"]
