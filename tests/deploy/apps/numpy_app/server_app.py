"""One of Flower's own strategies, by name."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp, strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    options = {"proximal_mu": 0.1} if config["strategy"] == "FedProx" else {}
    fractions = {"fraction_train": config["fraction-train"], "fraction_evaluate": config["fraction-evaluate"]}
    chosen = getattr(strategy, config["strategy"])(**fractions, **options)
    arrays = ArrayRecord([np.zeros(4), np.zeros(1)])
    chosen.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=config["num-server-rounds"],
        timeout=100,
        train_config=ConfigRecord({"for": "training"}),
        evaluate_config=ConfigRecord({"for": "evaluation"}),
    )
