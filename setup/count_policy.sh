#!/bin/sh
# Prints how much there is to read of the policy: lines of code without comments and blank lines, numbers in tuned.h, and
# fields of a policy, those of its own structs counted one by one. Apart are what saves and loads (learned.c), what is said
# of decisions (report.c), which options are accepted (options.c), and values that others use too (recording.c, plan.c).
set -eu
cd "$(dirname "$0")/../libmemtrain"
sources="policy.c policy_state.c split.c answer.c rungs.c clear.c kind.c sizes.c memory_model.c lengths.c"
headers="policy_state.h split.h kind.h sizes.h tuned.h"
apart="learned.c report.c options.c recording.c plan.c"
lines() {
    cat "$@" | awk '
        { gsub(/\/\*[^*]*\*\//, "") }
        /\/\*/ { comment = 1 }
        !comment && /[^ \t]/ { n++ }
        /\*\// { comment = 0 }
        END { print n }'
}
numbers=$(grep -cE '^#define [A-Z_]+ [0-9]' tuned.h)
fields=$(awk '
    { gsub(/\/\*.*/, "") }
    /^(typedef )?struct [a-z_]+ \{/ { name = $0; sub(/ \{.*/, "", name); sub(/.* /, "", name); of[name] = 0; next }
    /^\}/ { name = "" }
    name && /;/ {
        type = $1 == "const" ? $2 : $1
        of[name] += (type in of ? of[type] : 1) * split($0, declared, ",")
    }
    END { print of["mt_policy"] }' policy_state.h)
echo "policy: $(lines $sources) lines of code in $(echo $sources | wc -w) files, $(lines $headers) in their headers," \
    "$numbers tuned numbers, $fields fields of a policy"
echo "apart: $(lines $apart) lines in $apart"
