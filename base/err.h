/*
 * Errors. A fallible function returns 0 or a count, else -errno, and is marked must_check. If errno is not
 * enough, its last parameter is a struct err *: err_set() and err_sys() write it where the failure happens,
 * err_wrap() adds "doing what to whom: " on the way up. A struct err lives on the caller's stack, allocates
 * nothing, and may be NULL if the text is not needed.
 *
 * Log or return, not both: only command lines and connection loops print.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stddef.h>

#define ERR_TEXT_MAX 1024
#define must_check   __attribute__((warn_unused_result))

struct err {
	int code; /* -errno of the first err_set, 0 when clear */
	char text[ERR_TEXT_MAX];
};

#define ERR_INIT                                                                                             \
	{                                                                                                    \
		.code = 0, .text = ""                                                                        \
	}

/* Sets the text and the code (a negative errno). Returns the code, so that `return err_set(...)` reads well.
 */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As err_set() with code -errno and ": strerror" appended. Reads errno before anything else. */
int err_sys(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* As err_sys() for a negative errno value that a function returned. */
int err_code(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Prefixes "fmt: " to the text. Returns the code of `err`, or `code` if it has none. */
int err_wrap(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Clears code and text. */
void err_clear(struct err *err);

#endif
