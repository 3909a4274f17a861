"""Bytes between a client's two processes, over a socket pair: an 8-byte length, big-endian, and that many bytes."""

from __future__ import annotations

import os
import select
import socket
import threading

_LENGTH = 8  # bytes


def send(channel: socket.socket, data: bytes) -> None:
    """Write one frame; `OSError` where nobody reads any more."""
    channel.sendall(len(data).to_bytes(_LENGTH, "big"))
    channel.sendall(data)


def receive(channel: socket.socket) -> bytes:
    """Read one frame; `EOFError` where nobody writes any more."""
    return bytes(_exactly(channel, int.from_bytes(_exactly(channel, _LENGTH), "big")))


def _exactly(channel: socket.socket, size: int) -> bytearray:
    data, got = bytearray(size), 0
    while got < size:
        with memoryview(data) as view:
            count = channel.recv_into(view[got:])
        if not count:
            raise EOFError("the other process has ended")
        got += count
    return data


def end_with(channel: socket.socket) -> None:
    """End this process when the other one does, also in the middle of a job: nobody would take its answer."""

    def watch() -> None:
        hung_up = select.poll()
        hung_up.register(channel, 0)  # that is told without being asked for
        hung_up.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
