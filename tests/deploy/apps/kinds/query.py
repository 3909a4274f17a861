"""Analytics: the ServerApp asks what clients have, and nobody trains."""

import time
from time import sleep

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()
said = {}  # what the ServerApp found out


def values(context):
    return np.random.default_rng(context.node_config["partition-id"]).normal(size=10)


@client.query()
def histogram(message, context):
    bins = message.content["config"].pop("bins")  # its own copy: the others find it too
    counts = np.histogram(values(context), bins)[0]
    return Message(RecordDict({"counts": ArrayRecord([counts])}), reply_to=message)


@client.query("mean")
def mean(message, context):
    metrics = MetricRecord({"mean": float(values(context).mean()), "num-examples": 10})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid, _):
    said.clear()
    nodes = list(grid.get_node_ids())
    content = RecordDict({"config": ConfigRecord({"bins": [-10.0, 0.0, 10.0]})})
    replies = grid.send_and_receive([Message(content, node, MessageType.QUERY) for node in nodes])
    found = {reply.metadata.src_node_id: reply.content["counts"]["0"].numpy() for reply in replies}
    said["histogram"] = sum(found[node] for node in nodes).tolist()
    replies = grid.send_and_receive([Message(RecordDict(), node, "query.mean") for node in nodes])
    said["means"] = {reply.metadata.src_node_id: reply.content["metrics"]["mean"] for reply in replies}
    said["beats"] = beats(grid, nodes, time.time() + 20.0)


def beats(grid, nodes, until):
    """Ask until some moment, every five seconds, and wait for nobody."""
    waiting, times, begun = set(), [], time.time()
    while time.time() < until:
        waiting |= set(grid.push_messages([Message(RecordDict(), node, "query.mean") for node in nodes]))
        sleep(5)
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            times.append((reply.metadata.src_node_id, time.time() - begun))
    return times
