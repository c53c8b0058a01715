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
# The build of torch without CUDA: a tenth of the size, and there is no GPU here. GPUDOJO_TORCH_INDEX= takes PyPI's.
index="${GPUDOJO_TORCH_INDEX-https://download.pytorch.org/whl/cpu}"
torch="$(grep '^torch==' "$source/requirements.txt")"
if [ -z "$index" ] || ! pip install --quiet "$torch" --index-url "$index"; then
  echo "torch is installed from PyPI, with CUDA"
fi
pip install --quiet -r "$source/requirements.txt"
pip install --quiet --no-deps --require-hashes -r <(sed "s|^|$source/|" "$source/grader.txt")
if [ -d "$source/evidence" ]; then chmod -R go-rwx "$source/evidence"; fi
