/* Attention and the positional encoding, on arrays of doubles; nothing here knows of protocols. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <stdbool.h>
#include <stddef.h>

/* The softmax over the scores that `keep` keeps (all, when it is NULL); the others get 0, so a row that keeps
   no key is all zeros. */
void softmax(const double *scores, const bool *keep, size_t n, double *weights);

/* The lengths and widths of one attention. */
typedef struct {
    size_t q_seq, kv_seq, d_k, d_v;
} Sizes;

/* softmax(QK^T / sqrt(d_k)) V of query (q_seq, d_k), key (kv_seq, d_k) and value (kv_seq, d_v). The mask
   (q_seq, kv_seq) is true where a query may attend to a key, or NULL. Fills output (q_seq, d_v) and scores,
   scaled_scores and weights, each (q_seq, kv_seq). */
void attend(Sizes sizes, const double *query, const double *key, const double *value, const bool *mask,
            double *output, double *weights, double *scores, double *scaled_scores);

/* Adds to x (seq, d_model) the sines and cosines of its positions: pair i on channels 2i and 2i + 1. */
void add_positions(const double *x, size_t seq, size_t d_model, double *output);

#endif
