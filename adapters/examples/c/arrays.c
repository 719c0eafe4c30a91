#include "arrays.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool refuse(Refusal *refusal, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    refusal->code = code;
    vsnprintf(refusal->message, sizeof refusal->message, format, arguments);
    va_end(arguments);
    return false;
}

/* Memory: blocks of a call hang on one another. */

typedef struct Block {
    struct Block *next;
    max_align_t content[];
} Block;

static Block *blocks;

void *allocate(size_t count, size_t size)
{
    /* No array has more elements; a product such as q_seq times kv_seq may. */
    Block *block = count > MAX_ELEMENTS ? NULL : calloc(1, sizeof *block + count * size);
    if (!block) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    block->next = blocks;
    blocks = block;
    return block->content;
}

void free_all(void)
{
    while (blocks) {
        Block *next = blocks->next;
        free(blocks);
        blocks = next;
    }
}

size_t size_of(const Array *array, size_t axes)
{
    size_t size = 1;
    for (size_t i = 0; i < axes; i++)
        size *= array->shape[i];
    return size;
}

Array zeros(DType dtype, size_t axes, const size_t *shape)
{
    Array array = {.dtype = dtype, .axes = axes};
    memcpy(array.shape, shape, axes * sizeof *shape);
    array.data = allocate(size_of(&array, axes), sizeof *array.data);
    return array;
}

/* Reading */

static bool read_dtype(Json json, const char *name, Array *array, Refusal *refusal)
{
    static const char *const names[] = {[FLOAT64] = "float64", [FLOAT32] = "float32", [BOOL] = "bool"};
    for (size_t i = 0; json && i < sizeof names / sizeof *names; i++)
        if (json_is(json, names[i])) {
            array->dtype = (DType)i;
            return true;
        }
    return refuse(refusal, BAD_ARGUMENT, "%s: the dtype is not float64, float32 or bool", name);
}

static bool read_shape(Json json, const char *name, Array *array, Refusal *refusal)
{
    if (!json || *json != '[')
        return refuse(refusal, BAD_ARGUMENT, "%s: the shape is not a list", name);
    long long elements = 1;
    array->axes = 0;
    for (Json item = json_next(json, NULL); item; item = json_next(json, item)) {
        long long size = json_whole(item);
        if (size < 0 || size > MAX_ELEMENTS || array->axes == MAX_AXES)
            return refuse(refusal, BAD_ARGUMENT, "%s: the shape is not a list of at most %d sizes", name, MAX_AXES);
        array->shape[array->axes++] = (size_t)size;
        elements *= size;
        if (elements > MAX_ELEMENTS)
            return refuse(refusal, BAD_ARGUMENT, "%s: there are more than %d elements", name, MAX_ELEMENTS);
    }
    return true;
}

static bool read_element(Json item, DType dtype, double *element)
{
    if (dtype == BOOL) {
        *element = *item == 't';
        return *item == 't' || *item == 'f';
    }
    if (json_is_number(item)) {
        double number = strtod(item, NULL);
        if (fabs(number) > (dtype == FLOAT32 ? FLT_MAX : DBL_MAX))
            return false;
        *element = dtype == FLOAT32 ? (float)number : number;
        return true;
    }
    *element = json_is(item, "NaN") ? NAN : json_is(item, "-Infinity") ? -INFINITY : INFINITY;
    return json_is(item, "NaN") || json_is(item, "-Infinity") || json_is(item, "Infinity");
}

static bool read_array(Json json, const char *name, Array *array, Refusal *refusal)
{
    if (*json != '{')
        return refuse(refusal, BAD_ARGUMENT, "%s: expected an object of dtype, shape and data", name);
    if (!read_dtype(json_get(json, "dtype"), name, array, refusal)
        || !read_shape(json_get(json, "shape"), name, array, refusal))
        return false;
    Json data = json_get(json, "data");
    if (!data || *data != '[')
        return refuse(refusal, BAD_ARGUMENT, "%s: the data is not a list of its elements", name);
    size_t size = size_of(array, array->axes), i = 0;
    array->data = allocate(size, sizeof *array->data);
    for (Json item = json_next(data, NULL); item; item = json_next(data, item), i++)
        if (i < size && !read_element(item, array->dtype, &array->data[i]))
            return refuse(refusal, BAD_ARGUMENT, "%s: element %zu of the data is not of the dtype", name, i);
    if (i != size)
        return refuse(refusal, BAD_ARGUMENT, "%s: the data has %zu elements, the shape %zu", name, i, size);
    return true;
}

bool take_floats(Json params, const char *name, size_t least_axes, Array *array, Refusal *refusal)
{
    Json json = json_get(params, name);
    if (!json)
        return refuse(refusal, BAD_ARGUMENT, "%s: missing", name);
    if (!read_array(json, name, array, refusal))
        return false;
    if (array->dtype == BOOL)
        return refuse(refusal, BAD_ARGUMENT, "%s: the dtype is bool, expected floats", name);
    if (array->axes < least_axes)
        return refuse(refusal, BAD_ARGUMENT, "%s: %zu axes, expected %zu or more", name, array->axes, least_axes);
    for (size_t axis = 0; axis < array->axes; axis++)
        if (array->shape[axis] == 0)
            return refuse(refusal, BAD_ARGUMENT, "%s: axis %zu is empty", name, axis);
    return true;
}

bool take_mask(Json params, const Array *scores, bool **mask, Refusal *refusal)
{
    Json json = json_get(params, "mask");
    Array given;
    *mask = NULL;
    if (!json)
        return true;
    if (!read_array(json, "mask", &given, refusal))
        return false;
    if (given.dtype != BOOL)
        return refuse(refusal, BAD_ARGUMENT, "mask: expected a bool, true = may attend");
    bool fits = given.axes <= scores->axes;
    size_t added = fits ? scores->axes - given.axes : 0;
    size_t steps[MAX_AXES] = {0}; /* how far an axis moves in the mask: 0 where it is repeated */
    for (size_t axis = scores->axes, step = 1; fits && axis-- > added;) {
        size_t size = given.shape[axis - added];
        fits = size == 1 || size == scores->shape[axis];
        steps[axis] = size == 1 ? 0 : step;
        step *= size;
    }
    if (!fits)
        return refuse(refusal, BAD_ARGUMENT, "mask: its shape does not broadcast to that of the scores");
    size_t size = size_of(scores, scores->axes);
    *mask = allocate(size, sizeof **mask);
    for (size_t i = 0; i < size; i++) {
        size_t from = 0, rest = i;
        for (size_t axis = scores->axes; axis-- > 0; rest /= scores->shape[axis])
            from += rest % scores->shape[axis] * steps[axis];
        (*mask)[i] = given.data[from] != 0;
    }
    return true;
}

bool only_these(Json params, const char *const *known, Refusal *refusal)
{
    for (Json member = json_next(params, NULL); member; member = json_next(params, member)) {
        size_t i = 0;
        while (known[i] && !json_is(member, known[i]))
            i++;
        if (!known[i]) {
            /* Only letters, so that the message needs no escapes. */
            int letters = (int)strspn(member + 1, "abcdefghijklmnopqrstuvwxyz0123456789_.");
            return refuse(refusal, BAD_ARGUMENT, "%.*s: there is no such argument", letters, member + 1);
        }
    }
    return true;
}

/* Writing */

static void write_number(double number, DType dtype)
{
    if (dtype == FLOAT32)
        number = (float)number;
    if (isnan(number))
        printf("\"NaN\"");
    else if (isinf(number))
        printf(number > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    else
        printf("%.17g", number);
}

void write_array(const Array *array)
{
    size_t size = size_of(array, array->axes);
    printf("{\"dtype\":\"%s\",\"shape\":[", array->dtype == FLOAT32 ? "float32" : "float64");
    for (size_t axis = 0; axis < array->axes; axis++)
        printf("%s%zu", axis ? "," : "", array->shape[axis]);
    printf("],\"data\":[");
    for (size_t i = 0; i < size; i++) {
        if (i)
            putchar(',');
        write_number(array->data[i], array->dtype);
    }
    printf("]}");
}
