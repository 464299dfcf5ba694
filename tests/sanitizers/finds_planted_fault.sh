#!/usr/bin/env bash
# finds_planted_fault.sh PROGRAM FAULT REPORT: PROGRAM runs clean without its fault, and with it fails and prints REPORT.
set -euo pipefail

program=$1 fault=$2 report=$3

if ! output=$("$program" none 2>&1) || [[ -n $output ]]; then
  echo "$output"
  echo "without a fault, $program should succeed and print nothing" >&2
  exit 1
fi
if output=$("$program" "$fault" 2>&1); then
  echo "$output"
  echo "the sanitizer let $program $fault pass" >&2
  exit 1
fi
if [[ $output != *"$report"* ]]; then
  echo "$output"
  echo "$program $fault failed, but not with '$report'" >&2
  exit 1
fi
