"""Turnout: federated learning with whoever shows up."""

from turnout import data as datasets
from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.apfl import APFL
from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.algorithms.centralised import Centralised
from turnout.algorithms.cfcfm import CFCFM
from turnout.algorithms.clustered_fl import ClusteredFL
from turnout.algorithms.d_fedem import DFedEM
from turnout.algorithms.ditto import Ditto
from turnout.algorithms.dpasgd import DPASGD
from turnout.algorithms.fedadagrad import FedAdagrad
from turnout.algorithms.fedadam import FedAdam
from turnout.algorithms.fedasync import FedAsync
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedavg_plus import FedAvgPlus
from turnout.algorithms.fedavg_rp import FedAvgRP
from turnout.algorithms.fedavgm import FedAvgM
from turnout.algorithms.fedbuff import FedBuff
from turnout.algorithms.fedcs import FedCS
from turnout.algorithms.fedem import FedEM
from turnout.algorithms.fedfix import FedFix
from turnout.algorithms.fednova import FedNova
from turnout.algorithms.fedper import FedPer
from turnout.algorithms.fedprof import FedProf
from turnout.algorithms.fedprox import FedProx
from turnout.algorithms.fedprox_plus import FedProxPlus
from turnout.algorithms.fedrep import FedRep
from turnout.algorithms.fedyogi import FedYogi
from turnout.algorithms.fem_omd import FEMOMD
from turnout.algorithms.hierfavg import HierFAVG
from turnout.algorithms.hybridfl import HybridFL
from turnout.algorithms.ifca import IFCA
from turnout.algorithms.knn_per import KNNPer
from turnout.algorithms.l2sgd import L2SGD
from turnout.algorithms.local import Local
from turnout.algorithms.mifa import Mifa
from turnout.algorithms.mocha import Mocha
from turnout.algorithms.pfedme import PFedMe
from turnout.algorithms.robust_fedavg import RobustFedAvg
from turnout.algorithms.robust_fedprox import RobustFedProx
from turnout.algorithms.robust_mean import RobustMean
from turnout.algorithms.robust_momentum import RobustMomentum
from turnout.algorithms.safa import Safa
from turnout.algorithms.safa_thesis import SafaThesis
from turnout.algorithms.scaffold import Scaffold
from turnout.algorithms.stream_fedavg import StreamFedAvg
from turnout.algorithms.werm import WERM
from turnout.clients import adversary, arriving, behaviour, devices, memories
from turnout.clients.availability import Always, Crashes, Detection
from turnout.clients.chains import Bernoulli, Diurnal, Grouped, Markov
from turnout.clients.links import Links
from turnout.clients.population import Population
from turnout.clients.power import Power
from turnout.clients.traces import Trace
from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.core.version import VERSION
from turnout.data import partition
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.personaliser import KNNPersonaliser
from turnout.local.sgd import LocalSGD
from turnout.peers.network import Exchange, Network, Overlay
from turnout.plan.rehearsal import rehearse, schedule
from turnout.record.tracking import MLflow, TensorBoard
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Screening, Watch
from turnout.report.read import recorded as read
from turnout.run.experiment import Experiment, Result, execute, simulate
from turnout.sampling.adafed import AdaFed
from turnout.sampling.afl import AFL
from turnout.sampling.binomial import Binomial
from turnout.sampling.cafed import CAFed
from turnout.sampling.clustered_similarity import ClusteredSimilarity
from turnout.sampling.clustered_size import ClusteredSize
from turnout.sampling.f3ast import F3AST
from turnout.sampling.fill import Fill
from turnout.sampling.full import Full
from turnout.sampling.md import MD
from turnout.sampling.more_available import MoreAvailable
from turnout.sampling.oort import Oort
from turnout.sampling.optimal import Optimal
from turnout.sampling.poisson_binomial import PoissonBinomial
from turnout.sampling.power_of_choice import PowerOfChoice
from turnout.sampling.renormalised import Renormalised
from turnout.sampling.target import Target
from turnout.sampling.unbiased import Unbiased
from turnout.sampling.uniform import Uniform
from turnout.server.observer import Observer
from turnout.server.policy import Policy, Schedule
from turnout.server.privacy import Privacy
from turnout.server.server import CURRENT, KEEP, Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task import models
from turnout.task.task import Task
from turnout.trust.forget import SIFU
from turnout.trust.leakage import attack_run, three_way

__version__ = VERSION

__all__ = [
    "AFL", "APFL", "CFCFM", "CURRENT", "DPASGD", "F3AST", "FEMOMD", "IFCA", "KEEP", "L2SGD", "MD", "SIFU", "WERM",
    "AdaFed", "Algorithm", "Always", "AsyncFedAvg", "Bernoulli", "Binomial", "CAFed", "Centralised", "ClusteredFL",
    "ClusteredSimilarity", "ClusteredSize", "Crashes", "DFedEM", "Dataset", "Detection", "Ditto", "Diurnal",
    "Evaluation", "Exchange", "Experiment", "FedAdagrad", "FedAdam", "FedAsync", "FedAvg", "FedAvgM", "FedAvgPlus",
    "FedAvgRP", "FedBuff", "FedCS", "FedEM", "FedFix", "FedNova", "FedPer", "FedProf", "FedProx", "FedProxPlus",
    "FedRep", "FedYogi", "Fill", "Full", "Grouped", "HierFAVG", "HybridFL", "KNNPer", "KNNPersonaliser", "Links",
    "Local", "LocalSGD", "MLflow", "Markov", "Mifa", "Mocha", "MoreAvailable", "Network", "Observer", "Oort",
    "Optimal", "Overlay", "PFedMe", "Plan", "PoissonBinomial", "Policy", "Population", "Power", "PowerOfChoice",
    "Privacy", "Ragged", "Renormalised", "Result", "RobustFedAvg", "RobustFedProx", "RobustMean", "RobustMomentum",
    "Safa", "SafaThesis", "Scaffold", "Schedule", "Screening", "Server", "Simulation", "Stopping", "StreamFedAvg",
    "Target", "Task", "TensorBoard", "Trace", "Unbiased", "Uniform", "Unlearning", "UserError", "Watch", "adversary",
    "arriving", "attack_run", "behaviour", "datasets", "devices", "execute", "memories", "models", "partition",
    "random", "read", "rehearse", "schedule", "simulate", "three_way",
]  # fmt: skip
