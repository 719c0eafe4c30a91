/* Reads JSON where it stands, without a copy: a value is a pointer to its first character.

   json_check goes through the whole text first, never beyond its end. What the other functions are given lies in a
   text that it has found sound, where every value, string and bracket ends before the text does. Names and strings
   are compared as they are written: one with escapes equals no other. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

typedef const char *Json;

/* The one value that a text of this many bytes holds; NULL when it is not JSON, or nested more than 16 deep. The byte
   after the text must be 0. */
Json json_check(const char *text, size_t length);

/* The elements of an array, or the members of an object, one after the other: the first one after NULL. NULL after
   the last one. */
Json json_next(Json container, Json previous);

/* The value of a member, and the value of the member of this name: NULL when the object has no such member. */
Json json_member_value(Json member);
Json json_get(Json object, const char *name);

/* Whether a value, or the name of a member, is this string. */
bool json_is(Json value, const char *string);

bool json_is_number(Json value);

/* A number that is written only with digits, at most 18 of them; -1 for any other value. */
long long json_whole(Json value);

#endif
