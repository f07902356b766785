/*
 * settings.c - settings as JSON, and compared; see settings.h.
 */
#include "settings.h"

#include <string.h>

json_t *ex_settings_json(const ex_setting *settings, size_t count) {
    json_t *values = json_object();
    for (size_t i = 0; i < count; i++)
        json_object_set_new(values, settings[i].name, json_string(settings[i].value));
    return values;
}

static const char *said(const char *value) {
    return *value ? value : "none";
}

static mt_status differs(const ex_earlier *earlier, const char *flag, const char *now,
                         const char *then) {
    return mt_set_error(MT_EINVAL, "--%s: %s, but '%s' was written with %s; %s needs the same",
                        flag, said(now), earlier->path, said(then), earlier->use);
}

mt_status ex_settings_same_text(const ex_earlier *earlier, const char *flag, const char *now,
                                const char *then) {
    return then && strcmp(then, now) != 0 ? differs(earlier, flag, now, then) : MT_OK;
}

/* The order of pictures in memory is that of the earlier run where this one leaves it open. */
static int takes_earlier(const ex_setting *now, const char *then) {
    return then && strcmp(now->name, "channels-last") == 0 && strcmp(now->value, "auto") == 0;
}

int ex_settings_order(const json_t *then) {
    const char *order = json_string_value(json_object_get(then, "channels-last"));
    if (!order || (strcmp(order, "on") != 0 && strcmp(order, "off") != 0)) return -1;
    return strcmp(order, "on") == 0;
}

mt_status ex_settings_same(const ex_earlier *earlier, const json_t *then, const ex_setting *now,
                           size_t count) {
    mt_status status = MT_OK;
    for (size_t i = 0; i < count && status == MT_OK; i++) {
        const char *value = json_string_value(json_object_get(then, now[i].name));
        if (earlier->carries && !*now[i].value) continue;
        if (takes_earlier(&now[i], value)) continue;
        status = ex_settings_same_text(earlier, now[i].name, now[i].value, value);
    }
    return status;
}

static int is_among(const ex_setting *settings, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(settings[i].name, name) == 0) return 1;
    return 0;
}

static void add_flag(const char *name, char *text, size_t capacity) {
    size_t used = strlen(text);
    snprintf(text + used, capacity - used, ", --%s", name);
}

void ex_settings_untold(const json_t *then, const ex_setting *now, size_t count, char *text,
                        size_t capacity) {
    json_t *all = (json_t *)then; /* which is only read */
    const char *name;
    json_t *value;
    for (size_t i = 0; i < count; i++)
        if (!json_is_string(json_object_get(then, now[i].name)))
            add_flag(now[i].name, text, capacity);
    json_object_foreach(all, name, value) {
        if (!is_among(now, count, name)) add_flag(name, text, capacity);
    }
}

mt_status ex_settings_same_number(const ex_earlier *earlier, const char *flag, int64_t now,
                                  int64_t then) {
    char texts[2][24];
    if (then < 0 || now == then) return MT_OK;
    snprintf(texts[0], sizeof texts[0], "%lld", (long long)now);
    snprintf(texts[1], sizeof texts[1], "%lld", (long long)then);
    return differs(earlier, flag, texts[0], texts[1]);
}
