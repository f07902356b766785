/*
 * check_ex_doctor.c - build/examples/doctor as a person runs it: what each section tells, on whatever
 * machine that is.
 */
#include "cli.h"
#include "program_path.h"

#include <ctype.h>
#include <unistd.h>

enum { LINES = 68, COLUMNS = 96 };

static char docs[CLI_CAPACITY];

/* As cli_out, which a test may cut up. */
static const char *diagnosis(void) {
    static char text[CLI_CAPACITY];
    EXPECT(0, NULL);
    memcpy(text, cli_out, sizeof text);
    return text;
}

/* Drops marks of emphasis and code, and makes one blank of all that is between words. */
static void squash(char *text) {
    char *to = text;
    for (const char *c = text; *c; c++) {
        if (*c == '*' || *c == '`') continue;
        if (!isspace((unsigned char)*c))
            *to++ = *c;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    }
    while (to > text && to[-1] == ' ') to--;
    *to = '\0';
}

/* What follows the name of a device, its section squashed. */
static const char *device_row(const char *name) {
    char label[32];
    squash(cli_out);
    snprintf(label, sizeof label, " %s usable", name);
    const char *row = strstr(cli_out, label);
    if (row) return row + strlen(label) - strlen("usable");
    snprintf(label, sizeof label, " %s not usable: ", name);
    row = strstr(cli_out, label);
    ck_assert_msg(row != NULL, "nothing of %s in %s", name, cli_out);
    return row + strlen(label) - strlen("not usable: ");
}

/* ---- flags --------------------------------------------------------------------------------------- */

TEST("flags", help_and_version_go_to_standard_output) {
    EXPECT(0, "--help");
    ck_contains(cli_out, "--version");
    ck_assert_ptr_null(strstr(cli_out, "Devices"));
    ck_assert_str_eq(cli_err, "");
    EXPECT(0, "--version");
    ck_contains(cli_out, "doctor: libmemtrain " MT_VERSION_STRING ", libtorch ");
    ck_assert_str_eq(cli_err, "");
}

static const char *const wrong[] = {"--stones", "stones", "--help=yes", "-v"};

TEST_LOOP("flags", an_unknown_argument_exits_2_and_is_named, LENGTH(wrong)) {
    char word[32];
    EXPECT(2, wrong[_i]);
    ck_assert_str_eq(cli_out, "");
    snprintf(word, sizeof word, "%.6s", wrong[_i]);
    cli_one_line("doctor: ");
    ck_says(cli_err, word, "--help");
}

TEST("flags", a_budget_that_is_none_exits_2) {
    static const char *const none[] = {"much", "0", "0.5", "80%", "-1MiB", "4000"};
    for (int i = 0; i < LENGTH(none); i++) {
        char expected[80];
        EXPECT(2, "--budget", none[i]);
        snprintf(expected, sizeof expected, "doctor: --budget: '%s' is not accepted; ", none[i]);
        ck_assert_msg(strncmp(cli_err, expected, strlen(expected)) == 0, "%s", cli_err);
        ck_contains(cli_err, "600MiB");
    }
}

TEST("flags", one_device_is_told_alone) {
    EXPECT(0, "--device", "cpu");
    ck_says(cli_out, "cpu", "usable");
    ck_assert_ptr_null(strstr(cli_out, "Library"));
    EXPECT(1, "--device", "cuda:999");
    ck_says(cli_out, "cuda:999", "not usable: ");
    EXPECT(1, "--device", "gpu");
    ck_says(cli_out, "not usable: ", "here: cpu");
}

/* Also where a device is asked about alone. A simulated card of 1 GiB is not the process's memory. */
TEST("flags", the_budget_of_one_device) {
    EXPECT(0, "--device", "cpu", "--budget", "600MiB");
    ck_says(cli_out, "\n  --budget            600.0 MiB for tensors", "\n    the process       ");
    ck_assert_ptr_null(strstr(cli_out, "are free now"));
    EXPECT(0, "--device", "sim:cuda", "--budget", "1048576TiB");
    squash(cli_out);
    ck_says(cli_out, " --budget ", " are free now: with this budget");
    ck_assert_ptr_null(strstr(cli_out, " the process "));
    EXPECT(1, "--device", "gpu", "--budget", "600MiB");
    ck_assert_ptr_null(strstr(cli_out, "for tensors"));
}

/* A name that is longer than the column has the value below it. */
TEST("flags", a_long_name_has_a_line) {
    EXPECT(1, "--device", "a_card_with_a_long_name");
    ck_contains(cli_out, "  a_card_with_a_long_name\n                      not usable: ");
    EXPECT(1, "--device", "a_card_of_20_letters");
    ck_contains(cli_out, "  a_card_of_20_letters\n                      not usable: ");
    EXPECT(1, "--device", "a_card_of_19_letter");
    ck_contains(cli_out, "  a_card_of_19_letter not usable: ");
}

TEST("flags", a_full_standard_output_is_told) {
    if (!cli_has_full_disk("a_full_standard_output_is_told")) return;
    cli_stdout = "/dev/full";
    EXPECT(1, NULL);
    ck_contains(cli_err, "doctor: standard output could not be written");
}

/* ---- sections ------------------------------------------------------------------------------------ */

static const char *const sections[] = {"Library",      "Devices",     "Host memory",
                                       "This process", "Environment", "A run here"};

TEST("sections", each_section_is_there) {
    const char *at = diagnosis();
    char title[32];
    ck_assert_str_eq(cli_err, "");
    for (int i = 0; i < LENGTH(sections); i++) {
        snprintf(title, sizeof title, "\n\n%s\n  ", sections[i]);
        ck_contains(at, title);
        at = strstr(at, title) + 1;
    }
}

/* Without variables, whose values may be long. */
TEST("sections", it_fits_a_screen) {
    int lines = 0;
    for (const char *line = diagnosis(), *end; (end = strchr(line, '\n')); line = end + 1) {
        lines++;
        if (line[0] == ' ' && strchr(line, '=') && strchr(line, '=') < end) continue;
        ck_assert_msg(end - line <= COLUMNS, "%.*s", (int)(end - line), line);
    }
    ck_assert_int_le(lines, LINES);
}

TEST("sections", the_library_is_described) {
    const char *text = diagnosis();
    ck_says(text, "\n  libmemtrain         " MT_VERSION_STRING "\n", "\n  threads             ",
            "\n  CPU budget          enforced by our allocator");
}

/* In words of its own where the system has no posix_fadvise. */
TEST("sections", mapped_weights_are_told) {
    EXPECT(0, NULL);
    squash(cli_out);
    const char *row = strstr(cli_out, " mapped weights can be mapped");
    ck_assert_ptr_nonnull(row);
    ck_assert_ptr_nonnull(strstr(cli_out, "Host memory"));
    ck_assert(strstr(cli_out, "Host memory") < row && row < strstr(cli_out, "This process"));
#ifdef __linux__
    ck_contains(row, "mapped and given back; files above ");
    ck_contains(row, "B are dropped after use");
#endif
}

TEST("sections", figures_of_the_host_are_those_of_the_library) {
    mt_host_memory host = {.size = sizeof host};
    char size[32], row[64];
    const char *text = diagnosis();
    ck_ok(mt_host_memory_read(NULL, &host));
    snprintf(row, sizeof row, "\n  in all              %s\n",
             mt_format_size(host.total_bytes, size, sizeof size));
    ck_contains(text, row);
    snprintf(row, sizeof row, "\n  control group       %s",
             host.cgroup_limit_bytes == SIZE_MAX ? "no limit\n" : "limit ");
    ck_says(text, row, "\n  budget by default   ", "\n    its rule          0.");
}

#ifdef __linux__
/* The size that a row begins with, in bytes. */
static double size_in(const char *text, const char *label) {
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    double size;
    char start[64], unit[8];
    snprintf(start, sizeof start, "\n  %-20s", label);
    const char *row = strstr(text, start);
    ck_assert_msg(row && sscanf(row + strlen(start), "%lf %7[A-Za-z]", &size, unit) == 2,
                  "no size behind '%s' in %s", label, text);
    for (int i = 0; i < LENGTH(units); i++)
        if (strcmp(unit, units[i].unit) == 0) return size * units[i].bytes;
    ck_abort_msg("'%s' in the row of '%s'", unit, label);
    return 0;
}

TEST("sections", the_process_is_described) {
    static const char *const parts[] = {"  code, libraries", "  heap", "  tensors", "  arenas"};
    const char *text = diagnosis();
    double all = size_in(text, "libtorch prepared"), sum = 0;
    for (int i = 0; i < LENGTH(parts); i++) sum += size_in(text, parts[i]);
    ck_assert_msg(sum > 0.99 * all && sum < 1.01 * all, "%.0f of %.0f", sum, all);
    ck_assert(size_in(text, "at its start") <= all);
#ifdef __SANITIZE_ADDRESS__ /* which has a heap of its own */
    ck_assert(size_in(text, "  code, libraries") > 0);
#else
    ck_assert(size_in(text, "  code, libraries") > all / 2);
#endif
    ck_assert(size_in(text, "  heap") > 0);
    ck_contains(text, "\n    tensors           0 B\n    arenas            0 B\n");
    ck_contains(text, "\n  --budget-resident   more than ");
}

/* An exabyte is free nowhere; a MiB is, wherever this runs. */
TEST("sections", a_budget_above_what_is_free_is_told) {
    EXPECT(0, "--budget", "1048576TiB");
    squash(cli_out);
    ck_says(cli_out, " warning ", " are free now: with this budget the system may swap or stop");
    EXPECT(0, "--budget", "1MiB");
    squash(cli_out);
    ck_assert_ptr_null(strstr(cli_out, " are free now"));
}

/* On top of tensors come a fiftieth, for what an arena takes above them, and what first chunks map. */
TEST("sections", the_process_of_a_budget_is_told) {
    EXPECT(0, "--budget", "600MiB");
    double held = size_in(cli_out, "libtorch prepared"), budget = size_in(cli_out, "--budget");
    ck_assert(budget == 600.0 * (1 << 20));
    if (strstr(cli_out, "--device auto       cpu\n") == NULL)
        return; /* a card's is not the process's */
    double told = size_in(strstr(cli_out, "\n  --budget "), "  the process");
    ck_assert_msg(told > 0.97 * (held + budget) && told < 1.03 * (held + 1.08 * budget),
                  "%.0f with %.0f and %.0f", told, held, budget);
}
#endif

/* ---- devices ------------------------------------------------------------------------------------- */

/* And the row of docs/devices.md that tells how far its path has been run. */
static const struct {
    const char *name, *documented;
    int is_everywhere;
} devices[] = {
    {"cpu", "\n| CPU | our budgeted allocator |", 1},
    {"cuda", "\n| CUDA |", 0},
    {"xpu", "\n| XPU |", 0},
    {"mps", "\n| MPS |", 0},
    {"sim:cuda", "\n| `sim:cuda` |", 1},
    {"sim:mps", "\n| `sim:mps` |", 1},
};

TEST_LOOP("devices", a_device_is_usable_or_says_why_not, LENGTH(devices)) {
    EXPECT(0, NULL);
    const char *row = device_row(devices[_i].name);
    if (devices[_i].is_everywhere) ck_assert_msg(strncmp(row, "usable ", 7) == 0, "%.60s", row);
    if (strncmp(row, "usable ", 7) == 0)
        ck_assert_msg(strncmp(row, "usable memory ", 14) == 0, "%.60s", row);
    else
        ck_assert_msg(strncmp(row, "not usable: run so far", 22) != 0, "%.60s", row);
}

/* A card of a third party is among them, and --device auto takes it where there is no other. The test device plays one. */
TEST("devices", a_card_of_a_third_party) {
    static char preload[2 * CLI_PATH];
    static const char *const environment[] = {preload, NULL};
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s/libcard_custom.so", cli_self());
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__APPLE__)
    return suite_skip("ex_doctor: a_card_of_a_third_party", "its library cannot be loaded first");
#endif
    if (!suite_on_cpu() || access(strchr(preload, '=') + 1, R_OK) != 0)
        return suite_skip("ex_doctor: a_card_of_a_third_party",
                          "there is no such test device here");
    cli_environment = environment;
    EXPECT(0, NULL);
    ck_contains(cli_out, "\n  --device auto       custom\n");
    const char *row = device_row("custom:0");
    ck_assert_msg(strncmp(row, "usable memory ", 14) == 0, "%.60s", row);
    ck_contains(row, " run so far never run on a card of a third party; ");
    cli_take_program("food101");
    EXPECT(0, "--device", "custom", "--amp", "off", "--image-size", "32", "--steps", "1",
           "--dev-samples", "40", "--threads", "1", "--progress", "off");
    EXPECT(2, "--device", "custom:7");
    ck_says(cli_err, "--device: 'custom:7' cannot be used here: ", "accepted: cpu, custom:0");
}

/* The programs that are started look for libraries in the test's folder first. */
static void look_in_folder(void) {
    static char variable[4 * CLI_PATH];
    static const char *const one[] = {variable, NULL};
    const char *before = getenv("LD_LIBRARY_PATH");
    snprintf(variable, sizeof variable, "LD_LIBRARY_PATH=%s%s%s", cli_root, before ? ":" : "",
             before ? before : "");
    cli_environment = one;
}

/* A libtorch for AMD's cards has its part in a library of another name: it is looked for, and what it lacks is told. */
TEST("devices", amds_part_is_looked_for) {
    EXPECT(0, NULL);
    if (strncmp(device_row("cuda"), "not usable: ", 12) != 0)
        return suite_skip("ex_doctor: amds_part_is_looked_for", "there is a card");
    ck_assert_ptr_null(strstr(cli_out, "libtorch_hip"));
    cli_write_file(cli_path("libtorch_hip.so"), "no library\n");
    look_in_folder();
    EXPECT(0, NULL);
    const char *row = device_row("cuda");
    ck_assert_msg(strncmp(row, "not usable: CUDA is not loaded: it cannot be loaded (", 53) == 0,
                  "%.80s", row);
    ck_contains(row, "libtorch_hip.so: ");
}

/* With a driver and nothing else of CUDA: what is missing is told, and that it has to be installed. Any library plays the driver. */
TEST("devices", a_driver_without_the_rest) {
    char core[2 * CLI_PATH];
    static const char no_driver[] = "not usable: CUDA is not loaded: NVIDIA's driver is missing";
    static const char no_rest[] = "not usable: CUDA is not loaded: it cannot be loaded (";
    EXPECT(0, NULL);
    if (strncmp(device_row("cuda"), no_driver, sizeof no_driver - 1) != 0)
        return suite_skip("ex_doctor: a_driver_without_the_rest", "there is a driver");
    const char *path = cli_path("libcuda.so.1");
    snprintf(core, sizeof core, "%s/../lib/libmemtrain.so", cli_self());
    if (symlink(core, path) != 0 || access(path, R_OK) != 0)
        return suite_skip("ex_doctor: a_driver_without_the_rest", "no library plays the driver");
    look_in_folder();
    EXPECT(0, NULL);
    const char *row = device_row("cuda");
    ck_assert_int_ne(strncmp(row, no_driver, sizeof no_driver - 1), 0);
    if (strncmp(row, no_rest, sizeof no_rest - 1) == 0)
        ck_contains(row, "install what is missing, and a libtorch for CUDA");
    else
        suite_skip("ex_doctor: a_driver_without_the_rest", "the rest of CUDA is here");
}

/* The cells "last run on" and "with" of a row in docs, as the program writes them. */
static void documented_status(const char *start, char *text, size_t capacity) {
    char line[512], *cells[4];
    const char *row = strstr(docs, start);
    ck_assert_msg(row != NULL, "no row%s", start);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(row + 1, "\n"), row + 1);
    for (int i = 0; i < 4; i++) {
        cells[i] = strtok(i ? NULL : line, "|");
        ck_assert_ptr_nonnull(cells[i]);
    }
    squash(cells[2]);
    squash(cells[3]);
    snprintf(text, capacity, " run so far %s%s%s ", cells[2], *cells[3] ? "; " : "", cells[3]);
}

TEST_LOOP("devices", the_status_of_a_device_is_that_of_the_docs, LENGTH(devices)) {
    char path[CLI_PATH], expected[600];
    ck_assert(ex_find_in_tree(NULL, "docs/devices.md", path, sizeof path));
    cli_read_file(path, docs);
    documented_status(devices[_i].documented, expected, sizeof expected);
    EXPECT(0, NULL);
    const char *row = device_row(devices[_i].name), *status = strstr(row, " run so far ");
    ck_assert_ptr_nonnull(status);
    ck_assert_msg(strncmp(status, expected, strlen(expected)) == 0,
                  "'%s' is not at the start of %s", expected, status);
}

/* ---- environment --------------------------------------------------------------------------------- */

static const struct {
    const char *set, *device, *explained; /* what is told where that device, or any, is usable */
} variables[] = {
    {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "cuda", "matters: "},
    {"PYTORCH_ALLOC_CONF=expandable_segments:True", "cuda", "matters: "},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING=1", "cuda", "does harm: "},
    {"CUDA_LAUNCH_BLOCKING=1", "cuda", "matters: "},
    {"CUDA_VISIBLE_DEVICES=0", NULL, "matters: "},
    {"PYTORCH_MPS_HIGH_WATERMARK_RATIO=1.7", "mps", "matters: "},
    {"PYTORCH_MPS_LOW_WATERMARK_RATIO=1.4", "mps", "matters: "},
    {"PYTORCH_ENABLE_MPS_FALLBACK=1", "mps", "matters: "},
    {"PYTORCH_MPS_ALLOCATOR_POLICY=garbage_collection", NULL, "does nothing: "},
    {"OMP_NUM_THREADS=1", NULL, "--threads"},
    {"MKL_NUM_THREADS=1", NULL, "--threads"},
    {"OMP_WAIT_POLICY=PASSIVE", NULL, "matters: threads sleep"},
    {"OMP_WAIT_POLICY=active", NULL, "does harm: threads spin"},
    {"GOMP_SPINCOUNT=0", NULL, "matters: "},
    {"MALLOC_TRIM_THRESHOLD_=131072", NULL, "matters: "},
    {"MALLOC_MMAP_THRESHOLD_=131072", NULL, "matters: "},
    {"GLIBC_TUNABLES=glibc.malloc.mmap_threshold=131072", NULL, "matters: "},
    {"LD_PRELOAD=/nonexistent/libjemalloc.so.2", NULL, "does harm: "},
    {"TORCH_SHOW_CPP_STACKTRACES=1", NULL, "does nothing: "},
};

static void name_of(int i, char *name, size_t capacity) {
    snprintf(name, capacity, "%.*s", (int)strcspn(variables[i].set, "="), variables[i].set);
}

/* What the machine that runs the test has set is no matter of it. */
static void forget_all(void) {
    char name[64];
    for (int i = 0; i < LENGTH(variables); i++) {
        name_of(i, name, sizeof name);
        if (strncmp(name, "LD_", 3) != 0) unsetenv(name);
    }
}

/* The environment section names that variable. */
static int names(const char *text, const char *name) {
    char label[80];
    snprintf(label, sizeof label, "\n  %s=", name);
    return strstr(text, label) != NULL;
}

TEST_LOOP("environment", a_variable_that_is_set_is_explained, LENGTH(variables)) {
    const char *const one[] = {variables[_i].set, NULL};
    char name[64], other[64], expected[256], usable[256];
    const char *device = variables[_i].device;
    forget_all();
    cli_environment = one;
    const char *text = diagnosis();
    name_of(_i, name, sizeof name);
    for (int i = 0; i < LENGTH(variables); i++) {
        name_of(i, other, sizeof other);
        ck_assert_msg(names(text, other) == (strcmp(name, other) == 0) || getenv(other), "%s: %s",
                      other, text);
    }
    snprintf(expected, sizeof expected, "\n  %s\n      ", variables[_i].set);
    ck_contains(text, expected);
    const char *reason = strstr(text, expected) + strlen(expected);
    snprintf(usable, sizeof usable, "does nothing: it is for %s", device ? device : "");
    int idle = device && strncmp(device_row(device), "not", 3) == 0;
    ck_contains(reason, idle ? usable : variables[_i].explained);
}

TEST("environment", none_is_named_when_none_is_set) {
    char name[64];
    forget_all();
    const char *text = diagnosis();
    for (int i = 0; i < LENGTH(variables); i++) {
        name_of(i, name, sizeof name);
        ck_assert_msg(!names(text, name) || getenv(name), "%s: %s", name, text);
    }
    if (getenv("LD_PRELOAD") || getenv("LD_LIBRARY_PATH"))
        return suite_skip("ex_doctor", "LD_PRELOAD or LD_LIBRARY_PATH is set");
    ck_contains(text, "\nEnvironment\n  none set of the variables that matter\n");
}

int main(void) {
    cli_program = "doctor";
    cli_says_nothing_of_threads = 1; /* it tells of what is set */
    cli_case_named("flags");
    cli_case_named("sections");
    cli_case_named("devices");
    cli_case_named("environment");
    return suite_run_named("ex_doctor");
}
