"""What only tests switch on, through the environment: CLOZE_FAULT and CLOZE_LOGICAL_GPUS.

In: the environment of the driver. Out: what it asks for, or a UserError before anything starts. Knows neither Ray nor
torch.
"""

import os

from data.config import UserError
from orchestration.beacon import faults_of

FAULT, LOGICAL_GPUS = "CLOZE_FAULT", "CLOZE_LOGICAL_GPUS"


def check_switches() -> None:
    """Raises UserError where one of them is set to what it does not know."""
    faults_of(fault())
    logical_gpus()


def fault() -> str:
    """Where workers are to break (orchestration/beacon.py)."""
    return os.environ.get(FAULT, "")


def logical_gpus() -> bool:
    """Whether Ray's GPUs are only a number, not to be compared with those that torch finds. Raises UserError."""
    given = os.environ.get(LOGICAL_GPUS, "0")
    if given not in ("", "0", "1"):
        raise UserError(f"{LOGICAL_GPUS}={given}: neither 0 nor 1; give 1 where Ray's GPUs are a number only, or none")
    return given == "1"
