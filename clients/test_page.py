"""The page, in a real browser."""

import os
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "page"


def test_page(server):
    environment = {**os.environ, "LOQUAT_URL": server.url, "LOQUAT_MODEL": server.model}
    subprocess.run(["node", "--test"], cwd=FOLDER, env=environment, check=True)
