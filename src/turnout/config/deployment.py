"""How a deployment waits, and who evaluates: the section `[deploy]` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from turnout.core.allowed import Finite, Seconds
from turnout.core.spelling import Spelt


@dataclass(frozen=True)
class Deploy(Spelt):
    """How long a deployment waits for its clients, and who evaluates."""

    section: ClassVar[str] = "deploy"

    reply_seconds: Seconds = 3600.0  # seconds after which a client that has not answered counts as gone
    join_seconds: Finite = 60.0  # seconds to wait for enrolled clients before the run begins
    evaluate: Literal["clients", "server"] = "clients"  # clients: each on its own data; server: on the central test set
    evaluation_seconds: Seconds = 600.0  # seconds that an evaluation waits for clients
    poll_seconds: Seconds = 0.5  # seconds between two looks for answers, at most
    agree_seconds: Seconds = 600.0  # seconds that sites have to agree on the preprocessing
    summaries: Literal["none", "confusion", "scores"] = "none"  # what sites of a study sum up beside: for F1, AUC
