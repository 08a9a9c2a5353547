"""What capture rejects, and what it only warns about."""


class CaptureError(ValueError):
    """The module cannot be initialised, or captured without changing what it computes; the message says why and what to do."""


class CaptureWarning(UserWarning):
    """The capture is right, but probably not what was meant."""


class CheckpointError(ValueError):
    """A checkpoint of PyTorch cannot be converted; the message says what was expected, what was found, and where."""


class PlanError(ValueError):
    """A plan cannot be made, or asked for what it does not have; the message is the compiler's, or says what was expected and found."""


class FSDPError(RuntimeError):
    """A training cannot begin or go on; the message says what was expected, what was found, where, and what to do."""
