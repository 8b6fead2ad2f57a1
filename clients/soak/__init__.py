"""A soak of the real server process: ordinary clients, broken clients, hostile input, damaged files and
operators at once, then checks that nothing was lost.

`python -m soak --seconds 600` in this folder's parent runs it; `test_soak.py` runs it in CI.
"""
