"""What Turnout takes of Flower beyond its documented names, and the versions that have it where it is looked for.

This is the place to change for another version of Flower.
"""

from importlib.metadata import version

from turnout.core.errors import UserError

VERSIONS = ("1.41", "1.42")  # the newest and the one before: what the tests have been run with


def check_version() -> None:
    """Raise unless the Flower installed is of a version that this was written for."""
    found = version("flwr")
    if found.rpartition(".")[0] not in VERSIONS:
        raise UserError(f"flower.app: Flower {found} is installed; allowed: {' and '.join(VERSIONS)}")


check_version()  # before names are looked for that another version has elsewhere

from flwr.common.config import flatten_dict  # noqa: E402
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, MessageTypeLegacy, SType  # noqa: E402
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto  # noqa: E402
from flwr.common.typing import GetParametersIns  # noqa: E402
from flwr.compat.common import recorddict_compat as old_style  # noqa: E402
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict  # noqa: E402
from flwr.server import server as old_server  # noqa: E402
from flwr.server.compat import app as old_app  # noqa: E402
from flwr.server.compat import app_utils  # noqa: E402
from flwr.server.workflow import default_workflows  # noqa: E402
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD  # noqa: E402
from flwr.serverapp.strategy import strategy_utils  # noqa: E402
from flwr.supercore.run import Run  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

__all__ = [
    "MAIN_PARAMS_RECORD",
    "SUPERLINK_NODE_ID",
    "ErrorCode",
    "GetParametersIns",
    "MessageTypeLegacy",
    "ProtoRecordDict",
    "Run",
    "SType",
    "TaskIdentity",
    "app_utils",
    "default_workflows",
    "flatten_dict",
    "old_app",
    "old_server",
    "old_style",
    "recorddict_from_proto",
    "recorddict_to_proto",
    "strategy_utils",
]
