"""WitCert: a sound run-time bound on what KV-cache quantization does to attention."""

__version__ = "0.1.0"
