"""Errors that WitCert raises, each meant to be read by the person who caused it."""


class WitCertError(Exception):
    """Base of every error that WitCert raises on purpose; its message is complete without a traceback."""


class InputError(WitCertError, ValueError):
    """An argument is outside its accepted range; the message names the argument, the value and the range."""


class UnsupportedModelError(WitCertError):
    """The model has no attention that the meter's theorems speak about."""


class MissingExtraError(WitCertError, ImportError):
    """An optional dependency is not installed; the message says which extra brings it."""


class GuaranteeError(WitCertError, TypeError):
    """Two numbers under different guarantees were combined or compared."""


class SoundnessViolation(WitCertError):
    """A reported bound is below the quantity that it bounds."""


class PoolFullError(WitCertError):
    """Memory for more tokens was asked for than there is; nothing was changed, and the message says what was needed."""


class CorruptionError(WitCertError):
    """Stored bits are not those that were written; the message names them, and nothing was computed from them."""
