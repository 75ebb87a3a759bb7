/* The MLP of generation 2: three learned diagonals around two Walsh-Hadamard transforms and a SiLU. */
#include "forward.h"

#include "math.h"

/* z := H z, H the normalised Walsh-Hadamard matrix of size n, a power of two. Strides below a group's size are the
 * rotation's. */
static void transform(float *z, size_t n) {
    size_t half = 1;
    if (n >= SG_GROUP) {
        sg_rotate(z, n / SG_GROUP);
        half = SG_GROUP;
    }
    const float scale = 1.0f / __builtin_sqrtf((float)(n / half));
    for (; half < n; half *= 2) {
        for (size_t start = 0; start < n; start += 2 * half) {
            float *low = z + start, *high = low + half;
            for (size_t i = 0; i < half; i++) {
                const float a = low[i], b = high[i];
                low[i] = a + b;
                high[i] = a - b;
            }
        }
    }
    for (size_t i = 0; i < n; i++) z[i] *= scale;
}

void sg_walsh_mlp(struct sg_session *session, const struct sg_layer *layer, uint32_t count) {
    const size_t d = session->model->geometry.d_model, n = session->model->geometry.hada_n;
    float *z = session->work.hada[0];
    for (size_t t = 0; t < count; t++) {
        float *hidden = session->work.hidden + t * d;
        sg_normalise(hidden, d, layer->pre_hada_norm, z, n);
        for (size_t i = 0; i < n; i++) z[i] *= layer->d1[i];
        transform(z, n);
        for (size_t i = 0; i < n; i++) z[i] = sg_siluf(layer->d2[i] * z[i]);
        transform(z, n);
        for (size_t i = 0; i < d; i++) hidden[i] += layer->d3[i] * z[i];
    }
}
