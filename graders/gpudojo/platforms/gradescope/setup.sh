#!/usr/bin/env bash
# Run once, when the image is built: installs Python, torch and the grader in a virtual environment.
set -euo pipefail
root="${GPUDOJO_ROOT:-/autograder}"
source="$root/source"
environment="$root/gpudojo"

recent() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1; }
if [ ! -x "$environment/bin/python" ]; then
  export DEBIAN_FRONTEND=noninteractive
  if command -v apt-get > /dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends libseccomp2 python3 python3-pip python3-venv
  fi
  found=
  for python in python3.13 python3.12 python3.11 python3; do
    if recent "$python"; then found="$python"; break; fi
  done
  if [ -n "$found" ]; then
    "$found" -m venv "$environment"
  else
    # not into root's home folder, which the user that runs submissions cannot read
    export UV_PYTHON_INSTALL_DIR="$root/python"
    python3 -m pip install --quiet uv
    python3 -m uv venv --quiet --seed --python 3.12 "$environment"
  fi
fi
pip() { "$environment/bin/python" -I -m pip --disable-pip-version-check --no-cache-dir "$@"; }
# PIP_EXTRA_INDEX_URL may name an index of builds without CUDA, which are smaller
pip install --quiet -r "$source/requirements.txt"
pip install --quiet --no-deps --require-hashes -r <(sed "s|^|$source/|" "$source/grader.txt")
chmod -R go-rwx "$source/evidence"
