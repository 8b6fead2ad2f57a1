#!/bin/sh
# Stands in for `python -m pip download`. A test links to it from a folder of its own, where it
# finds the wheels to serve and leaves a line per call; `behaviour`, if there, is sourced first.
here=$(dirname "$0")
echo "$*" >> "$here/calls"
while [ $# -gt 0 ]; do
    case $1 in
        -d) dest=$2; shift ;;
        *==*) package=${1%%==*} ;;
    esac
    shift
done
if [ -f "$here/behaviour" ]; then . "$here/behaviour"; fi
cp "$here/wheels/$package.whl" "$dest/$package-1.0-py3-none-any.whl"
