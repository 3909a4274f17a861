"""Boosted trees in the old style: parameters that are bytes of no type."""

from boost import stump, trees_of
from flwr.client import Client, ClientApp
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedXgbBagging

OK = Status(Code.OK, "")


class Boost(Client):
    def __init__(self, partition):
        self.partition = partition

    def fit(self, ins):
        trees = trees_of(b"".join(ins.parameters.tensors))
        grown = stump(trees, self.partition + 10 * len(trees))
        return FitRes(OK, Parameters([grown], ""), 5, {})

    def evaluate(self, ins):
        return EvaluateRes(OK, 0.0, 5, {"trees": float(len(trees_of(b"".join(ins.parameters.tensors))))})


def client_fn(context):
    return Boost(context.node_config["partition-id"])


def server_fn(context):
    strategy = FedXgbBagging(initial_parameters=Parameters([], ""), on_evaluate_config_fn=lambda _: {})
    rounds = context.run_config["num-server-rounds"]
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))


client, server = ClientApp(client_fn=client_fn), ServerApp(server_fn=server_fn)
