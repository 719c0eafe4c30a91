#!/usr/bin/env bash
# Run once, as root, when Gradescope builds the image of the autograder: Python 3.11 or newer, and goldformer.
# To upload: zip -r autograder.zip setup.sh run_autograder assignment
set -euo pipefail

python=python3
apt-get update
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    python=python3.11
    apt-get install -y "$python"
fi
apt-get install -y "$python-venv"
"$python" -m venv /opt/goldformer
# derive: to draw fresh cases. torch: what the ready assignments are written with; without it NumPy is left.
/opt/goldformer/bin/pip install --no-cache-dir 'goldformer[derive,torch]'
