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

mt_status ex_settings_same(const ex_earlier *earlier, const json_t *then, const ex_setting *now,
                           size_t count) {
    mt_status status = MT_OK;
    for (size_t i = 0; i < count && status == MT_OK; i++) {
        const char *value = json_string_value(json_object_get(then, now[i].name));
        if (earlier->carries && !*now[i].value) continue;
        status = ex_settings_same_text(earlier, now[i].name, now[i].value, value);
    }
    return status;
}

mt_status ex_settings_same_number(const ex_earlier *earlier, const char *flag, int64_t now,
                                  int64_t then) {
    char texts[2][24];
    if (then < 0 || now == then) return MT_OK;
    snprintf(texts[0], sizeof texts[0], "%lld", (long long)now);
    snprintf(texts[1], sizeof texts[1], "%lld", (long long)then);
    return differs(earlier, flag, texts[0], texts[1]);
}
