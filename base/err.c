#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

__attribute__((format(printf, 4, 0))) static void err_vset(struct err *err, int code, const char *tail,
							   const char *fmt, va_list ap)
{
	int n;

	if (!err)
		return;
	err->code = code;
	n = vsnprintf(err->text, sizeof(err->text), fmt, ap);
	if (tail && n >= 0 && (size_t)n < sizeof(err->text))
		snprintf(err->text + n, sizeof(err->text) - (size_t)n, ": %s", tail);
	text_make_visible(err->text, sizeof(err->text));
}

int err_set(struct err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err_vset(err, code, NULL, fmt, ap);
	va_end(ap);
	return code;
}

int err_sys(struct err *err, const char *fmt, ...)
{
	int code = -errno;
	va_list ap;

	va_start(ap, fmt);
	err_vset(err, code, strerror(-code), fmt, ap);
	va_end(ap);
	return code;
}

int err_code(struct err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err_vset(err, code, strerror(-code), fmt, ap);
	va_end(ap);
	return code;
}

int err_wrap(struct err *err, int code, const char *fmt, ...)
{
	char head[ERR_TEXT_MAX], old[ERR_TEXT_MAX];
	va_list ap;

	if (!err)
		return code;
	va_start(ap, fmt);
	vsnprintf(head, sizeof(head), fmt, ap);
	text_make_visible(head, sizeof(head));
	va_end(ap);
	if (!err->text[0])
		snprintf(err->text, sizeof(err->text), "%s: %s", head, strerror(-code));
	else {
		memcpy(old, err->text, sizeof(old));
		size_t n = strnlen(head, sizeof(head));

		if (n > ERR_TEXT_MAX - 3)
			n = ERR_TEXT_MAX - 3;
		memcpy(err->text, head, n);
		memcpy(err->text + n, ": ", 3);
		size_t room = ERR_TEXT_MAX - n - 3;
		size_t len = strnlen(old, sizeof(old));

		if (len > room)
			len = room;
		memcpy(err->text + n + 2, old, len);
		err->text[n + 2 + len] = 0;
	}
	if (!err->code)
		err->code = code;
	return err->code;
}

void err_clear(struct err *err)
{
	if (err) {
		err->code = 0;
		err->text[0] = 0;
	}
}
