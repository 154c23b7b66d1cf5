/*
 * A case: a program that creates some state, waits while it is checkpointed and rolled back (or not), and
 * then checks that the state is unchanged. Its first comment describes it. tests/e2e/test_cases.py runs each
 * case natively, supervised, checkpointed, and rolled back more than once.
 *
 *	int main(void)
 *	{
 *		... create the state ...
 *		case_wait();
 *		CHECK(lseek(fd, 0, SEEK_CUR) == 7);
 *		case_pass();
 *	}
 *
 * case_wait() prints "ready" on standard output and returns once the file named by $CASE_GO exists, or at
 * once without that variable. case_skip("why") is for machines that lack a capability, which it names. A line
 * "case: root" in the source runs the case as root too; "case: slow" gives it 120 seconds instead of 30;
 * "case: terminal" runs it on a pseudo-terminal.
 */
#ifndef TESTS_CASES_CASE_H
#define TESTS_CASES_CASE_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline void case_sleep_ms(long ms)
{
	struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

/* True once the runner requests the check: for cases that are active while they wait. */
static inline int case_going(void)
{
	const char *go = getenv("CASE_GO");

	return go == NULL || access(go, F_OK) == 0;
}

static inline void case_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static inline void case_wait(void)
{
	case_ready();
	while (!case_going())
		case_sleep_ms(20);
}

__attribute__((format(printf, 3, 4), noreturn)) static inline void case_fail_at(const char *file, int line,
										const char *fmt, ...)
{
	int saved = errno;
	va_list args;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fprintf(stderr, " (errno %d, %s)\n", saved, strerror(saved));
	exit(1);
}

__attribute__((noreturn)) static inline void case_pass(void)
{
	printf("pass\n");
	exit(0);
}

__attribute__((noreturn)) static inline void case_skip(const char *why)
{
	printf("skip: %s\n", why);
	exit(77);
}

#define case_fail(...) case_fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition))                                                                            \
			case_fail("failed: %s", #condition);                                                 \
	} while (0)

#endif
