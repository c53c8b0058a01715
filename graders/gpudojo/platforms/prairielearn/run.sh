#!/usr/bin/env bash
# Run for each submission: leaves /grade/results/results.json.
root="${GPUDOJO_GRADE:-/grade}"
home="${GPUDOJO_ROOT:-/opt/gpudojo}"
mkdir -p "$root/results" "$root/student"
rm -rf "$root/results/results.json"
chmod -R go-rwx "$root/tests/evidence"
cd "$root/results" || exit 1
exec "$home/gpudojo/bin/python" -I -m gpudojo.platforms._autograder prairielearn "$root" @DAY@ "${GPUDOJO_SECONDS:-20}"@ONLY@
