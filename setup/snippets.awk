# Writes the snippets of Markdown pages into files: awk -v dir=DIR -f snippets.awk PAGE...
#
# The line before each fence says what becomes of it:
#     <!-- snippet: job.c -->                  DIR/job.c; a suite includes it, or a snippet of commands builds it
#     <!-- snippet: none, WHY -->              a fragment that is not compiled
# Prints what is wrong, one a line; each name that was written goes to DIR/names.

function wrong(what) { print FILENAME ":" FNR ": " what }

function open_fence(language) {
    out = ""
    language = $0
    sub(/^```/, "", language)
    inside = 1
    if (language == "text") return
    if (marked != FNR - 1) {
        wrong("a snippet without <!-- snippet: NAME --> or <!-- snippet: none, WHY --> in the line before it")
        return
    }
    if (name ~ /^none, .../) return
    if (name !~ /^[a-z0-9_]+[.][a-z]+$/ || name !~ ("[.]" ending[language] "$")) {
        wrong("'" name "' is no name for a snippet of " language)
        return
    }
    if (name in written) {
        wrong("the snippet " name " is in " written[name] " already")
        return
    }
    written[name] = FILENAME
    out = dir "/" name
    printf "" >out
    print name >(dir "/names")
}

BEGIN {
    ending["c"] = "c"
    ending["cpp"] = "cpp"
    ending["sh"] = "sh"
    ending["python"] = "py"
    ending["cmake"] = "cmake"
    printf "" >(dir "/names")
}

FNR == 1 {
    inside = 0
    marked = -1
}

!inside && /^<!-- snippet: .* -->$/ {
    name = $0
    sub(/^<!-- snippet: /, "", name)
    sub(/ -->$/, "", name)
    marked = FNR
    next
}

/^```/ {
    if (inside) {
        inside = 0
        if (out) close(out)
    } else
        open_fence()
    next
}

inside { if (out) print >out; next }

# What is only indented would not be compiled.
/^    .*[;{]([ ]*(\/\/.*|\/\*.*\*\/))?$/ { wrong("C without a fence and a name: " $0) }
