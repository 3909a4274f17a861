"""The public names of Turnout, and where each is: read by people, type checkers and `turnout.core.lazy`."""

from turnout import aggregation, algorithms, clients, datasets, local, models, peers, record, samplers, tasks, trust
from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.algorithms.fedadam import FedAdam
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedbuff import FedBuff
from turnout.algorithms.fedfix import FedFix
from turnout.algorithms.fedprox import FedProx
from turnout.algorithms.safa import Safa
from turnout.algorithms.scaffold import Scaffold
from turnout.clients import devices
from turnout.clients.availability import Always, Crashes, Detection
from turnout.clients.chains import Bernoulli, Diurnal, Markov
from turnout.clients.links import Links
from turnout.clients.population import Population
from turnout.clients.power import Power
from turnout.clients.traces import Trace
from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.python_work import PythonWork
from turnout.local.sgd import LocalSGD
from turnout.plan.rehearsal import rehearse, schedule
from turnout.record.tracking import MLflow, TensorBoard
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Screening
from turnout.report.frame import frame
from turnout.report.read import recorded as read
from turnout.run.experiment import Experiment, Result, execute, simulate
from turnout.sampling._sampler import Sampler, Selection
from turnout.sampling.full import Full
from turnout.sampling.md import MD
from turnout.sampling.uniform import Uniform
from turnout.server.observer import Observer
from turnout.server.policy import Policy, Schedule
from turnout.server.privacy import Privacy
from turnout.server.server import CURRENT, KEEP, Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.server.updates import Updates
from turnout.task.arrays import ArrayTask, EnsembleTask
from turnout.task.task import Task

__version__: str

__all__ = [
    "CURRENT",
    "KEEP",
    "MD",
    "Algorithm",
    "Always",
    "ArrayTask",
    "AsyncFedAvg",
    "Bernoulli",
    "Crashes",
    "Dataset",
    "Detection",
    "Diurnal",
    "EnsembleTask",
    "Evaluation",
    "Experiment",
    "FedAdam",
    "FedAvg",
    "FedBuff",
    "FedFix",
    "FedProx",
    "Full",
    "Links",
    "LocalSGD",
    "MLflow",
    "Markov",
    "Observer",
    "Plan",
    "Policy",
    "Population",
    "Power",
    "Privacy",
    "PythonWork",
    "Ragged",
    "Result",
    "Safa",
    "Sampler",
    "Scaffold",
    "Schedule",
    "Screening",
    "Selection",
    "Server",
    "Simulation",
    "Stopping",
    "Task",
    "TensorBoard",
    "Trace",
    "Uniform",
    "Unlearning",
    "Updates",
    "UserError",
    "aggregation",
    "algorithms",
    "clients",
    "datasets",
    "devices",
    "execute",
    "frame",
    "local",
    "models",
    "peers",
    "random",
    "read",
    "record",
    "rehearse",
    "samplers",
    "schedule",
    "simulate",
    "tasks",
    "trust",
]  # fmt: skip
