"""Flower's older ways: client_fn of an id, and workflows or strategies without initial parameters."""

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow


class Mean(NumPyClient):
    """Moves half-way to a place of its own."""

    def __init__(self, partition):
        self.partition = partition

    def get_parameters(self, config):
        return [np.full(3, 2.0)]

    def fit(self, parameters, config):
        return [(parameters[0] + self.partition) / 2], 10 * (1 + self.partition), {}

    def evaluate(self, parameters, config):
        return float(np.abs(parameters[0] - self.partition).mean()), 10, {}


def client_fn(cid: str):
    return Mean(int(cid)).to_client()


client = ClientApp(client_fn=client_fn)
secret = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])
workflow, secure, given = ServerApp(), ServerApp(), ServerApp()
at_once = ServerApp(config=ServerConfig(num_rounds=2), strategy=FedAvg())
begun = ServerApp(
    config=ServerConfig(num_rounds=2), strategy=FedAvg(initial_parameters=ndarrays_to_parameters([np.full(3, 2.0)]))
)
whole = ServerApp(
    config=ServerConfig(num_rounds=2), strategy=FedAvg(initial_parameters=ndarrays_to_parameters([np.full(3, 2)]))
)
beginning = FedAvg(initial_parameters=ndarrays_to_parameters([np.full(3, 2.0)]))  # which is given away once


def lead(grid, context, strategy=None, **workflows):
    rounds = ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    DefaultWorkflow(**workflows)(grid, LegacyContext(context=context, config=rounds, strategy=strategy or FedAvg()))


@workflow.main()
def plainly(grid, context):
    lead(grid, context)


@given.main()
def with_a_model(grid, context):
    lead(grid, context, beginning)


@secure.main()
def securely(grid, context):
    lead(grid, context, fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=100.0))
