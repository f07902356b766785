/*
 * What libtorch has here, a budget for its tensors, and an operator that keeps it: in C, without a header of
 * libtorch.
 *
 *     cc device.c $(pkg-config --cflags --libs memtrain-torch) -o device && ./device cpu
 */
#include <memtrain/call.h>

#include <stdio.h>

/* More than there is room for. */
static mt_status exceed(void) {
    mt_tensor *ones = NULL;
    mt_status status = mt_tensor_new(&ones);

    if (status == MT_OK)
        status =
            mt_call_into("aten::ones", MT_VALUES(MT_INTS(1024, 1024, 128)), MT_NO_KEYWORDS, ones);
    mt_tensor_free(ones);
    return status;
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cpu";
    mt_memory memory = {0};
    char budget[32];
    mt_status status = mt_device_set_budget(device, (size_t)256 << 20);

    memory.size = sizeof(memory);
    if (status == MT_OK) status = mt_device_memory(device, &memory);
    if (status != MT_OK) {
        fprintf(stderr, "%s: %s\n", mt_status_name(status), mt_last_error());
        return 1;
    }
    if (exceed() != MT_EDEVMEM) {
        fprintf(stderr, "512 MiB are there: %s\n", mt_last_error());
        return 1;
    }
    printf("memtrain %s, libtorch %s: %s has a budget of %s\n", mt_version_string(),
           mt_torch_version(), device, mt_format_size(memory.budget_bytes, budget, sizeof(budget)));
    return 0;
}
