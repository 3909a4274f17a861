"""Turnout: federated learning with whoever shows up."""

from turnout import datasets, models
from turnout.algorithms.algorithm import Algorithm
from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.algorithms.centralised import Centralised
from turnout.algorithms.fedadagrad import FedAdagrad
from turnout.algorithms.fedadam import FedAdam
from turnout.algorithms.fedasync import FedAsync
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedavgm import FedAvgM
from turnout.algorithms.fedbuff import FedBuff
from turnout.algorithms.fedcs import FedCS
from turnout.algorithms.fedfix import FedFix
from turnout.algorithms.fednova import FedNova
from turnout.algorithms.fedprox import FedProx
from turnout.algorithms.fedyogi import FedYogi
from turnout.algorithms.local import Local
from turnout.algorithms.safa import Safa
from turnout.algorithms.safa_thesis import SafaThesis
from turnout.algorithms.scaffold import Scaffold
from turnout.cohort.plan import Plan
from turnout.errors import UserError
from turnout.local.sgd import LocalSGD
from turnout.observe.observer import Observer
from turnout.population import devices, partition
from turnout.population.availability import Always, Bernoulli, Crashes, Detection
from turnout.population.links import Links
from turnout.population.population import Population
from turnout.population.ragged import Ragged
from turnout.run import Experiment, Result, execute, simulate
from turnout.sampling.binomial import Binomial
from turnout.sampling.clustered_similarity import ClusteredSimilarity
from turnout.sampling.clustered_size import ClusteredSize
from turnout.sampling.fill import Fill
from turnout.sampling.full import Full
from turnout.sampling.md import MD
from turnout.sampling.optimal import Optimal
from turnout.sampling.poisson_binomial import PoissonBinomial
from turnout.sampling.power_of_choice import PowerOfChoice
from turnout.sampling.renormalised import Renormalised
from turnout.sampling.target import Target
from turnout.sampling.uniform import Uniform
from turnout.server.policy import Policy, Schedule
from turnout.server.rehearsal import rehearse, schedule
from turnout.server.server import CURRENT, KEEP, Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task import Task

__version__ = "0.1.0"

__all__ = [
    "CURRENT", "KEEP", "MD", "Algorithm", "Always", "AsyncFedAvg", "Bernoulli", "Binomial", "Centralised",
    "ClusteredSimilarity", "ClusteredSize", "Crashes", "Detection", "Evaluation", "Experiment", "FedAdagrad",
    "FedAdam", "FedAsync", "FedAvg", "FedAvgM", "FedBuff", "FedCS", "FedFix", "FedNova", "FedProx", "FedYogi",
    "Fill", "Full", "Links", "Local", "LocalSGD", "Observer", "Optimal", "Plan", "PoissonBinomial", "Policy",
    "Population", "PowerOfChoice", "Ragged", "Renormalised", "Result", "Safa", "SafaThesis", "Scaffold",
    "Schedule", "Server", "Simulation", "Stopping", "Target", "Task", "Uniform", "UserError", "datasets",
    "devices", "execute", "models", "partition", "rehearse", "schedule", "simulate",
]  # fmt: skip
