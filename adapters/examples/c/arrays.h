/* The arguments and results of a call: arrays of the protocol, read, checked and written. */
#ifndef ARRAYS_H
#define ARRAYS_H

#include "json.h"

enum { MAX_AXES = 8, MAX_ELEMENTS = 1 << 24 };

typedef enum { FLOAT64, FLOAT32, BOOL } DType;

/* Elements flat and row-major, a bool as 1 or 0. A float32 is held and computed with as a double, and rounded once
   when it is written. */
typedef struct {
    DType dtype;
    size_t axes;
    size_t shape[MAX_AXES];
    double *data;
} Array;

/* Why a call is refused, and the code that says so. */
typedef struct {
    int code;
    char message[200];
} Refusal;

enum { NO_SUCH_METHOD = -32601, BAD_ARGUMENT = -32602, NOT_IMPLEMENTED = -32001 };

/* Notes a refusal and gives false, so that a caller returns what it gives. */
bool refuse(Refusal *refusal, int code, const char *format, ...);

/* Zeros, until free_all: the process ends when there is no memory. */
void *allocate(size_t count, size_t size);
void free_all(void);

/* The array that an argument was given as, of floats and without an empty axis; false when it was not. */
bool take_floats(Json params, const char *name, size_t least_axes, Array *array, Refusal *refusal);

/* The mask of a call, spread over scores of the shape of `scores`; NULL in *mask when the call has no mask. */
bool take_mask(Json params, const Array *scores, bool **mask, Refusal *refusal);

/* Refuses a call that has an argument which is not in the list; the list ends with NULL. */
bool only_these(Json params, const char *const *known, Refusal *refusal);

/* An array of zeros of a shape, and the number of elements of its first axes. */
Array zeros(DType dtype, size_t axes, const size_t *shape);
size_t size_of(const Array *array, size_t axes);

/* Writes an array to standard output. */
void write_array(const Array *array);

#endif
