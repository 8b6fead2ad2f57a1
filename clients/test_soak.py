"""The soak: everything at once, on one server, for some seconds; ten minutes with LOQUAT_FULL=1."""

import os

from soak.health import MAX_HEALTH_SECONDS
from soak.run import soak

IS_FULL = bool(os.environ.get("LOQUAT_FULL"))
SECONDS = 600 if IS_FULL else 10
# CI's machine may be busy with other work.
HEALTH_SECONDS = MAX_HEALTH_SECONDS if IS_FULL else 30.0


def test_server_survives_everything(tmp_path, capsys):
    report = soak(tmp_path, SECONDS, max_health_seconds=HEALTH_SECONDS)
    with capsys.disabled():
        print(f"\n{report}")
    assert not report.problems
