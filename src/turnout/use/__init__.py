"""A trained model in use: predictions for the rows of a table, files for other programs, a card that says what it is.

>>> from turnout.use import Served
>>> served = Served.open("runs/wards")
>>> served.predict(served.table("new.csv")).labels
"""

from turnout.use.served import Predictions, Served

__all__ = ["Predictions", "Served"]
