#include "pbeamctl/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

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
	format_text_to(stdout, text, width);
}

/* Control characters of ASCII are frequent in command lines, and shown as one column. */
void format_text_to(FILE *to, const char *text, int width)
{
	char *copy = strdup(text);
	const char *shown;
	int n = 0;

	for (char *c = copy; c && *c; c++)
		if ((unsigned char)*c < 32 || *c == 127)
			*c = '?';
	shown = text_visible(copy);
	while (*shown && (width < 0 || n++ < width)) {
		uint32_t c;
		size_t len = text_decode(shown, &c);

		fwrite(shown, 1, len ? len : 1, to);
		shown += len ? len : 1;
	}
	free(copy);
}

void format_lines(const char *text)
{
	while (*text) {
		char *line = strndup(text, strcspn(text, "\n"));

		puts(text_visible(line));
		free(line);
		text += strcspn(text, "\n");
		text += *text == '\n';
	}
}

void format_path(const char *path)
{
	puts(isatty(STDOUT_FILENO) ? text_visible(path) : path);
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

/* Characters that a terminal obeys are escaped: a document is often looked at as it is. */
static void json_quote(const char *text)
{
	putchar('"');
	while (*text) {
		uint32_t c;
		size_t n = text_decode(text, &c);

		if (n == 0)
			fputs("\\ufffd", stdout);
		else if (c == '"' || c == '\\')
			printf("\\%c", (int)c);
		else if (text_is_obeyed(c))
			printf("\\u%04x", c);
		else
			fwrite(text, 1, n, stdout);
		text += n ? n : 1;
	}
	putchar('"');
}

/* Writes what precedes a value. */
static void json_begin(const char *key)
{
	if (comma)
		putchar(',');
	comma = true;
	if (key) {
		json_quote(key);
		putchar(':');
	}
}

void json_open(const char *key, char bracket)
{
	json_begin(key);
	putchar(bracket);
	comma = false;
}

void json_close(char bracket)
{
	putchar(bracket);
	comma = true;
}

void json_string(const char *key, const char *text)
{
	json_begin(key);
	json_quote(text);
}

void json_unsigned(const char *key, uint64_t value)
{
	json_begin(key);
	printf("%" PRIu64, value);
}

void json_bool(const char *key, bool value)
{
	json_begin(key);
	fputs(value ? "true" : "false", stdout);
}

static void json_strings(const char *key, char *const *texts, size_t n)
{
	json_open(key, '[');
	for (size_t i = 0; i < n; i++)
		json_string(NULL, texts[i]);
	json_close(']');
}

static void json_field(const char *key, const ProtobufCMessage *message, const char *name)
{
	const ProtobufCFieldDescriptor *field =
		protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
	const void *at = (const char *)message + field->offset;

	if (field->label == PROTOBUF_C_LABEL_REPEATED) {
		json_strings(key, *(char *const *const *)at,
			     *(const size_t *)((const char *)message + field->quantifier_offset));
	} else if (field->type == PROTOBUF_C_TYPE_STRING) {
		json_string(key, *(const char *const *)at);
	} else if (field->type == PROTOBUF_C_TYPE_BOOL) {
		json_bool(key, *(const protobuf_c_boolean *)at);
	} else if (field->type == PROTOBUF_C_TYPE_DOUBLE) {
		json_begin(key);
		printf("%.2f", *(const double *)at);
	} else if (field->type == PROTOBUF_C_TYPE_INT32) {
		json_begin(key);
		printf("%" PRId32, *(const int32_t *)at);
	} else {
		json_unsigned(key, field->type == PROTOBUF_C_TYPE_UINT32 ? *(const uint32_t *)at
									 : *(const uint64_t *)at);
	}
}

void json_fields(const ProtobufCMessage *message, const char *members)
{
	char text[256], *rest = NULL;

	snprintf(text, sizeof(text), "%s", members);
	for (char *key = strtok_r(text, " ", &rest); key; key = strtok_r(NULL, " ", &rest)) {
		char *field = strchr(key, '=');

		if (field)
			*field++ = 0;
		json_field(key, message, field ? field : key);
	}
}

void json_end(void)
{
	putchar('\n');
	comma = false;
}
