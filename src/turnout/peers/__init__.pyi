"""Training without a server, and where each name is."""

from turnout.peers.network import Exchange, Network, Overlay

__all__ = [
    "Exchange", "Network", "Overlay",
]  # fmt: skip
