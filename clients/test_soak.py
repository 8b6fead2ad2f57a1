"""The soak: everything at once, on one server, for some seconds; ten minutes with LOQUAT_FULL=1."""

import os

from soak.run import soak

SECONDS = 600 if os.environ.get("LOQUAT_FULL") else 10


def test_server_survives_everything(tmp_path, capsys):
    report = soak(tmp_path, SECONDS)
    with capsys.disabled():
        print(f"\n{report}")
    assert not report.problems
