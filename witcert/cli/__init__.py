"""The ``witcert`` command."""

from witcert.cli.app import main

__all__ = ["main"]
