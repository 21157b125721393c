"""What of WitCert is available and valid on this machine: ``witcert doctor``."""

from witcert.doctor.rows import Row, examine

__all__ = ["Row", "examine"]
