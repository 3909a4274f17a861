"""Server apps that go wrong before they send anything, and a client that leaves."""

import sys

from flwr.clientapp import ClientApp
from flwr.server import ServerApp, ServerAppComponents, ServerConfig


def without_a_key(context):
    return ServerAppComponents(config=ServerConfig(num_rounds=context.run_config["rounds"]))


client, leaving = ClientApp(), ServerApp()
no_key, nothing = ServerApp(server_fn=without_a_key), ServerApp(server_fn=lambda _: None)


@client.query()
def leave(_, __):
    sys.exit(0)


@leaving.main()
def main(_, __):
    sys.exit(0)
