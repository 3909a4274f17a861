"""Logistic regression with numpy, on data generated for each partition."""

import numpy as np


def load_data(partition_id):
    generator = np.random.default_rng(partition_id)
    count = 10 + 5 * partition_id
    X = generator.normal(size=(count, 4))
    y = (X @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3 * partition_id > 0).astype(float)
    return X, y


def loss(coef, intercept, X, y):
    scores = X @ coef + intercept
    return float(np.mean(np.logaddexp(0, scores) - y * scores))


def fit(coef, intercept, X, y, lr, batch):
    """One step on a random half of the samples; then one on all of them."""
    for rows in (batch, np.arange(len(y))):
        error = 1 / (1 + np.exp(-(X[rows] @ coef + intercept))) - y[rows]
        coef, intercept = coef - lr * X[rows].T @ error / len(rows), intercept - lr * error.mean(keepdims=True)
    return coef, intercept
