"""Vertical learning: every client has columns of its own, and is sent a gradient of its own."""

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()
losses = []


def columns(context):
    return np.random.default_rng(context.node_config["partition-id"]).normal(size=(8, 2))


def weights(context):
    return context.state["weights"]["0"].numpy() if "weights" in context.state else np.ones(2)


@client.query("embed")
def embed(message, context):
    return Message(RecordDict({"out": ArrayRecord([columns(context) @ weights(context)])}), reply_to=message)


@client.train("backward")
def backward(message, context):
    gradient = columns(context).T @ message.content["gradient"]["0"].numpy()
    context.state["weights"] = ArrayRecord([weights(context) - 0.05 * gradient])
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid, context):
    losses.clear()
    target, nodes = np.arange(8.0), sorted(grid.get_node_ids())
    for _ in range(context.run_config["num-server-rounds"]):
        replies = grid.send_and_receive([Message(RecordDict(), node, "query.embed") for node in nodes])
        parts = {reply.metadata.src_node_id: reply.content["out"]["0"].numpy() for reply in replies}
        error = sum(parts[node] for node in nodes) - target
        losses.append(float((error**2).mean()))
        gradients = {node: RecordDict({"gradient": ArrayRecord([error * (1 + node)])}) for node in nodes}
        messages = [Message(gradients[node], node, f"{MessageType.TRAIN}.backward") for node in nodes]
        assert len(list(grid.send_and_receive(messages))) == len(nodes)
