"""All hand-written modules."""

import plain_autocast  # noqa: F401
import plain_layers  # noqa: F401
import plain_state  # noqa: F401
from plain import CASES  # noqa: F401
