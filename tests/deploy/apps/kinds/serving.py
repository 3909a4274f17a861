"""A server of its own, which is there as soon as this is imported."""

from flwr.server import ServerConfig, start_server

start_server(server_address="127.0.0.1:0", config=ServerConfig(num_rounds=2))
