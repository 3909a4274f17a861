"""What a client remembers on its own disk: models it may go on from, and answers with the state after them.

Flower's own context of a client dies with the run and with the SuperNode; a server that is restarted starts a new run.
"""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

Named = dict[str, Tensor]


class Memory:
    """Named tensors under names, the latest used of each kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def recall(self, kind: str, name: str) -> Named | None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not name.isalnum():  # names are digests; the server has no business with other files
            return None
        path = self.folder / kind / f"{name}.safetensors"
        try:
            found: Named = load_file(path)
        except (OSError, SafetensorError):
            return None
        os.utime(path)
        return found

    def remember(self, kind: str, name: str, tensors: Named, most: int) -> None:
        """Keep this, and of the others the newest: `most` in all. What a power cut takes is missing, not wrong."""
        from safetensors.torch import save_file

        kept = {part: value.detach().cpu().contiguous().clone() for part, value in tensors.items()}
        path = self.folder / kind / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(kept, path.with_suffix(".partial"))
        os.replace(path.with_suffix(".partial"), path)
        files = sorted(path.parent.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: max(0, len(files) - most)]:
            path.unlink()
