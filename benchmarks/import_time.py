"""How long `import turnout` and `turnout --help` take, beside `import torch`: each in a new process, by turns.

    python benchmarks/import_time.py [--times 10]

Medians over processes, and their ratio to `import torch`. Nothing of Turnout imports torch before a name is used, and
the command line imports a command when it is called; so both are to be well below 1.2.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CASES = {
    "import torch": ("-c", "import torch"),
    "import turnout": ("-c", "import turnout"),
    "import turnout, and FedAvg": ("-c", "import turnout; turnout.FedAvg"),
    "turnout --help": ("-m", "turnout", "--help"),
    "turnout list algorithms": ("-m", "turnout", "list", "algorithms"),
}


def seconds(words: tuple[str, ...]) -> float:
    """Return what one new process takes."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="processes of each case")
    times = parser.parse_args().times
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for number in range(times + 1):
        for name, words in CASES.items():
            one = seconds(words)
            if number:  # the first fills the caches
                taken[name].append(one)
    base = statistics.median(taken["import torch"])
    for name, every in taken.items():
        print(f"{name:28} {statistics.median(every):6.3f} s  {statistics.median(every) / base:5.2f} times torch")


if __name__ == "__main__":
    main()
