"""A Flower app with numpy arrays. It counts its jobs in its context, and fails or lies on request."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import fit, load_data, loss

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    coef, intercept = msg.content["arrays"].to_numpy_ndarrays()
    partition_id = context.node_config["partition-id"]
    X, y = load_data(partition_id)
    done = context.state["count"]["jobs"] if "count" in context.state else 0
    context.state["count"] = ConfigRecord({"jobs": done + 1})
    if partition_id == context.run_config["fails"] and done:
        raise RuntimeError("out of luck")
    batch = np.random.permutation(len(y))[: len(y) // 2]
    coef, intercept = fit(coef, intercept, X, y, context.run_config["lr"] / (1 + done), batch)
    metrics = MetricRecord({"train_loss": loss(coef, intercept, X, y), "num-examples": len(y)})
    if partition_id == 1 and done and context.run_config["lies"]:
        coef = lie(context.run_config["lies"], coef)
    return Message(RecordDict({"arrays": ArrayRecord([coef, intercept]), "metrics": metrics}), reply_to=msg)


def lie(kind, coef):
    return {"nan": coef * np.nan, "shape": coef[:2], "words": np.array(["a", "b"])}[kind]


@app.evaluate()
def evaluate(msg: Message, context: Context):
    coef, intercept = msg.content["arrays"].to_numpy_ndarrays()
    X, y = load_data(context.node_config["partition-id"])
    metrics = MetricRecord({"eval_loss": loss(coef, intercept, X, y), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
