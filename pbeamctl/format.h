/* Formats numbers, times and JSON for standard output. */
#ifndef PBEAMCTL_FORMAT_H
#define PBEAMCTL_FORMAT_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* "512", "4.0K", "1.5G". */
void format_size(uint64_t bytes, char out[16]);
/* "850 us", "12.3 ms", "1.25 s". */
void format_span(uint64_t ns, char out[24]);
/* "2026-11-21 08:15:00", local time. */
void format_time(uint64_t ns, char out[32]);
/* Prints at most `width` characters (-1: all) of text from another process: visible (base/text.h), ASCII's
 * control characters as "?". */
void format_text(const char *text, int width);
void format_text_to(FILE *to, const char *text, int width);
/* Prints lines of text from another process, visible. */
void format_lines(const char *text);
/* Prints a line with a path, visible on a terminal. In a pipe it is as it is, for the next program. */
void format_path(const char *path);
/* Prints a heading, in bold on a terminal unless NO_COLOR is set. */
void format_heading(const char *line);
bool format_colour(void);

/* ---- a JSON writer ---- */
/* All functions write the separating commas. json_open() takes '{' or '['; `key` is NULL for an element of an
 * array. */
void json_open(const char *key, char bracket);
void json_close(char bracket);
void json_string(const char *key, const char *text);
void json_unsigned(const char *key, uint64_t value);
void json_bool(const char *key, bool value);
/* Writes members of an object from fields of a message: "KEY" or "KEY=FIELD" each, separated by spaces. Real
 * numbers have two decimals. */
void json_fields(const ProtobufCMessage *message, const char *members);
/* Ends the document with a newline. */
void json_end(void);

#endif
