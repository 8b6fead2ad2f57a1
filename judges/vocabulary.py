"""Puts the vocabulary that `openai-harmony` reads into a folder: vocabulary.py FOLDER

The package would download it from its vendor's server. This program extracts a copy from a wheel on
the package index instead. The wheel is not installed.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "litellm==1.80.0"
MEMBER = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"
NAME = "o200k_base.tiktoken"
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def has_expected_hash(data):
    return hashlib.sha256(data).hexdigest() == SHA256


def download():
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        pip += ["--disable-pip-version-check", "--only-binary", ":all:", "-d", folder, WHEEL]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(MEMBER)


def main():
    path = Path(sys.argv[1]) / NAME
    if path.is_file() and has_expected_hash(path.read_bytes()):
        return
    data = download()
    if not has_expected_hash(data):
        sys.exit(f"{NAME} in {WHEEL} does not have the expected SHA-256 ({SHA256})")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


if __name__ == "__main__":
    main()
