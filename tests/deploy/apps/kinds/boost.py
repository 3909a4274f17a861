"""Boosted trees: the model is bytes, and grows with every round."""

import json

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedXgbBagging

client, server = ClientApp(), ServerApp()


def stump(trees, leaf):
    parameters = {"num_trees": str(len(trees) + 1), "num_parallel_tree": "1"}
    model = {"gbtree_model_param": parameters, "iteration_indptr": [0, 1], "tree_info": [0], "trees": [{"leaf": leaf}]}
    return json.dumps({"learner": {"gradient_booster": {"model": model}}}).encode()


def trees_of(received):
    return json.loads(received)["learner"]["gradient_booster"]["model"]["trees"] if received else []


@client.train()
def train(message, context):
    trees = trees_of(message.content["arrays"]["0"].numpy().tobytes())
    grown = stump(trees, context.node_config["partition-id"] + 10 * len(trees))
    metrics = MetricRecord({"num-examples": 5})
    arrays = ArrayRecord([np.frombuffer(grown, np.uint8)])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message, _):
    trees = trees_of(message.content["arrays"]["0"].numpy().tobytes())
    metrics = MetricRecord({"eval_trees": float(len(trees)), "num-examples": 5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    nothing = ArrayRecord([np.frombuffer(b"", np.uint8)])
    FedXgbBagging().start(grid=grid, initial_arrays=nothing, num_rounds=context.run_config["num-server-rounds"])
