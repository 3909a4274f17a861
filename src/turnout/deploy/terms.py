"""What every message of a study says of it: the schema, the preprocessing that was agreed on, how many take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, ConfigRecordValues

STUDY, STATISTICS = "study", "statistics"  # a record of messages; a question, and what answers it
_LONGEST = 1 << 22  # characters of a preprocessing


@dataclass(frozen=True)
class Terms:
    """What a site is told beside a job or a question."""

    schema: str  # digest
    members: int  # sites that take part
    preprocess: str = ""  # as `preprocess.json` has it; empty: not agreed on yet
    summaries: Sequence[str] = ()  # what measures of sets follow from

    def record(self) -> ConfigRecord:
        own: dict[str, ConfigRecordValues] = {"schema": self.schema, "members": self.members}
        return ConfigRecord({**own, "preprocess": self.preprocess, "summaries": [*self.summaries]})

    @classmethod
    def of(cls, record: ConfigRecord) -> Terms:
        """The inverse of `record`, at a site; `ValueError` or `KeyError` unless it is one."""
        schema, members, text, summaries = (record[name] for name in ("schema", "members", "preprocess", "summaries"))
        if type(schema) is not str or type(members) is not int or type(text) is not str or len(text) > _LONGEST:
            raise ValueError("not the terms of a study")
        if not isinstance(summaries, list) or not set(summaries) <= {"confusion", "scores"}:
            raise ValueError("not the summaries of a study")
        return cls(schema, members, text, [str(name) for name in summaries])
