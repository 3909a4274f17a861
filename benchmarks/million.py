"""Events a second with a million clients that come and go as recorded: FedBuff with 2,000 at work, nobody trained.

    python benchmarks/million.py                               # 1,000 to 1,000,000 clients, buffers of 100 and 1,000
    python benchmarks/million.py --clients 1000000 --buffer 100 --json
    python benchmarks/million.py --trace FILE                  # FLASH, FedScale, or device,from_s,until_s
    python benchmarks/million.py --clients 1000000 --mapped    # the population saved, and opened with mapped columns

An event is an invitation that is sent or a job that ends. Clients follow the devices of a trace, each from a time of
its own; without `--trace` that is traces/availability_flash_6d.csv.gz in the folder TURNOUT_DATA and, where there is
none, a generated one of the same shape. Their speeds are log-normal, their links of three kinds, and each holds 20 of
60,000 samples. Full rounds with history on one core, in processor time; the first jobs (two for each place) are not
counted. Every case has a process of its own, so that peaks of memory are its own; `anonymous` is what is not a file's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import turnout
from turnout import FedBuff, Links, LocalSGD, Observer, Population, Ragged, devices
from turnout.clients import traces
from turnout.clients.devices import LogNormal
from turnout.core.random import integers, key, normal, uniform
from turnout.record.history import History
from turnout.server.observer import Round

DAY, DAYS, PHONES = 86_400, 6, 300
SAMPLES, POOL = 20, 60_000
RATES = np.array([[2e6, 20e6, 60e6], [1e6, 8e6, 20e6]])  # down and up: bits a second of each kind of link
MODEL_BYTES = 1_000_000


class Pace(Observer):
    """Events, jobs and rounds, and the time they took, after the first jobs."""

    def __init__(self, skip: int) -> None:
        self.skip, self.ended = skip, 0
        self.marks: list[tuple[float, float, int, int]] = []  # processor and wall time, events, jobs; a row a round

    def on_round(self, server: turnout.Server, record: Round) -> None:
        ended = int(record.facts["arrived"] + record.facts["failed"])
        self.ended += ended
        if self.ended >= self.skip:
            events = ended + int(record.facts["invited"])
            self.marks.append((time.process_time(), time.perf_counter(), events, ended))

    def report(self) -> dict[str, float]:
        processor, wall, events, jobs = np.array(self.marks).T
        seconds, total = processor[-1] - processor[0], events[1:].sum()
        return {
            "events": int(total),
            "events_a_second": total / seconds,
            "events_a_wall_second": total / (wall[-1] - wall[0]),
            "jobs_a_second": jobs[1:].sum() / seconds,
            "rounds_a_second": (len(events) - 1) / seconds,
            "us_an_event": 1e6 * seconds / total,
        }


def generated() -> traces.Trace:
    """Phones that charge once a night, about 17 per cent of the time, as those of FLASH."""
    day, phone = np.divmod(np.arange(DAYS * PHONES), PHONES)
    draws = key(0, "charging", phone, day)
    start = DAY * day + 3600 * (18 + 5 * uniform(draws, 2)[:, 0])
    length = np.minimum(3600 * 3.5 * np.exp(0.6 * normal(draws, 2)[:, 1]), 3600 * 14)
    return traces.Trace(phone, start, np.minimum(start + length, DAYS * DAY), DAYS * DAY, "random", "random")


def people(clients: int, trace: traces.Trace) -> Population:
    index, window = np.empty((clients, SAMPLES), np.int32), np.arange(SAMPLES, dtype=np.int32)
    first = integers(key(0, "samples", np.arange(clients)), 1, POOL - SAMPLES).astype(np.int32)
    np.add(first, window, out=index)
    kind = integers(key(0, "link", np.arange(clients)), 1, 3)[:, 0]
    return Population(
        torch.zeros(POOL, 1),
        torch.zeros(POOL),
        Ragged(np.arange(clients + 1) * SAMPLES, index.reshape(-1)),
        devices=devices.lognormal(20.0, 1.0, per="step"),
        links=Links(down=RATES[0][kind], up=RATES[1][kind], latency=LogNormal(0.05, 0.5)),
        availability=trace,
        model_bytes=MODEL_BYTES,
    )


def measure(population: Population, buffer: int, concurrency: int, jobs: int) -> dict[str, float]:
    begun = time.process_time()
    watch = Pace(2 * concurrency)
    turnout.rehearse(
        FedBuff(LocalSGD(0.1, batch_size=10), buffer_size=buffer, concurrency=concurrency),
        population,
        (2 * concurrency + jobs) // buffer,
        observers=[History(), watch],
    )
    took = time.process_time() - begun
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return watch.report() | {
        "in_flight": concurrency,
        "start_seconds": took - (watch.marks[-1][0] - watch.marks[0][0]),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "anonymous_mib": int(status["RssAnon"].split()[0]) / 1024,
    }


def child(arguments: argparse.Namespace) -> None:
    """One case in this process: make the population in a folder, or measure."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    (clients,), path = arguments.clients, arguments.trace
    folder = arguments.folder
    if folder and (Path(folder) / "population.json").exists():
        population = Population.open(folder)
    else:
        trace = traces.read(path, shift="random", assign="random") if path else generated()
        population = people(clients, trace)
        if folder:
            population.save(folder)
            return
    concurrency = min(arguments.concurrency, clients // 10)
    buffer = min(arguments.buffer[0], concurrency)
    print(json.dumps(measure(population, buffer, concurrency, arguments.jobs)))


def spawn(clients: int, buffer: int, arguments: argparse.Namespace, folder: str = "") -> dict[str, float]:
    command = [sys.executable, __file__, "--child", "--clients", str(clients), "--buffer", str(buffer)]
    for option in ("concurrency", "jobs", "trace"):
        command += [f"--{option}", str(getattr(arguments, option))]
    done = subprocess.run([*command, "--folder", folder], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.stdout else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, action="append")
    parser.add_argument("--buffer", type=int, action="append")
    parser.add_argument(
        "--concurrency", type=int, default=2000, help="at work at once, of up to a tenth of the clients"
    )
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs that are timed")
    parser.add_argument("--trace", default=None)
    parser.add_argument("--mapped", action="store_true", help="save the population, and open it memory-mapped")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    if arguments.trace is None:
        recorded = Path(os.environ.get("TURNOUT_DATA", ".")) / "traces" / "availability_flash_6d.csv.gz"
        arguments.trace = str(recorded) if recorded.exists() else ""
    trace = Path(arguments.trace).name if arguments.trace else "generated: set TURNOUT_DATA or --trace for a real one"
    rows: list[dict[str, Any]] = []
    if not arguments.json:
        print(f"trace {trace}")
    for buffer in arguments.buffer or [100, 1000]:
        for clients in arguments.clients or [1000, 10_000, 100_000, 1_000_000]:
            with tempfile.TemporaryDirectory() as place:
                folder = str(Path(place) / "clients") if arguments.mapped else ""
                if folder:
                    spawn(clients, buffer, arguments, folder)
                rows.append({"clients": clients, "buffer": buffer} | spawn(clients, buffer, arguments, folder))
            if not arguments.json:
                show(rows[-1])
    if arguments.json:
        print(json.dumps({"trace": trace, "mapped": arguments.mapped, "rows": rows}, indent=1))


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['clients']:9,} clients, buffer {row['buffer']:5,}, {row['in_flight']:5,} in flight: "
        f"{row['events_a_second']:9,.0f} events a second ({row['us_an_event']:5.2f} us, "
        f"wall {row['events_a_wall_second']:9,.0f})  {row['jobs_a_second']:8,.0f} jobs  "
        f"{row['rounds_a_second']:6,.0f} rounds  start {row['start_seconds']:4.1f} s  "
        f"peak {row['peak_mib']:5,.0f} MiB, anonymous {row['anonymous_mib']:5,.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
