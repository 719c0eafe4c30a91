#include "json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 16 };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static Json skip_space(Json at)
{
    return at + strspn(at, " \t\r\n"); /* at most to the 0 after the text */
}

/* Checking: each function takes a pointer into the text and its end, and gives the one after what it checked, or
   NULL. */

static Json check_value(Json at, Json end, int depth);

static Json check_string(Json at, Json end)
{
    if (at >= end || *at != '"')
        return NULL;
    for (at++; at < end && *at != '"'; at++) {
        if ((unsigned char)*at < ' ')
            return NULL;
        if (*at == '\\') {
            at++;
            if (at < end && *at == 'u') {
                if (end - at < 5 || strspn(at + 1, "0123456789abcdefABCDEF") < 4)
                    return NULL;
                at += 4;
            } else if (at >= end || !strchr("\"\\/bfnrt", *at)) {
                return NULL;
            }
        }
    }
    return at < end ? at + 1 : NULL;
}

static Json check_digits(Json at)
{
    if (!is_digit(*at))
        return NULL;
    while (is_digit(*at)) /* the text ends with a 0, which is no digit */
        at++;
    return at;
}

static Json check_number(Json at)
{
    at += *at == '-';
    at = *at == '0' ? at + 1 : check_digits(at);
    if (at && *at == '.')
        at = check_digits(at + 1);
    if (at && (*at == 'e' || *at == 'E')) {
        at++;
        at = check_digits(at + (*at == '+' || *at == '-'));
    }
    return at;
}

static Json check_container(Json at, Json end, int depth)
{
    char close = *at == '{' ? '}' : ']';
    at = skip_space(at + 1);
    if (*at == close)
        return at + 1;
    for (;;) {
        if (close == '}') {
            at = check_string(at, end);
            at = at ? skip_space(at) : NULL;
            if (!at || *at != ':')
                return NULL;
            at = skip_space(at + 1);
        }
        at = check_value(at, end, depth + 1);
        if (!at)
            return NULL;
        at = skip_space(at);
        if (*at == close)
            return at + 1;
        if (*at != ',')
            return NULL;
        at = skip_space(at + 1);
    }
}

static Json check_value(Json at, Json end, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    if (at >= end)
        return NULL;
    if (*at == '{' || *at == '[')
        return depth < MAX_DEPTH ? check_container(at, end, depth) : NULL;
    if (*at == '"')
        return check_string(at, end);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strncmp(at, words[i], strlen(words[i])))
            return at + strlen(words[i]);
    return check_number(at);
}

Json json_check(const char *text, size_t length)
{
    Json end = text + length, value = skip_space(text);
    Json after = check_value(value, end, 0);
    return after && skip_space(after) == end ? value : NULL;
}

/* Walking through a text that was checked. */

static Json skip_string(Json at)
{
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

static Json skip_value(Json at)
{
    int depth = 0;
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at++;
        if (!depth)
            at += strcspn(at, ",]} \t\r\n"); /* the rest of a number or a word */
    } while (depth);
    return at;
}

Json json_next(Json container, Json previous)
{
    Json at = skip_space(container + 1);
    if (previous) {
        at = *container == '{' ? json_member_value(previous) : previous;
        at = skip_space(skip_value(at));
        at = *at == ',' ? skip_space(at + 1) : at;
    }
    return *at == ']' || *at == '}' ? NULL : at;
}

Json json_member_value(Json member)
{
    return skip_space(skip_space(skip_string(member)) + 1);
}

Json json_get(Json object, const char *name)
{
    if (*object != '{')
        return NULL;
    for (Json member = json_next(object, NULL); member; member = json_next(object, member))
        if (json_is(member, name))
            return json_member_value(member);
    return NULL;
}

bool json_is(Json value, const char *string)
{
    size_t length = strlen(string);
    return *value == '"' && !strncmp(value + 1, string, length) && value[1 + length] == '"';
}

bool json_is_number(Json value)
{
    return *value == '-' || is_digit(*value);
}

long long json_whole(Json value)
{
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || digits > 18 || strchr(".eE", value[digits]))
        return -1;
    return strtoll(value, NULL, 10);
}
