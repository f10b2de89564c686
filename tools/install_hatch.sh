#!/bin/sh
# Install hatch for a Python (`python`, unless another is named) with the versions and hashes of requirements.lock.
# uv comes first: it checks the hashes of constraints, and pip does not.
set -eu
cd "$(dirname "$0")/.."
python=${1:-python}
sed -n '/^uv==/,/[^\\]$/p' requirements.lock | "$python" -m pip install --quiet --require-hashes -r /dev/stdin
"$python" -m uv pip install --quiet --python "$python" --constraint requirements.lock hatch
