"""The same clients in Flower's old style."""

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context
from task import fit, load_data, loss


class FlowerClient(NumPyClient):
    def __init__(self, partition_id, lr):
        self.X, self.y = load_data(partition_id)
        self.lr = lr

    def get_parameters(self, config):
        return [np.zeros(4), np.zeros(1)]

    def fit(self, parameters, config):
        batch = np.random.permutation(len(self.y))[: len(self.y) // 2]
        coef, intercept = fit(*parameters, self.X, self.y, self.lr, batch)
        return [coef, intercept], len(self.y), {"train_loss": loss(coef, intercept, self.X, self.y)}

    def evaluate(self, parameters, config):
        value = loss(*parameters, self.X, self.y)
        return value, len(self.y), {"accuracy": 0.5}


def client_fn(context: Context):
    return FlowerClient(context.node_config["partition-id"], context.run_config["lr"]).to_client()


app = ClientApp(client_fn=client_fn)
