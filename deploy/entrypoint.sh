#!/bin/sh
# Formats the volume only if it is empty, then runs `cairn` with the given arguments.
set -eu
if [ "${1:-}" = serve ] && [ -z "$(ls -A "${CAIRN_DATA_DIR:=/data}")" ]; then
    cairn format
fi
exec cairn "$@"
