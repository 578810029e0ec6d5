#!/bin/sh
# Plays every scenario that a host with a real NVIDIA GPU can play, and asks the usual tools too.
#
#     tests/gpu/accuracy.sh PROGRAMS OUT [NAME...]
#
# PROGRAMS is a folder with `outlive`, `scenario` and `accuracy` (cargo build --release --workspace --bins), OUT a folder for h200.jsonl.
# Needs root and nvcc, and python3 with PyTorch for two scenarios. Exit code 0 when everything was right. Never resets the GPU and never
# changes a setting of it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
programs=$(cd "$1" && pwd)
out=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvcc -O1 -o "$work/scenarios" "$here/scenarios.cu" "$here/sharing.cu" "$here/kinds.cu" -lcuda -lpthread
cp "$here"/*.py "$work"
OUTLIVE_CUDA_PROGRAMS=$work "$programs/accuracy" play --with gpu --rivals --out "$out/h200.jsonl" "$@"
