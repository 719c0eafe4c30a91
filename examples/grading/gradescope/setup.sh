#!/usr/bin/env bash
# Run once, as root, when Gradescope builds the image of the autograder: Python 3.11 or newer, and goldformer.
# To upload: zip -r autograder.zip setup.sh run_autograder assignment
# The assignment's folder has its solution.py: submissions have to return what it returns, and cannot read it.
set -euo pipefail

# Fill in both: the address that you cloned goldformer from (goldformer is not on PyPI yet), and the commit to install,
# which `git rev-parse HEAD` prints in your clone.
GOLDFORMER_SOURCE=${GOLDFORMER_SOURCE:-}
GOLDFORMER_COMMIT=${GOLDFORMER_COMMIT:-}
if [[ -z $GOLDFORMER_SOURCE || -z $GOLDFORMER_COMMIT ]]; then
    echo "setup.sh: GOLDFORMER_SOURCE and GOLDFORMER_COMMIT are empty: fill in the address that you cloned goldformer" \
        "from, and the commit to install" >&2
    exit 1
fi

python=python3
apt-get update
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    python=python3.11
    apt-get install -y "$python"
fi
apt-get install -y "$python-venv" git jq
"$python" -m venv /opt/goldformer
# torch: what the ready assignments are written with; without it NumPy is left.
/opt/goldformer/bin/pip install --no-cache-dir "goldformer[torch] @ git+$GOLDFORMER_SOURCE@$GOLDFORMER_COMMIT"
# At the weakest level of isolation a submission reads what everyone may read.
chmod -R go-rwx "${AUTOGRADER:-/autograder}/source/assignment"
