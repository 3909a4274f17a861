"""Every algorithm, and where it is."""

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

__all__ = [
    "APFL",
    "CFCFM",
    "DPASGD",
    "FEMOMD",
    "IFCA",
    "L2SGD",
    "WERM",
    "Algorithm",
    "AsyncFedAvg",
    "Centralised",
    "ClusteredFL",
    "DFedEM",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedAvgPlus",
    "FedAvgRP",
    "FedBuff",
    "FedCS",
    "FedEM",
    "FedFix",
    "FedNova",
    "FedPer",
    "FedProf",
    "FedProx",
    "FedProxPlus",
    "FedRep",
    "FedYogi",
    "HierFAVG",
    "HybridFL",
    "KNNPer",
    "Local",
    "Mifa",
    "Mocha",
    "PFedMe",
    "RobustFedAvg",
    "RobustFedProx",
    "RobustMean",
    "RobustMomentum",
    "Safa",
    "SafaThesis",
    "Scaffold",
    "StreamFedAvg",
]  # fmt: skip
