#include "base/parse.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
	const char *name;
	double factor;
};

/* A number without sign, exponent, hexadecimal or infinity, then a unit of the table (its last row has no
 * name). */
static int parse_with_unit(const char *text, const struct unit *units, double *out)
{
	size_t digits = strspn(text, "0123456789.");
	char *end;
	double value;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	value = strtod(text, &end);
	if (end != text + digits)
		return -EINVAL;
	for (; units->name; units++)
		if (!strcasecmp(end, units->name)) {
			*out = value * units->factor;
			return 0;
		}
	return -EINVAL;
}

int parse_duration(const char *text, uint64_t *ns, struct err *err)
{
	static const struct unit units[] = {{"", 1e9},	   {"s", 1e9},	  {"m", 60e9},
					    {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9},
					    {"ms", 1e6},   {"us", 1e3},	  {NULL, 0}};
	double value;

	if (parse_with_unit(text, units, &value) < 0)
		return err_set(err, -EINVAL, "%s is no time; write 90s, 1.5m or 2h", text);
	if (value < 1 || value > 366.0 * 86400e9)
		return err_set(err, -ERANGE, "%s is not between a moment and a year", text);
	*ns = (uint64_t)value;
	return 0;
}

int parse_size(const char *text, uint64_t *bytes, struct err *err)
{
	static const struct unit units[] = {{"", 1},
					    {"b", 1},
					    {"k", 1024.0},
					    {"kb", 1024.0},
					    {"kib", 1024.0},
					    {"m", 1048576.0},
					    {"mb", 1048576.0},
					    {"mib", 1048576.0},
					    {"g", 1073741824.0},
					    {"gb", 1073741824.0},
					    {"gib", 1073741824.0},
					    {"t", 1099511627776.0},
					    {"tb", 1099511627776.0},
					    {"tib", 1099511627776.0},
					    {NULL, 0}};
	double value;

	if (parse_with_unit(text, units, &value) < 0)
		return err_set(err, -EINVAL, "%s is no size; write 4096, 64K, 64M or 1G", text);
	if (value > 1e18)
		return err_set(err, -ERANGE, "%s is larger than any file", text);
	*bytes = (uint64_t)value;
	return 0;
}

int parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *out, struct err *err)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)text[0]) || *end || errno || n < least || n > most)
		return err_set(err, -EINVAL, "%s is no number from %llu to %llu", text,
			       (unsigned long long)least, (unsigned long long)most);
	*out = n;
	return 0;
}

static int parse_real_time(const char *text)
{
	uint64_t n = 0;

	if (!strncasecmp(text, "RTMIN", 5)) {
		if (!text[5])
			return SIGRTMIN;
		if (text[5] == '+' &&
		    parse_number(text + 6, 0, (uint64_t)(SIGRTMAX - SIGRTMIN), &n, NULL) == 0)
			return SIGRTMIN + (int)n;
	}
	if (!strncasecmp(text, "RTMAX", 5)) {
		if (!text[5])
			return SIGRTMAX;
		if (text[5] == '-' &&
		    parse_number(text + 6, 0, (uint64_t)(SIGRTMAX - SIGRTMIN), &n, NULL) == 0)
			return SIGRTMAX - (int)n;
	}
	return -EINVAL;
}

int parse_signal(const char *text, struct err *err)
{
	const char *name = strncasecmp(text, "SIG", 3) ? text : text + 3;
	uint64_t n;
	int r;

	if (parse_number(text, 0, (uint64_t)SIGRTMAX, &n, NULL) == 0)
		return (int)n;
	r = parse_real_time(name);
	if (r > 0)
		return r;
	for (int i = 1; i < NSIG; i++) {
		const char *known = sigabbrev_np(i);

		if (known && !strcasecmp(known, name))
			return i;
	}
	return err_set(err, -EINVAL, "%s is no signal; write TERM, SIGTERM or 15", text);
}
