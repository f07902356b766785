/*
 * plan.c - what a configuration would need, and whether it fits a budget, before anything is trained.
 *
 *     build/examples/plan                                  the configurations there are
 *     build/examples/plan --budget 8GiB                    all of them against a budget
 *     build/examples/plan --example prsmed --config 1 --budget 8GiB
 *
 * The configurations are those of the scripts that the example programs follow. Each is the program itself
 * with --explain and no epochs: a recording of two small chunks, which take their memory and compute nothing, tells what
 * chunks of any size take.
 */
#include "child.h"
#include "options.h"
#include "output.h"

#include <memtrain/status.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "plan"

typedef struct configuration {
    const char *example, *name, *what;
    const char *flags; /* words; WEIGHTS/ is the folder of --weights */
} configuration;

static const configuration configurations[] = {
    {"food101", "first", "ResNet-50 at 1024 pixels, batch 32, which ran out of 47.7 GiB",
     "--size published --image-size 1024 --batch 32"},
    {"food101", "original", "ResNet-50 at 224 pixels, batch 32", "--size published --batch 32"},
    {"food101", "target", "ResNet-50 at 224 pixels, batch 24", "--size published --batch 24"},
    {"food101", "safe", "ResNet-50 at 224 pixels, batch 8", "--size published --batch 8"},
    {"smartcash", "tier1", "EfficientNet-B4 at 640 pixels, 8 batches of 1",
     "--size published --tier 1"},
    {"smartcash", "tier3", "EfficientNet-B4 at 640 pixels, 32 batches of 1",
     "--size published --tier 3"},
    {"smartcash", "16", "EfficientNet-B4 at 640 pixels, batch 16", "--size published"},
    {"smartcash", "darknet", "CSPDarknet-53 at 640 pixels, batch 16",
     "--size published --backbone cspdarknet"},
    {"prsmed", "0", "TinyViT-5M at 1024 pixels, batch 8", "--size published --config 0"},
    {"prsmed", "16gb", "TinyViT-5M at 1024 pixels, 1 x 8, checkpointing",
     "--size published --config 16gb"},
    {"prsmed", "500m", "the same as 0, beside a frozen language model of 0.5 B in memory",
     "--size published --config 0 --text-model 500m"},
    {"prsmed", "7b", "the same as 0, beside a frozen language model of 7.24 B in a mapped file",
     "--size published --config 0 --text-model 7b --text-type bf16 --cache-frozen "
     "--text-weights WEIGHTS/7b.safetensors"},
    {"car_clip", "16x8", "ViT-B/32 at 224 pixels, 8 batches of 16",
     "--size published --batch 16 --accumulate 8"},
    {"car_clip", "96", "ViT-B/32 at 224 pixels, one batch of 96",
     "--size published --batch 96 --accumulate 1"},
    {"car_clip", "128", "ViT-B/32 at 224 pixels, one batch of 128",
     "--size published --batch 128 --accumulate 1"},
    {"profoct", "minimal", "few-shot episodes, its preset for 8 GB", "--preset minimal"},
    {"profoct", "balanced", "ResNet34 at 224 pixels, its preset for 16 GB",
     "--size published --preset balanced"},
    {"profoct", "maximum", "ResNet34 at 224 pixels, its preset for 24 GB",
     "--size published --preset maximum"},
};

typedef struct plan {
    const char *example, *config, *budget, *weights;
    int help;
} plan;

static const ex_option rows[] = {
    EX_FLAG("example", EX_TEXT, plan, example, "NAME", "one program instead of all",
            .accepts = "the name of an example program"),
    EX_FLAG("config", EX_TEXT, plan, config, "NAME", "one of its configurations",
            .accepts = "a configuration of --example"),
    EX_FLAG("budget", EX_TEXT, plan, budget, "SIZE",
            "what tensors may take: 8GiB, 0.95 of what is there",
            .accepts = "a size, or a share of what is there", .by_default = "none: a list"),
    EX_FLAG("weights", EX_TEXT, plan, weights, "DIR",
            "folder of files of language models, which `make documents` writes",
            .accepts = "a folder", .by_default = "weights, beside that of the programs"),
    EX_FLAG("help", EX_SWITCH, plan, help, NULL, "this list", .most = 1),
};

/* ---- choosing ---------------------------------------------------------------------------------- */

static int is_chosen(const plan *p, const configuration *c) {
    return (!p->example || strcmp(p->example, c->example) == 0) &&
           (!p->config || strcmp(p->config, c->name) == 0);
}

static size_t count_chosen(const plan *p) {
    size_t count = 0;
    for (size_t i = 0; i < EX_ROWS(configurations); i++) count += is_chosen(p, &configurations[i]);
    return count;
}

static void print_list(const plan *p) {
    for (size_t i = 0; i < EX_ROWS(configurations); i++) {
        const configuration *c = &configurations[i];
        if (is_chosen(p, c)) printf("%-10s %-12s %s\n", c->example, c->name, c->what);
    }
}

/* Names of programs, or of the configurations of p->example, or of all. Those of one program follow one another. */
static void print_names(const plan *p, int is_example) {
    const char *before = "";
    for (size_t i = 0; i < EX_ROWS(configurations); i++) {
        const configuration *c = &configurations[i];
        int is_known = is_example && i && strcmp(c->example, c[-1].example) == 0;
        if (is_known || !is_chosen(p, c)) continue;
        fprintf(stderr, "%s%s", before, is_example ? c->example : c->name);
        before = ", ";
    }
}

/* The flag that is wrong: a name of no program, or of none of its configurations. */
static void print_unknown(const plan *p) {
    plan all = {p->example, NULL, NULL, NULL, 0};
    int is_example = !count_chosen(&all);
    fprintf(stderr,
            NAME ": --%s: '%s' is not accepted; accepted%s%s: ", is_example ? "example" : "config",
            is_example ? p->example : p->config, !is_example && p->example ? " for " : "",
            !is_example && p->example ? p->example : "");
    if (is_example) all.example = NULL;
    print_names(&all, is_example);
    fprintf(stderr, "\n");
}

static int is_budget(const char *text) {
    size_t bytes;
    return mt_parse_size(text, SIZE_MAX / 2, &bytes) == MT_OK && bytes >= 1048576;
}

/* ---- asking a program -------------------------------------------------------------------------- */

#define TAKES "Rungs that the run takes: "

/* What a program's table says of one size of chunk. */
typedef struct chunk {
    size_t samples;
    double size;
    char unit[8];
    int fits;
    int is_bound; /* 1: it may take less */
} chunk;

enum { DOES_NOT_FIT = 3 }; /* exit status */

typedef struct answer {
    chunk whole, most; /* the batch at once; the most samples that fit; 0: not told */
    size_t runs;       /* samples of the largest chunk of a step; 0: not told */
    size_t peak;       /* of that step, in bytes; 0: not told */
    char rungs[64];    /* that it takes, with the words before them; "": none */
    char error[512];   /* the program's line, where it failed */
    int exit_status;
} answer;

enum { MOST_ARGUMENTS = 32, MOST_FLAGS = 256 };

/* What is run: argv points into flags, whose blanks are the ends of words. */
typedef struct command {
    char path[4096], weights[4096], flags[MOST_FLAGS];
    char *argv[MOST_ARGUMENTS + 1];
} command;

/* What may take so little memory that a configuration fits, where no saver that runs take of themselves does. */
#define LESS "--offload file"

/* The file of weights that a configuration names; "": none. program: the path of one. */
static void find_weights(const plan *p, const configuration *c, const char *program, char *path,
                         size_t capacity) {
    static const char begin[] = "WEIGHTS/";
    const char *file = strstr(c->flags, begin), *slash = strrchr(program, '/');
    int length = slash ? (int)(slash - program) : 0;
    *path = '\0';
    if (!file) return;
    file += strlen(begin);
    int end = (int)strcspn(file, " ");
    if (p->weights)
        snprintf(path, capacity, "%s/%.*s", p->weights, end, file);
    else
        snprintf(path, capacity, "%.*s/../weights/%.*s", length, program, end, file);
}

/* @return 1; 0 where it is not known in which folder the program is */
static int make_command(const plan *p, const configuration *c, const char *more, const char *argv0,
                        command *out) {
    const char *const last[] = {"--explain", "--epochs", "0",       "--device",
                                "cpu",       "--budget", p->budget, NULL};
    size_t count = 0;
    if (!ex_child_path(argv0, c->example, out->path, sizeof out->path)) return 0;
    find_weights(p, c, out->path, out->weights, sizeof out->weights);
    snprintf(out->flags, sizeof out->flags, "%s %s", c->flags, more);
    out->argv[count++] = out->path;
    for (char *word = strtok(out->flags, " "); word; word = strtok(NULL, " "))
        out->argv[count++] = strncmp(word, "WEIGHTS/", 8) == 0 ? out->weights : word;
    for (size_t i = 0; i < EX_ROWS(last); i++) out->argv[count++] = (char *)last[i];
    return 1;
}

/*
 * A row of the table, or where no two sizes went through: "1 at once fits."; or "4 at most 2.0 GiB  does not fit",
 * which is a bound.
 */
static int read_chunk(const char *line, chunk *out) {
    static const char bound[] = "at most ";
    char fits[16] = "";
    int length = 0;
    *out = (chunk){0, 0, "", 0, 0};
    if (sscanf(line, "%zu at once fit%n", &out->samples, &length) == 1 && length)
        return out->fits = 1;
    if (sscanf(line, "%zu %n", &out->samples, &length) < 1) return 0;
    line += length;
    out->is_bound = strncmp(line, bound, strlen(bound)) == 0;
    if (out->is_bound) line += strlen(bound);
    if (sscanf(line, "%lf %7s %15s", &out->size, out->unit, fits) < 3) return 0;
    out->fits = strcmp(fits, "fits") == 0;
    return 1;
}

/* "A step of 8 chunks of 2, kept takes 1.5 GiB at its peak (1610612736 bytes).": what runs, which flags may limit. */
static void read_step(const char *line, answer *a) {
    const char *bytes = strrchr(line, '(');
    size_t chunks;
    if (sscanf(line, "A step of %zu chunks of %zu", &chunks, &a->runs) == 2 ||
        sscanf(line, "A step of %zu chunk of %zu", &chunks, &a->runs) == 2)
        if (bytes) (void)sscanf(bytes, "(%zu bytes", &a->peak);
}

static void read_line(const configuration *c, const char *line, answer *a) {
    chunk seen;
    size_t length = strlen(c->example);
    if (strncmp(line, c->example, length) == 0 && line[length] == ':')
        snprintf(a->error, sizeof a->error, "%s", line + length + 2);
    if (strncmp(line, TAKES, strlen(TAKES)) == 0)
        snprintf(a->rungs, sizeof a->rungs, ", with %.48s", line + strlen(TAKES));
    read_step(line, a);
    if (!read_chunk(line, &seen)) return;
    if (seen.size > 0 && seen.samples >= a->whole.samples) a->whole = seen;
    if (seen.fits && seen.samples > a->most.samples) a->most = seen;
}

static void ask(const configuration *c, const command *asked, answer *a) {
    char line[512];
    FILE *output = NULL;
    memset(a, 0, sizeof *a);
    pid_t child = ex_child_start(asked->path, asked->argv, &output);
    while (output && fgets(line, sizeof line, output)) {
        line[strcspn(line, "\n")] = '\0';
        read_line(c, line, a);
    }
    a->exit_status = child > 0 ? ex_child_wait(child, output) : EX_CANNOT_BE_RUN;
    if (a->exit_status == EX_CANNOT_BE_RUN || a->exit_status == EX_IS_NOT_THERE)
        snprintf(a->error, sizeof a->error, "%s is not there to be run: `make` builds it",
                 c->example);
    else if (!*a->error)
        snprintf(a->error, sizeof a->error, "%s ended with status %d", c->example, a->exit_status);
}

/* What is asked now, since that may take minutes: a line of its own on standard error, whoever reads it. */
static void print_question(const configuration *c, size_t number, size_t count) {
    fflush(stdout);
    fprintf(stderr, NAME ": %zu of %zu: %s %s, %s\n", number, count, c->example, c->name, c->what);
}

/* Sizes may fit that a step does not have, as with --accumulate. */
static size_t chunk_of(const answer *a) {
    return a->runs && a->runs < a->most.samples ? a->runs : a->most.samples;
}

static void print_peak(const answer *a) {
    char text[32];
    if (a->peak) printf("; a step takes %s", mt_format_size(a->peak, text, sizeof text));
    printf("\n");
}

/* A state that does not fit takes the same with any saver. The programs say so of a chunk. */
static int may_take_less(const answer *a) {
    static const char chunk_line[] = "the smallest chunk, ";
    return a->exit_status == DOES_NOT_FIT && strncmp(a->error, chunk_line, strlen(chunk_line)) == 0;
}

/* less: what the program says with LESS; NULL: it was not asked. */
static void print_no(const answer *a, const answer *less) {
    printf("does not fit: %s", a->error);
    if (less && less->exit_status == 0) {
        printf("; it fits with " LESS ", in chunks of %zu", chunk_of(less));
        print_peak(less);
    } else {
        printf("%s\n", less ? "; nor with " LESS : "");
    }
}

static void print_answer(const configuration *c, const answer *a, const answer *less) {
    const char *most = a->whole.is_bound ? "at most " : "";
    printf("%-10s %-12s ", c->example, c->name);
    if (a->exit_status == DOES_NOT_FIT)
        print_no(a, less);
    else if (a->exit_status != 0)
        printf("not known: %s\n", a->error);
    else {
        if (a->whole.fits)
            printf("fits%s: %zu at once take %s%.1f %s", a->rungs, a->whole.samples, most,
                   a->whole.size, a->whole.unit);
        else if (a->whole.samples)
            printf("fits in chunks of %zu%s; %zu at once would take %s%.1f %s", chunk_of(a),
                   a->rungs, a->whole.samples, most, a->whole.size, a->whole.unit);
        else
            printf("fits in chunks of %zu%s", chunk_of(a), a->rungs);
        print_peak(a);
    }
    fflush(stdout);
}

static int fail_unknown_folder(void) {
    fprintf(stderr, NAME ": the folder of the program is not known\n");
    return 1;
}

/* With LESS, where that may help. @return 1: it was asked */
static int ask_with_less(const plan *p, const configuration *c, const char *argv0, const answer *a,
                         answer *out) {
    command asked;
    if (!may_take_less(a) || !make_command(p, c, LESS, argv0, &asked)) return 0;
    ask(c, &asked, out);
    return 1;
}

/* One configuration alone: all that the program says. */
static int show(const plan *p, const configuration *c, const char *argv0) {
    command asked;
    if (!make_command(p, c, "", argv0, &asked)) return fail_unknown_folder();
    printf("%s, %s: %s\n%s\n\n", c->example, c->name, c->what, c->flags);
    pid_t child = ex_child_start(asked.path, asked.argv, NULL);
    int status = child > 0 ? ex_child_wait(child, NULL) : EX_CANNOT_BE_RUN;
    if (status == EX_CANNOT_BE_RUN || status == EX_IS_NOT_THERE)
        fprintf(stderr, NAME ": %s is not there to be run: `make` builds it\n", c->example);
    if (status == DOES_NOT_FIT && make_command(p, c, LESS, argv0, &asked)) {
        answer less;
        ask(c, &asked, &less);
        if (less.exit_status == 0) {
            printf("\nIt fits with " LESS ", in chunks of %zu", chunk_of(&less));
            print_peak(&less);
        }
    }
    return status;
}

/* @return 3 where one of them does not fit, 1 where that is not known of one */
static int compare(const plan *p, const char *argv0) {
    int worst = 0, is_known = 1;
    size_t number = 0, count = count_chosen(p);
    printf("%zu configurations, some seconds each\n", count);
    for (size_t i = 0; i < EX_ROWS(configurations); i++) {
        const configuration *c = &configurations[i];
        command asked;
        answer a, less;
        if (!is_chosen(p, c)) continue;
        if (!make_command(p, c, "", argv0, &asked)) return fail_unknown_folder();
        number++;
        if (*asked.weights && access(asked.weights, R_OK) != 0) {
            printf(
                "%-10s %-12s is left out: there is no '%s', which --write-text-weights of prsmed "
                "writes\n",
                c->example, c->name, asked.weights);
            continue;
        }
        print_question(c, number, count);
        ask(c, &asked, &a);
        print_answer(c, &a, ask_with_less(p, c, argv0, &a, &less) ? &less : NULL);
        if (a.exit_status == DOES_NOT_FIT) worst = DOES_NOT_FIT;
        is_known &= a.exit_status == 0 || a.exit_status == DOES_NOT_FIT;
    }
    return is_known ? worst : 1;
}

static int run(const plan *p, const char *argv0) {
    for (size_t i = 0; count_chosen(p) == 1 && i < EX_ROWS(configurations); i++)
        if (is_chosen(p, &configurations[i])) return show(p, &configurations[i], argv0);
    return compare(p, argv0);
}

/* ---- main -------------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    plan p = {NULL, NULL, NULL, NULL, 0};
    ex_error error;
    const ex_table tables[] = {{rows, EX_ROWS(rows), &p}, {NULL, 0, NULL}};
    if (ex_options_parse(NAME, tables, argc, argv, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        return 2;
    }
    if (p.help) {
        printf(NAME ": what a configuration would need, and whether it fits a budget\n\n"
                    "Usage: " NAME " [--example NAME [--config NAME]] [--budget SIZE]\n\n");
        ex_options_help(tables, stdout);
        return ex_output_end(NAME) ? 0 : 1;
    }
    if (!count_chosen(&p)) {
        print_unknown(&p);
        return 2;
    }
    if (p.budget && !is_budget(p.budget)) {
        fprintf(stderr,
                NAME ": --budget: '%s' is not accepted; accepted: a size of at least 1MiB such as "
                     "8GiB, or 0.95 or 80%% (of what is there)\n",
                p.budget);
        return 2;
    }
    if (!p.budget) print_list(&p);
    int status = p.budget ? run(&p, argv[0]) : 0;
    return ex_output_end(NAME) ? status : 1;
}
