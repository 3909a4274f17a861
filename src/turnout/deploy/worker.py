"""The process of a client that computes: it loads the model's code and the samples once, and answers its node's
questions one after another until the node ends.

    python -m turnout.deploy.worker FOLDER DESCRIPTOR        (started by turnout.deploy.node)
"""

from __future__ import annotations

import socket
import sys
import traceback
from pathlib import Path

from flwr.app import Message

from turnout.core.errors import UserError
from turnout.deploy import fleet, frames
from turnout.deploy.client import Worker, worker
from turnout.deploy.fleet import Letter

READY = b"ready"  # the first frame of a worker


def answer(client: Worker, letter: Letter, parts: dict[str, bytes]) -> Message:
    """What a client answers; what goes wrong is an answer, too."""
    kind = letter.about.metadata.message_type
    does = {"train": client.train, "evaluate": client.evaluate}.get(kind)
    try:
        if does is None:
            raise UserError(f"deploy: a client trains and evaluates; the server asks it to {kind}")
        asked = fleet.opened(letter.tree, parts)
        return Message(does(asked.content), reply_to=asked)
    except Exception as error:
        traceback.print_exc()
        return fleet.failure(letter.about, f"{type(error).__name__}: {error}")


def attend(client: Worker, channel: socket.socket) -> None:
    """Answer until nobody asks."""
    frames.send(channel, READY)
    while True:
        try:
            letter = fleet.from_bytes(frames.receive(channel), frames.receive(channel))
            parts = {name: frames.receive(channel) for name in letter.names()}
        except (EOFError, OSError):
            return
        reply, contents = fleet.cut(answer(client, letter, parts))
        for frame in fleet.to_bytes(reply):
            frames.send(channel, frame)
        for part in contents:
            frames.send(channel, part)


def main(folder: Path, descriptor: int) -> int:
    channel = socket.socket(fileno=descriptor)
    frames.end_with(channel)
    try:
        client = worker(folder)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    attend(client, channel)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
