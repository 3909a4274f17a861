"""Who can be invited again after a wait; clients that an invitation found away, and when to look for them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turnout.clients.online import OnlineSet
from turnout.core.random import FloatArray, IntArray
from turnout.server.jobs import CRASHED, LEFT
from turnout.server.updates import Updates

_RESOLUTION = 2e-6  # seconds: an availability model tells times apart by microseconds


@dataclass
class Absent:
    """Keep who is away, in the order in which that was learnt."""

    clients: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    back_at: FloatArray = field(default_factory=lambda: np.zeros(0))  # of each: seconds, or later

    def idle_after(self, ended: Updates, online: Callable[[], OnlineSet], now: float) -> IntArray:
        """See `Server.idle_after`."""
        failed = ended.failed
        if not len(failed) and not len(self.clients):
            return ended.released
        reasons = np.array(failed.reasons, object)
        crashed = failed.clients[(reasons == CRASHED) & ~failed.standing]
        gone = failed.clients[(reasons != CRASHED) & (reasons != LEFT)]
        return np.concatenate([ended.released, crashed, self._returned(gone, online, now)])

    def _returned(self, gone: IntArray, online: Callable[[], OnlineSet], now: float) -> IntArray:
        """Add those found away since, and take out who is back; nobody is looked for before that is of use."""
        if not len(gone) and not (self.back_at < now + _RESOLUTION).any():
            return gone
        clients, back_at = np.concatenate([self.clients, gone]), np.append(self.back_at, np.full(len(gone), now))
        due = np.flatnonzero(back_at < now + _RESOLUTION)
        present = online()
        back = present.contains(clients[due])
        back_at[due[~back]] = present.back_at(clients[due[~back]])
        self.clients, self.back_at = np.delete(clients, due[back]), np.delete(back_at, due[back])
        return clients[due[back]]

    def save(self) -> dict[str, Tensor]:
        """For a checkpoint, by the names that version 0.1 gave them."""
        return {
            "algorithm/absent@numpy": torch.as_tensor(self.clients),
            "algorithm/back_at@numpy": torch.as_tensor(self.back_at),
        }

    @classmethod
    def saved(cls, tensors: Mapping[str, Tensor]) -> Absent:
        """The inverse of `save`; nobody is away in a checkpoint that does not say."""
        names = [name for name in cls().save() if name in tensors]
        return cls(*(tensors[name].numpy().copy() for name in names))
