"""Who takes part, and where each name is."""

from turnout.clients import adversary, arriving, behaviour, devices, memories, quality, regions, traces
from turnout.clients.availability import Always, Availability, Crashes, Detection
from turnout.clients.chains import Bernoulli, Diurnal, Grouped, Markov
from turnout.clients.devices import Devices
from turnout.clients.links import Links
from turnout.clients.population import Population
from turnout.clients.power import Power
from turnout.clients.traces import Trace

__all__ = [
    "Always", "Availability", "Bernoulli", "Crashes", "Detection", "Devices", "Diurnal",
    "Grouped", "Links", "Markov", "Population", "Power", "Trace", "adversary", "arriving", "behaviour", "devices",
    "memories", "quality", "regions", "traces",
]  # fmt: skip
