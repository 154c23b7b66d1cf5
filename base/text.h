/* Text of foreign origin, names of programs, files and hosts for instance, on its way to a terminal. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stddef.h>

/* Replaces what a terminal may obey or show in another order, in place: control characters (C0, DEL, and C1
 * also in UTF-8), bytes that are not UTF-8, and Unicode's direction controls. Each of their bytes becomes
 * \xNN. Text that does not fit `size` afterwards is cut off. A backslash stays, so a second call changes
 * nothing. */
void text_make_visible(char *text, size_t size);

#endif
