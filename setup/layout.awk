# From public headers to a C program that prints their layout: awk -f setup/layout.awk include/memtrain/*.h
#
# A line for each field of each struct ("mt_batch.count 16 8", offset and size), for each number of an enum
# ("MT_TRAIN 0"), "mt_batch: 32" for where a struct ends that may grow, and "mt_plan 192" for one that cannot: one
# without its own size in it, and one that the library fills in without asking how large the caller's is.

function flush_struct(   n, i, k, m, all, part, field, fixed) {
    n = split(body, all, ";")
    fixed = body !~ /^[ \n]*size_t size;/ || name == "mt_plan"
    for (i = 1; i <= n; i++) {
        if (all[i] !~ /[a-z]/) continue
        if (match(all[i], /\(\*[a-z0-9_]+\)/)) {
            print_field(substr(all[i], RSTART + 2, RLENGTH - 3))
            continue
        }
        m = split(all[i], part, ",")
        for (k = 1; k <= m; k++) {
            field = part[k]
            sub(/\[[^]]*\][ \n]*$/, "", field)
            sub(/[ \n]+$/, "", field)
            sub(/^.*[^a-z0-9_]/, "", field)
            print_field(field)
        }
    }
    printf "    printf(\"%s%s %%zu\\n\", sizeof(%s));\n", name, fixed ? "" : ":", name
}

function print_field(field) {
    printf "    printf(\"%s.%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", \
        name, field, name, field, name, field
}

function flush_enum(   n, i, all) {
    n = split(body, all, ",")
    for (i = 1; i <= n; i++)
        if (match(all[i], /MT_[A-Z0-9_]+/))
            printf "    printf(\"%s %%d\\n\", (int)%s);\n", substr(all[i], RSTART, RLENGTH), \
                substr(all[i], RSTART, RLENGTH)
}

BEGIN { program = "" }
FNR == 1 {
    file = FILENAME
    sub(/^.*\//, "", file)
    includes = includes "#include <memtrain/" file ">\n"
}
{ text = text $0 "\n" }

END {
    printf "%s#include <stdio.h>\n\nint main(void) {\n", includes
    while (match(text, /\/\*([^*]|\*+[^*\/])*\*+\//))
        text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH)
    while (match(text, /typedef (struct|enum) [a-z0-9_]+ \{/)) {
        head = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        end = index(text, "}")
        body = substr(text, 1, end - 1)
        split(head, word, " ")
        name = word[3]
        if (word[2] == "struct") flush_struct()
        else if (name != "mt_status") flush_enum()
    }
    print "    return 0;\n}"
}
