#include "base/log.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/dirs.h"
#include "base/text.h"

/* The one piece of process-wide state besides stdio: where lines go, set once at start. */
static struct {
	char program[32];
	int fd;
	enum log_level level;
} log_state = {"pbeam", STDERR_FILENO, LOG_LEVEL_WARN};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_open(const char *program, const char *path)
{
	const char *want = getenv("PBEAM_LOG");

	snprintf(log_state.program, sizeof(log_state.program), "%s", program);
	for (unsigned i = 0; want && i < 4; i++)
		if (!strcmp(want, level_names[i]))
			log_state.level = (enum log_level)i;
	log_state.fd = STDERR_FILENO;
	if (path) {
		int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

		if (fd >= 0)
			log_state.fd = fd;
	}
}

void log_open_shared(const char *program)
{
	char dir[PATH_MAX], path[PATH_MAX + 8];
	bool found = dirs_runtime(dir, NULL, NULL) == 0;

	snprintf(path, sizeof(path), "%s/log", found ? dir : "");
	log_open(program, found ? path : NULL);
}

void log_take_stderr(void)
{
	if (log_state.fd != STDERR_FILENO)
		dup2(log_state.fd, STDERR_FILENO);
}

int log_enabled(enum log_level level)
{
	return level <= log_state.level;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	char line[2048];
	struct timespec now;
	int n = 0, m;
	va_list ap;

	if (!log_enabled(level))
		return;
	if (log_state.fd != STDERR_FILENO) {
		clock_gettime(CLOCK_REALTIME, &now);
		n = snprintf(line, sizeof(line), "%lld.%06ld [%d] %s: ", (long long)now.tv_sec,
			     now.tv_nsec / 1000, (int)getpid(), level_names[level]);
	} else {
		n = snprintf(line, sizeof(line), "%s: ", log_state.program);
	}
	va_start(ap, fmt);
	m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (m < 0)
		return;
	n += m;
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	line[n] = 0;
	text_make_visible(line, sizeof(line) - 1);
	n = (int)strlen(line);
	line[n++] = '\n';
	if (write(log_state.fd, line, (size_t)n) < 0)
		return; /* there is nowhere to report a failed write */
}
