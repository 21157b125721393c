"""Offline advice for a model: which layers to keep exact, which outlier pairs, which threshold a traffic budget allows.

Everything is measured on calibration texts. The meters behind it carry their guarantee for those queries; the advice is
``measured``, a forecast for texts like them.
"""

from witcert.audit.advice import Advice, advise
from witcert.audit.job import Audit, AuditConfig, audit
from witcert.audit.outliers import kept_channels, outlier_channels, rank_pairs
from witcert.audit.traffic import LayerTraffic, layer_traffic

__all__ = [
    "Advice",
    "Audit",
    "AuditConfig",
    "LayerTraffic",
    "advise",
    "audit",
    "kept_channels",
    "layer_traffic",
    "outlier_channels",
    "rank_pairs",
]
