"""The gate: cells above a threshold are repaired from exact keys and values before their output leaves the layer."""

from witcert.gate.config import Gate
from witcert.gate.gated import Attended, GatedPool
from witcert.gate.ledger import Ledger, Traffic
from witcert.gate.predict import BlockSums, Plan, plan, predicted_meter
from witcert.gate.repairs import Repairs

__all__ = ["Attended", "BlockSums", "Gate", "GatedPool", "Ledger", "Plan", "Repairs", "Traffic", "plan", "predicted_meter"]
