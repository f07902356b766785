#!/bin/sh
# Prints how much there is to read of the policy: lines of code without comments and blank lines, files, and numbers
# in tuned.h.
set -eu
cd "$(dirname "$0")/../libmemtrain"
files="policy.c policy_state.c split.c answer.c rungs.c clear.c kind.c sizes.c memory_model.c lengths.c policy_state.h split.h kind.h sizes.h tuned.h"
lines=$(cat $files | awk '
    { gsub(/\/\*[^*]*\*\//, "") }
    /\/\*/ { comment = 1 }
    !comment && /[^ \t]/ { n++ }
    /\*\// { comment = 0 }
    END { print n }')
numbers=$(grep -cE '^#define [A-Z_]+ [0-9]' tuned.h)
echo "policy: $lines lines of code in $(echo $files | wc -w) files, $numbers tuned numbers"
