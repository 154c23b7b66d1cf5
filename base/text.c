#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ESCAPED = 4 }; /* bytes of \xNN */

size_t text_decode(const char *text, uint32_t *out)
{
	const uint8_t *s = (const uint8_t *)text;
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t n = s[0] < 0x80 ? 1 : (s[0] & 0xe0) == 0xc0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : 4;
	uint32_t c = n == 1 ? s[0] : s[0] & (0x7fu >> n);

	if (n == 4 && (s[0] & 0xf8) != 0xf0)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80) /* also the final NUL */
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < smallest[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return 0;
	*out = c;
	return n;
}

bool text_is_obeyed(uint32_t c)
{
	bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
	bool direction = c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
			 (c >= 0x2066 && c <= 0x2069);

	return control || direction;
}

void text_make_visible(char *text, size_t size)
{
	size_t at = 0;

	while (text[at]) {
		uint32_t c = 0;
		size_t n = text_decode(text + at, &c), left;
		char escaped[ESCAPED + 1];

		if (n > 0 && !text_is_obeyed(c)) {
			at += n;
			continue;
		}
		if (at + ESCAPED >= size) {
			text[at] = 0;
			return;
		}
		/* One byte; the others of the character are no UTF-8 by themselves. */
		snprintf(escaped, sizeof(escaped), "\\x%02x", (unsigned)(uint8_t)text[at]);
		left = strlen(text + at + 1);
		if (at + ESCAPED + left >= size)
			left = size - at - ESCAPED - 1;
		memmove(text + at + ESCAPED, text + at + 1, left);
		memcpy(text + at, escaped, ESCAPED);
		at += ESCAPED;
		text[at + left] = 0;
	}
}

const char *text_copy_visible(char *to, size_t size, const char *text)
{
	snprintf(to, size, "%s", text ? text : "");
	text_make_visible(to, size);
	return to;
}
