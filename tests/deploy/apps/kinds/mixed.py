"""The newer way: a question first, of which the model follows; then a strategy that trains and evaluates it."""

import sys
import threading

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp(mods=[arrays_size_mod])
server, trial, threaded, whole = ServerApp(), ServerApp(), ServerApp(), ServerApp()


def reply(message, partition, **records):
    metrics = MetricRecord({"place": float(partition), "num-examples": 10 * (1 + partition)})
    return Message(RecordDict({"metrics": metrics, **records}), reply_to=message)


@client.query("columns")
def columns(message, context):
    return reply(message, context.node_config["partition-id"])


@client.train()
def train(message, context):
    partition = context.node_config["partition-id"]
    moved = (message.content["arrays"]["0"].numpy() + partition) / 2
    return reply(message, partition, arrays=ArrayRecord([moved]))


@client.evaluate()
def evaluate(message, context):
    return reply(message, context.node_config["partition-id"])


def ask(grid, kind="query.columns", content=None):
    content = content or RecordDict()
    return list(grid.send_and_receive([Message(content, node, kind) for node in sorted(grid.get_node_ids())]))


@server.main()
def main(grid, context):
    width = len(ask(grid))
    rounds = context.run_config["num-server-rounds"]
    FedAvg().start(grid=grid, initial_arrays=ArrayRecord([np.full(width, 2.0)]), num_rounds=rounds)
    sys.exit(0)


@whole.main()
def begin_with_whole_numbers(grid, context):
    rounds = context.run_config["num-server-rounds"]
    FedAvg().start(grid=grid, initial_arrays=ArrayRecord([np.full(3, 2)]), num_rounds=rounds)


@trial.main()
def only_evaluate(grid, _):
    ask(grid, MessageType.EVALUATE, RecordDict({"arrays": ArrayRecord([np.ones(2)])}))


@threaded.main()
def in_threads(grid, _):
    def beat():
        try:
            ask(grid)
        except ValueError as error:
            caught.append(error)

    caught = []
    thread = threading.Thread(target=beat)
    thread.start()
    thread.join()
    assert caught
    ask(grid)
