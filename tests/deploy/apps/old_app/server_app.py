"""A strategy of the old style; the initial model is asked of a client."""

from flwr.common import Context
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg


def server_fn(context: Context):
    return ServerAppComponents(
        strategy=FedAvg(), config=ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    )


app = ServerApp(server_fn=server_fn)
