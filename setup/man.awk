# Manual pages of one public header: awk -v dir=build/man/man3 -v version=0.1.0 -f setup/man.awk HEADER
#
# A page for each function (NAME, SYNOPSIS, DESCRIPTION, PARAMETERS, RETURN VALUE, from the comment before its
# declaration; one that follows another without a comment shares that one's) and one for the header itself,
# memtrain-HEADER, with its types as they stand. With -v list=1 only the names of the pages are printed.

function escaped(line) {
    gsub(/\\/, "\\e", line)
    gsub(/--/, "\\-\\-", line)
    return line ~ /^[.']/ ? "\\&" line : line
}

function escaped_lines(t,   n, i, all, out) {
    n = split(t, all, "\n")
    for (i = 1; i <= n; i++) out = out (i > 1 ? "\n" : "") escaped(all[i])
    return out
}

# The words of a comment: without its frame, lines by "\n".
function words(comment,   n, i, line, out, all) {
    n = split(comment, all, "\n")
    for (i = 1; i <= n; i++) {
        line = all[i]
        sub(/^ *\/\* ?/, "", line)
        sub(/ ?\*\/ *$/, "", line)
        sub(/^ *\* ?/, "", line)
        if (comment !~ /\n \*/) sub(/^ +/, "", line)
        out = out (i > 1 ? "\n" : "") line
    }
    sub(/^\n+/, "", out)
    sub(/\n+$/, "", out)
    return out
}

# Paragraphs; what is indented stays as it is. Lists of words ("  name   what") count as that.
function prose(text, file,   n, i, line, all, code) {
    n = split(text, all, "\n")
    for (i = 1; i <= n; i++) {
        line = all[i]
        if (line != "" && (line ~ /^  /) != code) {
            code = !code
            print code ? ".PP\n.nf" : ".fi\n.PP" > file
        }
        if (line == "" && !code) print ".PP" > file
        else print escaped(line) > file
    }
    if (code) print ".fi" > file
}

# Cuts text, params and returns out of a comment's words.
function parse(comment,   n, i, line, all, into) {
    text = params = returned = ""
    n = split(words(comment), all, "\n")
    into = "text"
    for (i = 1; i <= n; i++) {
        line = all[i]
        if (match(line, /@return/)) {
            if (RSTART > 1 && into == "text") text = text substr(line, 1, RSTART - 1) "\n"
            line = substr(line, RSTART + RLENGTH + 1)
            into = "return"
        } else if (line ~ /^ *@param/) {
            sub(/^ *@param +/, "", line)
            into = "param"
            params = params "\f"
        }
        if (into == "text") text = text line "\n"
        else {
            sub(/^ +/, "", line)
            if (into == "param") params = params line "\n"
            else returned = returned line "\n"
        }
    }
    sub(/\n+$/, "", text)
}

# The first one of a text.
function sentence(t) {
    sub(/\n\n.*/, "", t)
    gsub(/\n/, " ", t)
    return match(t, /\. |\.$/) ? substr(t, 1, RSTART - 1) : t
}

function heading(name, what, file) {
    printf ".TH %s 3 \"\" \"memtrain %s\" \"memtrain\"\n.SH NAME\n%s \\- %s\n", name, version, name, \
        escaped(what) > file
}

function print_params(file,   n, i, all, name) {
    n = split(params, all, "\f")
    if (n < 2) return
    print ".SH PARAMETERS" > file
    for (i = 2; i <= n; i++) {
        name = all[i]
        sub(/[ \n].*/, "", name)
        print ".TP\n.I " name > file
        sub(/^[^ \n]+ */, "", all[i])
        sub(/\n+$/, "", all[i])
        prose(all[i], file)
    }
}

function page(declaration,   name, file, what) {
    match(declaration, /mt_[a-z0-9_]+\(/)
    name = substr(declaration, RSTART, RLENGTH - 1)
    functions = functions name "\n"
    if (list) {
        print name ".3"
        return
    }
    file = dir "/" name ".3"
    parse(last_comment)
    what = sentence(text)
    heading(name, what == "" ? "a function of memtrain/" header : what, file)
    gsub(/MT_API |MT_NODISCARD | ?MT_PRINTF\([^)]*\)/, "", declaration)
    gsub(/\n +/, "\n    ", declaration)
    printf ".SH SYNOPSIS\n.nf\n#include <memtrain/%s>\n\n%s\n.fi\n", header, escaped(declaration) > file
    if (text != "") {
        print ".SH DESCRIPTION" > file
        prose(text, file)
    }
    print_params(file)
    if (returned != "") {
        print ".SH RETURN VALUE" > file
        sub(/\n+$/, "", returned)
        prose(returned, file)
    }
    print ".SH SEE ALSO\n.BR memtrain-" topic " (3)" > file
    close(file)
}

function topic_page(   file, n, i, all, what) {
    if (list) {
        print "memtrain-" topic ".3"
        return
    }
    file = dir "/memtrain-" topic ".3"
    text = words(top)
    what = sentence(text)
    sub(/^memtrain\/[a-z.]+ - /, "", what)
    heading("memtrain-" topic, what, file)
    sub(/^[^\n]*\n+/, "", text)
    printf ".SH SYNOPSIS\n.nf\n#include <memtrain/%s>\n.fi\n.SH DESCRIPTION\n", header > file
    prose(text, file)
    if (types != "") printf ".SH TYPES\n.nf\n%s.fi\n", types > file
    if (functions != "") print ".SH FUNCTIONS" > file
    n = split(functions, all, "\n")
    for (i = 1; i < n; i++) print ".BR " all[i] " (3)" (i < n - 1 ? "," : "") > file
    close(file)
}

BEGIN {
    header = ARGV[1]
    sub(/.*\//, "", header)
    topic = header
    sub(/\.h$/, "", topic)
}

# A comment of lines of its own. Lines of dashes begin a section: what was said before is of another.
!in_declaration && /^\/\*/ {
    comment = $0
    while (comment !~ /\*\/ *$/ && (getline line) > 0) comment = comment "\n" line
    if (top == "") top = comment
    else last_comment = comment ~ /^\/\* ---/ ? "" : comment
    next
}

/^MT_API/ { in_declaration = 1 }
in_declaration {
    declaration = declaration (declaration == "" ? "" : "\n") $0
    if ($0 ~ /;$/) {
        page(declaration)
        declaration = ""
        in_declaration = 0
    }
    next
}

# Types and macros, with what is said of them.
/^typedef|^#define MT_/ && !/^#define MT_(API|NODISCARD|PRINTF)/ {
    block = $0
    ends = $0 ~ /^#define/ ? "[^\\\\]$" : ";$"
    if ($0 ~ /^typedef (struct|enum|union)[^;]*\{/) ends = "[}].*;$"
    while (block !~ ends && (getline line) > 0) {
        block = block "\n" line
        if (line ~ ends) break
    }
    types = types (last_comment == "" ? "" : escaped_lines(last_comment) "\n") escaped_lines(block) "\n\n"
    last_comment = ""
    next
}

END { topic_page() }
