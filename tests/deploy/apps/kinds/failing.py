"""An app with mistakes."""

from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()


@client.query()
def answer(message, context):
    if context.node_config["partition-id"] == 1:
        raise LookupError("no such column")
    return Message(RecordDict({"metrics": MetricRecord({"age": 40})}), reply_to=message)


def total(replies):
    return sum(reply.content["metrics"]["age"] for reply in replies)


@server.main()
def main(grid, _):
    messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    total(grid.send_and_receive(messages))
