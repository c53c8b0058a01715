#!/usr/bin/env bash
# Run for each submission: prints feedback, and the scores as JSON in its last line.
root="$PWD"
home="${GPUDOJO_ROOT:-/opt/gpudojo}"
mkdir -p submission results
for file in *; do
  case "$file" in Makefile | autograde.tar | run.sh | evidence | submission | results) ;; *) mv -- "$file" submission/ ;; esac
done
# Autolab gives every handin the same name: what is no archive is told by how it begins.
for file in submission/*.zip; do
  if [ -f "$file" ] && [ "$(head -c 2 -- "$file")" != PK ] && ! tar tf "$file" > /dev/null 2>&1; then
    case "$(head -c 1 -- "$file")" in '{') mv -- "$file" "${file%.zip}.ipynb" ;; *) mv -- "$file" "${file%.zip}.py" ;; esac
  fi
done
chmod -R go-rwx evidence
cd results || exit 1
"$home/gpudojo/bin/python" -I -m gpudojo.platforms._autograder autolab "$root" @DAY@ "${GPUDOJO_SECONDS:-20}"@ONLY@ > log.txt 2>&1
cat feedback.txt
