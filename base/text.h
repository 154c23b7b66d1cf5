/* Text of foreign origin, names of programs, files and hosts for instance, on its way to a terminal. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Replaces what a terminal may obey or show in another order, in place: control characters (C0, DEL, and C1
 * also in UTF-8), bytes that are not UTF-8, and Unicode's direction controls. Each of their bytes becomes
 * \xNN. Text that does not fit `size` afterwards is cut off. A backslash stays, so a second call changes
 * nothing. */
void text_make_visible(char *text, size_t size);

/* Decodes one character of UTF-8 (RFC 3629). Returns its length, 0 if it is not well-formed. */
size_t text_decode(const char *text, uint32_t *out);
/* True for a character that a terminal may obey. */
bool text_is_obeyed(uint32_t c);

enum { TEXT_VISIBLE_MAX = 4096 };
/* Foreign text as an argument of printf(3): a visible copy, valid in the enclosing block. NULL is "".
 * tests/check_prints.py finds foreign text that is printed without it. */
#define text_visible(text) text_copy_visible((char[TEXT_VISIBLE_MAX]){0}, TEXT_VISIBLE_MAX, text)
const char *text_copy_visible(char *to, size_t size, const char *text);

#endif
