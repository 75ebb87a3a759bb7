/* Input: u8 file (0 to 2: one of the golden containers; 3: what follows is a file), u8 depth, u8 capacity, u8 numerics,
 * then edits of the file: u8 form, u16 place, a value of 1, 2, 4 or 8 bytes; or the file's new size. What opens must
 * work: on a few tokens, in both numerics, with the heads that it has, within memory that has to do with the file's
 * size. In less memory nothing opens. */
#include "models.h"
#include "targets.h"

#define FILE_COUNT 3u
#define FORM_COUNT 5u
#define FILE_BYTES_MAX 65536u
#define CAPACITY_MAX 40u
#define TOKENS_MAX 12u
#define HEAD_COUNT 4u

/* A CQ head of one bit grows most when it becomes floats: 18 bytes for 128 numbers. */
#define MODEL_BYTES_MAX(file_bytes) (40 * (file_bytes) + 65536)

struct file {
    uint8_t *bytes;
    size_t byte_count;
};

static void resize(struct file *file, size_t byte_count) {
    uint8_t *bytes = fuzz_block(byte_count);
    const size_t kept = byte_count < file->byte_count ? byte_count : file->byte_count;
    memcpy(bytes, file->bytes, kept);
    memset(bytes + kept, 0, byte_count - kept);
    free(file->bytes);
    *file = (struct file){bytes, byte_count};
}

static void edit(struct file *file, struct fuzz_input *input) {
    const uint32_t form = fuzz_take(input, 1) % FORM_COUNT, place = fuzz_take(input, 2);
    if (form == FORM_COUNT - 1) {
        resize(file, place);
        return;
    }
    for (uint32_t i = 0; i < 1u << form; i++) {
        const uint8_t value = (uint8_t)fuzz_take(input, 1);
        if (place + i < file->byte_count)
            file->bytes[place + i] = value;
    }
}

static struct file read_input(uint32_t choice, struct fuzz_input *input) {
    static const char *const names[FILE_COUNT] = {"tiny83", "tiny84", "tiny84_widths"};
    struct file file;
    if (choice == FILE_COUNT) {
        file = (struct file){fuzz_block(input->byte_count), input->byte_count};
        memcpy(file.bytes, input->bytes, input->byte_count);
        return file;
    }
    file.bytes = fuzz_model_file(names[choice], &file.byte_count);
    while (input->byte_count)
        edit(&file, input);
    return file;
}

static void require_failure(int status, const struct sg_error *error) {
    if (status == SG_STATUS_OK || (uint32_t)status != error->status || !error->field || !*error->field)
        abort();
}

static void require_settled(const float *values, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        if (values[i] != values[i] && bits != 0x7fc00000)
            abort();
    }
}

static void *listen(struct sg_session *session, const struct sg_model *model, uint32_t head, uint32_t *output_count) {
    struct sg_error error;
    size_t byte_count;
    if (sg_head_measure(model, head, output_count, &byte_count, &error) != SG_STATUS_OK)
        return NULL;
    void *memory = fuzz_block(byte_count);
    if (sg_session_listen(session, head, memory, byte_count, &error) != SG_STATUS_OK)
        abort();
    return memory;
}

static void run(struct sg_session *session, const struct sg_model *model, const struct sg_model_info *info,
                uint32_t token_count) {
    struct sg_error error;
    struct sg_sampling sampling = {.temperature = 0.7f, .top_p = 0.9f, .top_k = 5, .random_state = 3};
    uint32_t ids[TOKENS_MAX], output_counts[HEAD_COUNT], id;
    void *listeners[HEAD_COUNT];
    const float *values;
    double score;
    for (uint32_t head = 0; head < HEAD_COUNT; head++)
        listeners[head] = listen(session, model, head, &output_counts[head]);
    for (uint32_t i = 0; i < token_count; i++)
        ids[i] = i * 7919u % info->logit_count;
    if (sg_session_append(session, ids, token_count, &error) != SG_STATUS_OK ||
        sg_session_logits(session, &values, &error) != SG_STATUS_OK)
        abort();
    require_settled(values, info->logit_count);
    if (sg_session_sample(session, &sampling, &id, &error) != SG_STATUS_OK || id >= info->logit_count)
        abort();
    sg_session_score(session, ids, token_count, &score, &error);
    for (uint32_t head = 0; head < HEAD_COUNT; head++) {
        if (!listeners[head])
            continue;
        if (sg_session_head(session, head, &values, &error) != SG_STATUS_OK)
            abort();
        require_settled(values, output_counts[head]);
        free(listeners[head]);
    }
}

static void use(const struct sg_model *model, uint32_t wanted, uint32_t numerics) {
    struct sg_error error = {0};
    struct sg_model_info info;
    struct sg_session *session;
    size_t byte_count;
    sg_model_describe(model, &info);
    const uint32_t most = info.max_seq_len < CAPACITY_MAX ? info.max_seq_len : CAPACITY_MAX;
    const uint32_t capacity = 1 + wanted % most;
    int status = sg_session_measure(model, info.max_seq_len + 1, numerics, &byte_count, &error);
    require_failure(status, &error);
    status = sg_session_measure(model, capacity, numerics, &byte_count, &error);
    if (status != SG_STATUS_OK) { /* angles that are beyond what is computed exactly */
        require_failure(status, &error);
        return;
    }
    const size_t less = byte_count * wanted / 256;
    void *memory = fuzz_block(less);
    if (sg_session_open(model, capacity, numerics, memory, less, &session, &error) != SG_STATUS_OUT_OF_MEMORY)
        abort();
    free(memory);
    memory = fuzz_block(byte_count);
    if (sg_session_open(model, capacity, numerics, memory, byte_count, &session, &error) != SG_STATUS_OK)
        abort();
    run(session, model, &info, capacity < TOKENS_MAX ? capacity : TOKENS_MAX);
    free(memory);
}

static void open_in_less(const struct file *file, uint32_t depth, size_t memory_bytes) {
    struct sg_error error = {0};
    struct sg_model *model;
    void *memory = fuzz_block(memory_bytes);
    require_failure(
        sg_model_open_rung(file->bytes, file->byte_count, depth, memory, memory_bytes, &model, &error), &error);
    free(memory);
}

void fuzz_container(const uint8_t *data, size_t byte_count) {
    struct fuzz_input input = {data, byte_count < FILE_BYTES_MAX ? byte_count : FILE_BYTES_MAX};
    const uint32_t choice = fuzz_take(&input, 1) % (FILE_COUNT + 1), depth = fuzz_take(&input, 1) % 5;
    const uint32_t capacity = fuzz_take(&input, 1), numerics = fuzz_take(&input, 1) % 2;
    struct file file = read_input(choice, &input);
    struct sg_error error = {0};
    struct sg_model *model;
    size_t model_bytes;
    int status = sg_model_measure_rung(file.bytes, file.byte_count, depth, &model_bytes, &error);
    if (status == SG_STATUS_OK) {
        if (model_bytes > MODEL_BYTES_MAX(file.byte_count))
            abort();
        open_in_less(&file, depth, model_bytes * capacity / 256);
        void *memory = fuzz_block(model_bytes);
        status = sg_model_open_rung(file.bytes, file.byte_count, depth, memory, model_bytes, &model, &error);
        if (status == SG_STATUS_OK)
            use(model, capacity, numerics);
        free(memory);
    }
    if (status != SG_STATUS_OK)
        require_failure(status, &error);
    free(file.bytes);
}
