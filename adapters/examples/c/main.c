/* Answers the suite's requests, one JSON message a line: standard input to standard output. */
#include "arrays.h"
#include "attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESSAGE = 64 << 20, NOT_JSON = -32700, NO_REQUEST = -32600, MAX_RESULTS = 4 };

/* What a call gives: arrays by name. */
typedef struct {
    size_t count;
    const char *names[MAX_RESULTS];
    Array arrays[MAX_RESULTS];
} Results;

static void add(Results *results, const char *name, Array array)
{
    results->names[results->count] = name;
    results->arrays[results->count++] = array;
}

static bool call_softmax(Json params, Results *results, Refusal *refusal)
{
    static const char *const known[] = {"scores", NULL};
    Array scores;
    if (!only_these(params, known, refusal) || !take_floats(params, "scores", 1, &scores, refusal))
        return false;
    Array output = zeros(scores.dtype, scores.axes, scores.shape);
    size_t rows = size_of(&scores, scores.axes - 1), n = scores.shape[scores.axes - 1];
    for (size_t i = 0; i < rows; i++)
        softmax(scores.data + i * n, NULL, n, output.data + i * n);
    add(results, "output", output);
    return true;
}

/* The length of an axis, counted from the last one. */
static size_t axis(const Array *array, size_t from_end)
{
    return array->shape[array->axes - 1 - from_end];
}

static bool same_lead(const Array *one, const Array *other)
{
    return one->axes == other->axes && !memcmp(one->shape, other->shape, (one->axes - 2) * sizeof *one->shape);
}

/* Refuses the call when it has an argument of dropout, which is not implemented here. */
static bool without_dropout(Json params, Refusal *refusal)
{
    if (json_get(params, "dropout_rate") || json_get(params, "training") || json_get(params, "seed"))
        return refuse(refusal, NOT_IMPLEMENTED, "dropout is not implemented");
    return true;
}

static bool take_attention(Json params, Array *query, Array *key, Array *value, Refusal *refusal)
{
    static const char *const known[] = {"query", "key", "value", "mask", NULL};
    if (!without_dropout(params, refusal) || !only_these(params, known, refusal))
        return false;
    if (!take_floats(params, "query", 2, query, refusal) || !take_floats(params, "key", 2, key, refusal)
        || !take_floats(params, "value", 2, value, refusal))
        return false;
    if (key->dtype != query->dtype || !same_lead(key, query))
        return refuse(refusal, BAD_ARGUMENT, "key: the dtype and all axes but the last two are those of query");
    if (axis(key, 0) != axis(query, 0))
        return refuse(refusal, BAD_ARGUMENT, "key: %zu channels, query has %zu", axis(key, 0), axis(query, 0));
    if (value->dtype != query->dtype || !same_lead(value, query))
        return refuse(refusal, BAD_ARGUMENT, "value: the dtype and all axes but the last two are those of query");
    if (axis(value, 1) != axis(key, 1))
        return refuse(refusal, BAD_ARGUMENT, "value: %zu rows, key has %zu", axis(value, 1), axis(key, 1));
    return true;
}

static bool call_attention(Json params, Results *results, Refusal *refusal)
{
    Array query, key, value;
    if (!take_attention(params, &query, &key, &value, refusal))
        return false;
    Sizes sizes = {axis(&query, 1), axis(&key, 1), axis(&query, 0), axis(&value, 0)};
    size_t samples = size_of(&query, query.axes - 2), square = sizes.q_seq * sizes.kv_seq;
    if (samples * square > MAX_ELEMENTS || samples * sizes.q_seq * sizes.d_v > MAX_ELEMENTS)
        return refuse(refusal, BAD_ARGUMENT, "key and value: the results have more elements than an array may");
    size_t shape[MAX_AXES], axes = query.axes;
    memcpy(shape, query.shape, sizeof shape);
    shape[axes - 1] = sizes.d_v;
    Array output = zeros(query.dtype, axes, shape);
    shape[axes - 1] = sizes.kv_seq;
    Array weights = zeros(query.dtype, axes, shape);
    Array scores = zeros(query.dtype, axes, shape);
    Array scaled = zeros(query.dtype, axes, shape);
    bool *mask;
    if (!take_mask(params, &scores, &mask, refusal))
        return false;
    for (size_t i = 0; i < samples; i++)
        attend(sizes, query.data + i * sizes.q_seq * sizes.d_k, key.data + i * sizes.kv_seq * sizes.d_k,
               value.data + i * sizes.kv_seq * sizes.d_v, mask ? mask + i * square : NULL,
               output.data + i * sizes.q_seq * sizes.d_v, weights.data + i * square, scores.data + i * square,
               scaled.data + i * square);
    add(results, "output", output);
    add(results, "weights", weights);
    add(results, "scores", scores);
    add(results, "scaled_scores", scaled);
    return true;
}

static bool call_positions(Json params, Results *results, Refusal *refusal)
{
    static const char *const known[] = {"x", NULL};
    Array x;
    if (!without_dropout(params, refusal) || !only_these(params, known, refusal)
        || !take_floats(params, "x", 3, &x, refusal))
        return false;
    if (x.axes != 3)
        return refuse(refusal, BAD_ARGUMENT, "x: %zu axes, expected batch, seq and d_model", x.axes);
    Array output = zeros(x.dtype, x.axes, x.shape);
    size_t seq = x.shape[1], d_model = x.shape[2];
    for (size_t i = 0; i < x.shape[0]; i++)
        add_positions(x.data + i * seq * d_model, seq, d_model, output.data + i * seq * d_model);
    add(results, "output", output);
    return true;
}

static const struct {
    const char *method;
    bool (*call)(Json params, Results *results, Refusal *refusal);
} components[] = {
    {"softmax", call_softmax},
    {"scaled_dot_product_attention", call_attention},
    {"positional_encoding", call_positions},
};

enum { COMPONENTS = sizeof components / sizeof *components };

static bool call(Json method, Json params, Results *results, Refusal *refusal)
{
    for (size_t i = 0; i < COMPONENTS; i++)
        if (json_is(method, components[i].method))
            return components[i].call(params, results, refusal);
    return refuse(refusal, NO_SUCH_METHOD, "there is no such method");
}

static void write_handshake(void)
{
    printf("{\"protocol\":1,\"name\":\"attention.c\",\"version\":\"1.0\",\"language\":\"C11\",\"components\":[");
    for (size_t i = 0; i < COMPONENTS; i++)
        printf("%s\"%s\"", i ? "," : "", components[i].method);
    printf("],\"conventions\":{\"empty_row\":\"zeros\",\"pe_layout\":\"interleaved\"}}");
}

static void write_results(const Results *results)
{
    for (size_t i = 0; i < results->count; i++) {
        printf("%s\"%s\":", i ? "," : "{", results->names[i]);
        write_array(&results->arrays[i]);
    }
    putchar('}');
}

/* A request as it was read. */
typedef struct {
    long long id; /* -1 until it is known */
    Json method, params;
} Request;

static bool read_request(const char *line, size_t length, Request *request, Refusal *refusal)
{
    Json message = json_check(line, length);
    if (!message)
        return refuse(refusal, NOT_JSON, "the message is not JSON, or nested too deep");
    Json id = json_get(message, "id"), version = json_get(message, "jsonrpc"), params = json_get(message, "params");
    request->id = id ? json_whole(id) : -1;
    request->method = json_get(message, "method");
    request->params = params ? params : "{}";
    if (request->id < 0)
        return refuse(refusal, NO_REQUEST, "id: expected a whole number of at least 0");
    if (!version || !json_is(version, "2.0") || !request->method || *request->method != '"' || *request->params != '{')
        return refuse(refusal, NO_REQUEST, "expected jsonrpc 2.0, the name of a method, and params by name");
    return true;
}

/* The version of the protocol that the suite speaks. */
static bool check_version(Json params, Refusal *refusal)
{
    Json protocol = json_get(params, "protocol");
    return (protocol && json_whole(protocol) == 1)
           || refuse(refusal, BAD_ARGUMENT, "protocol: this is written for version 1");
}

/* Answers a line, whatever it is; true when it asks to end. */
static bool answer(const char *line, size_t length)
{
    Request request = {.id = -1};
    Refusal refusal;
    Results results = {0};
    bool known = read_request(line, length, &request, &refusal);
    bool hello = known && json_is(request.method, "initialize");
    bool last = known && json_is(request.method, "shutdown");
    bool fine = known
                && (last || (hello ? check_version(request.params, &refusal)
                                   : call(request.method, request.params, &results, &refusal)));
    printf(request.id < 0 ? "{\"jsonrpc\":\"2.0\",\"id\":null," : "{\"jsonrpc\":\"2.0\",\"id\":%lld,", request.id);
    printf(fine ? "\"result\":" : "\"error\":");
    if (!fine)
        printf("{\"code\":%d,\"message\":\"%s\"}", refusal.code, refusal.message);
    else if (last)
        printf("null");
    else if (hello)
        write_handshake();
    else
        write_results(&results);
    printf("}\n");
    fflush(stdout);
    free_all();
    return last;
}

/* The next line, ended by a 0 instead of the line break; false at the end, or when it is longer than a message. */
static bool read_line(char **line, size_t *room, size_t *length)
{
    *length = 0;
    for (int c = getchar(); c != '\n'; c = getchar()) {
        if (c == EOF || *length == MAX_MESSAGE)
            return false;
        (*line)[(*length)++] = (char)c;
        if (*length == *room) {
            char *longer = realloc(*line, *room *= 2);
            if (!longer) {
                fprintf(stderr, "out of memory\n");
                return false;
            }
            *line = longer;
        }
    }
    (*line)[*length] = 0;
    return true;
}

int main(void)
{
    size_t room = 1 << 16, length;
    char *line = malloc(room);
    bool ended = !line;
    while (!ended && read_line(&line, &room, &length))
        ended = answer(line, length);
    free(line);
    return 0;
}
