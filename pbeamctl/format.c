#include "pbeamctl/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void format_size(uint64_t bytes, char out[16])
{
	static const char units[] = "KMGTPE";
	double value = (double)bytes;
	int unit = -1;

	while (value >= 1024 && unit < 5) {
		value /= 1024;
		unit++;
	}
	if (unit < 0)
		snprintf(out, 16, "%" PRIu64, bytes);
	else
		snprintf(out, 16, value < 100 ? "%.1f%c" : "%.0f%c", value, units[unit]);
}

void format_span(uint64_t ns, char out[24])
{
	if (ns < 1000000)
		snprintf(out, 24, "%" PRIu64 " us", ns / 1000);
	else if (ns < 1000000000)
		snprintf(out, 24, "%.1f ms", (double)ns / 1e6);
	else
		snprintf(out, 24, "%.2f s", (double)ns / 1e9);
}

void format_time(uint64_t ns, char out[32])
{
	time_t seconds = (time_t)(ns / 1000000000);
	struct tm local;

	if (!ns || !localtime_r(&seconds, &local) || !strftime(out, 32, "%Y-%m-%d %H:%M:%S", &local))
		snprintf(out, 32, "-");
}

void format_text(const char *text, int width)
{
	for (int n = 0; *text && (width < 0 || n < width); text++, n++)
		putchar((unsigned char)*text < 32 || *text == 127 ? '?' : *text);
}

bool format_colour(void)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(STDOUT_FILENO) && !(no && *no) && !(term && !strcmp(term, "dumb"));
}

void format_heading(const char *line)
{
	bool colour = format_colour();

	printf("%s%s%s\n", colour ? "\033[1m" : "", line, colour ? "\033[0m" : "");
}

/* ---- JSON ---- */

static bool comma; /* a value precedes on this level */

static void json_separate(void)
{
	if (comma)
		putchar(',');
	comma = true;
}

void json_open(char bracket)
{
	json_separate();
	putchar(bracket);
	comma = false;
}

void json_close(char bracket)
{
	putchar(bracket);
	comma = true;
}

/* The length of the UTF-8 sequence at `s`, or 0. Does not look for all overlong forms or for surrogates. */
static int utf8_length(const unsigned char *s)
{
	int n = s[0] < 0x80		      ? 1
		: s[0] >= 0xc2 && s[0] < 0xe0 ? 2
		: (s[0] & 0xf0) == 0xe0	      ? 3
		: s[0] >= 0xf0 && s[0] < 0xf5 ? 4
					      : 0;

	for (int i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

static void json_quote(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	putchar('"');
	while (*s) {
		int n = utf8_length(s);

		if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else if (*s < 32 || *s == 127)
			printf("\\u%04x", *s);
		else if (n == 0)
			fputs("\\ufffd", stdout);
		else
			fwrite(s, 1, (size_t)n, stdout);
		s += n ? n : 1;
	}
	putchar('"');
}

void json_key(const char *key)
{
	json_separate();
	json_quote(key);
	putchar(':');
	comma = false;
}

void json_string(const char *text)
{
	json_separate();
	json_quote(text);
}

void json_number(int64_t value)
{
	json_separate();
	printf("%" PRId64, value);
}

void json_real(double value)
{
	json_separate();
	printf("%.2f", value);
}

void json_unsigned(uint64_t value)
{
	json_separate();
	printf("%" PRIu64, value);
}

void json_bool(bool value)
{
	json_separate();
	fputs(value ? "true" : "false", stdout);
}

void json_end(void)
{
	putchar('\n');
	comma = false;
}
