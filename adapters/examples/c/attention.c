#include "attention.h"

#include <math.h>

void softmax(const double *scores, const bool *keep, size_t n, double *weights)
{
    double largest = -INFINITY, total = 0;
    for (size_t j = 0; j < n; j++)
        if (!keep || keep[j])
            largest = fmax(largest, scores[j]);
    for (size_t j = 0; j < n; j++) {
        /* Without the maximum a large score would overflow. */
        weights[j] = !keep || keep[j] ? exp(scores[j] - largest) : 0;
        total += weights[j];
    }
    for (size_t j = 0; j < n; j++)
        if (!keep || keep[j])
            weights[j] /= total;
}

void attend(Sizes sizes, const double *query, const double *key, const double *value, const bool *mask,
            double *output, double *weights, double *scores, double *scaled_scores)
{
    for (size_t i = 0; i < sizes.q_seq; i++) {
        size_t row = i * sizes.kv_seq;
        for (size_t j = 0; j < sizes.kv_seq; j++) {
            double score = 0;
            for (size_t t = 0; t < sizes.d_k; t++)
                score += query[i * sizes.d_k + t] * key[j * sizes.d_k + t];
            scores[row + j] = score;
            scaled_scores[row + j] = score / sqrt((double)sizes.d_k);
        }
        softmax(scaled_scores + row, mask ? mask + row : NULL, sizes.kv_seq, weights + row);
        for (size_t c = 0; c < sizes.d_v; c++) {
            double sum = 0;
            for (size_t j = 0; j < sizes.kv_seq; j++)
                sum += weights[row + j] * value[j * sizes.d_v + c];
            output[i * sizes.d_v + c] = sum;
        }
    }
}

void add_positions(const double *x, size_t seq, size_t d_model, double *output)
{
    for (size_t position = 0; position < seq; position++)
        for (size_t channel = 0; channel < d_model; channel++) {
            size_t even = channel - channel % 2, at = position * d_model + channel;
            double angle = (double)position / pow(10000, (double)even / (double)d_model);
            output[at] = x[at] + (channel == even ? sin(angle) : cos(angle));
        }
}
