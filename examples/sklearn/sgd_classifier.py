"""scikit-learn's SGDClassifier, trained by federated averaging."""

import numpy as np
from sklearn.linear_model import SGDClassifier

import turnout


def fit(arrays, inputs, targets, key):
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1, random_state=int(key.integers(2**31)))
    model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
    model.partial_fit(inputs, targets, classes=np.arange(10))
    return {"coef": model.coef_, "intercept": model.intercept_}, len(inputs)


def scores(arrays, inputs):
    return inputs @ arrays["coef"].T + arrays["intercept"]


task = turnout.ArrayTask({"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}, scores)
population = turnout.Population.of(turnout.datasets.load("digits"), 20, availability=turnout.Bernoulli(0.7))
result = turnout.simulate(task, population, turnout.FedAvg(turnout.PythonWork(fit)), rounds=20)
print(result.measures["test_accuracy"])
