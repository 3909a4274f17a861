"""What a task is made of: losses, metrics, ways to show samples: `Task(model, loss=turnout.tasks.Focal(gamma=1))`."""

from turnout.core.lazy import lazily

__all__, __getattr__, __dir__ = lazily(__name__, __file__)
