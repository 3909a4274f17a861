"""How a deployment waits, and who evaluates: the section `[deploy]` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.core.errors import UserError, check_positive, check_seconds

EVALUATORS = ("clients", "server")


@dataclass(frozen=True)
class Deploy:
    """A client that has not answered `reply_seconds` after it was asked counts as gone; a run begins when all enrolled
    clients are there, or after `join_seconds`. `evaluate`: clients on their own data, waited for no longer than
    `evaluation_seconds`, or the server on the central test set alone. The server looks for answers at least every
    `poll_seconds`."""

    reply_seconds: float = 3600.0  # seconds after which a client that has not answered counts as gone
    join_seconds: float = 60.0  # seconds to wait for enrolled clients before the run begins
    evaluate: str = "clients"  # clients: each on its own data; server: on the central test set
    evaluation_seconds: float = 600.0  # seconds that an evaluation waits for clients
    poll_seconds: float = 0.5  # seconds between two looks for answers, at most

    def __post_init__(self) -> None:
        if self.evaluate not in EVALUATORS:
            raise UserError(f"deploy.evaluate: {self.evaluate!r} is not one of {', '.join(EVALUATORS)}")
        for name in ("reply_seconds", "evaluation_seconds", "poll_seconds"):
            check_seconds(f"deploy.{name}", getattr(self, name))
        if self.join_seconds:
            check_positive("deploy.join_seconds", self.join_seconds)
