"""Forgetting clients: how far each has moved the model, where to roll back to, and what can be promised afterwards."""
