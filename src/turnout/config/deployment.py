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

    reply_seconds: float = 3600.0
    join_seconds: float = 60.0
    evaluate: str = "clients"
    evaluation_seconds: float = 600.0
    poll_seconds: float = 0.5

    def __post_init__(self) -> None:
        if self.evaluate not in EVALUATORS:
            raise UserError(f"deploy.evaluate: {self.evaluate!r} is not one of {', '.join(EVALUATORS)}")
        for name in ("reply_seconds", "evaluation_seconds", "poll_seconds"):
            check_seconds(f"deploy.{name}", getattr(self, name))
        if self.join_seconds:
            check_positive("deploy.join_seconds", self.join_seconds)
