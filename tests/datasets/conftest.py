from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tiny_files import Refused

from turnout.core.errors import UserError


@pytest.fixture
def refused() -> Refused:
    """Expect one sentence that holds all these words."""

    @contextmanager
    def expect(*words: object) -> Iterator[None]:
        with pytest.raises(UserError) as caught:
            yield
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert str(word) in message

    return expect


@pytest.fixture(autouse=True)
def _no_folder_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNOUT_DATA", raising=False)
