"""Boosted trees: in every round each client invited adds a HistGradientBoosting tree to one ensemble (bagging)."""

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor as Booster

import turnout

FIELDS = ["value", "feature_idx", "num_threshold", "left", "right", "is_leaf"]


def fit(arrays, inputs, targets, key):
    model = Booster(max_iter=1, max_leaf_nodes=8, min_samples_leaf=5, random_state=int(key.integers(2**31)))
    nodes = model.fit(inputs, targets - predict(arrays, inputs))._predictors[0][0].nodes
    tree = np.zeros((1, 15, len(FIELDS)))
    tree[0, : len(nodes)] = np.stack([nodes[field] for field in FIELDS], 1)
    tree[..., 0] += model.learning_rate * model._baseline_prediction
    return {"trees": tree}, len(inputs)


def predict(arrays, inputs):
    total = np.zeros(len(inputs))
    for tree in arrays["trees"]:
        at = np.zeros(len(inputs), int)
        for _ in range(8):
            _, feature, threshold, left, right, leaf = tree[at].T
            smaller = inputs[np.arange(len(inputs)), feature.astype(int)] <= threshold
            at = np.where(leaf, at, np.where(smaller, left, right)).astype(int)
        total += tree[at, 0]
    return total


loss, accuracy = lambda outputs, y: (outputs - y) ** 2, lambda outputs, y: ((outputs > 0.5) == y).float()
task = turnout.EnsembleTask({"trees": (15, 6)}, predict, capacity=80, loss=loss, metrics={"accuracy": accuracy})
population = turnout.Population.of(turnout.datasets.load("breast_cancer"), 8, availability=turnout.Bernoulli(0.7))
result = turnout.simulate(task, population, turnout.FedAvg(turnout.PythonWork(fit), turnout.Uniform(4)), rounds=20)
print(result.measures["test_accuracy"])
