/* How numbers, times and JSON look on standard output. */
#ifndef PBEAMCTL_FORMAT_H
#define PBEAMCTL_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "512", "4.0K", "1.5G". */
void format_size(uint64_t bytes, char out[16]);
/* "850 us", "12.3 ms", "1.25 s". */
void format_span(uint64_t ns, char out[24]);
/* "2026-11-21 08:15:00", local time. */
void format_time(uint64_t ns, char out[32]);
/* Text of other processes has no control characters when it comes to a terminal: prints at most `width`
 * columns, -1 all. */
void format_text(const char *text, int width);
/* A heading line; bold on a terminal, unless NO_COLOR is set. */
void format_heading(const char *line);
bool format_colour(void);

/* ---- JSON, written as it comes ---- */
/* Commas are the writer's work: json_key() and values put them where one went before. */
void json_open(char bracket);
void json_close(char bracket);
void json_key(const char *key);
void json_string(const char *text);
void json_number(int64_t value);
void json_real(double value); /* with two digits */
void json_unsigned(uint64_t value);
void json_bool(bool value);
/* Ends the document with a line's end. */
void json_end(void);

#endif
