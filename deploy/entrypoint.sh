#!/bin/sh
# Formats the volume when it is empty and only then; hands over to `cairn` with the arguments given.
set -eu
if [ "${1:-}" = serve ] && [ -z "$(ls -A "${CAIRN_DATA_DIR:=/data}")" ]; then
    cairn format
fi
exec cairn "$@"
