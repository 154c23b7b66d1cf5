#include "base/log.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/parse.h"
#include "base/text.h"

enum { LINE_MAX_BYTES = 2048, LOG_MAX_DEFAULT = 8 << 20, LOCK_TRIES = 10 };
#define COUNT_EVERY_NS 60000000000ull

/* The one piece of process-wide state besides stdio: where lines go, set once at start, and the last one. */
static struct {
	char program[32];
	int fd;
	bool shared; /* RUNTIME/log, with other writers */
	dev_t dev;   /* of that file: a child that closes descriptors may get the number for another */
	ino_t ino;
	bool has_stderr; /* standard error leads there too */
	enum log_level level;
	uint64_t max; /* bytes */
	pthread_mutex_t mutex;
	pid_t pid;		   /* the process that counts: a forked one begins anew */
	char last[LINE_MAX_BYTES]; /* without its time */
	unsigned long repeated;	   /* times that it came again */
	uint64_t counted_ns;	   /* when it or its count was last written */
} log_state = {.program = "pbeam",
	       .fd = STDERR_FILENO,
	       .level = LOG_LEVEL_WARN,
	       .max = LOG_MAX_DEFAULT,
	       .mutex = PTHREAD_MUTEX_INITIALIZER};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static int log_open_file(const char *path)
{
	return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

void log_open(const char *program, const char *path)
{
	const char *want = getenv("PBEAM_LOG"), *most = getenv("PBEAM_LOG_SIZE");
	uint64_t max;

	snprintf(log_state.program, sizeof(log_state.program), "%s", program);
	for (unsigned i = 0; want && i < 4; i++)
		if (!strcmp(want, level_names[i]))
			log_state.level = (enum log_level)i;
	if (most && parse_size(most, &max, NULL) == 0 && max > 0)
		log_state.max = max;
	log_state.fd = STDERR_FILENO;
	log_state.shared = log_state.has_stderr = false;
	if (path) {
		int fd = log_open_file(path);

		if (fd >= 0)
			log_state.fd = fd;
	}
}

/* False if there is no directory for it. */
static bool log_path(char path[PATH_MAX + 8])
{
	if (dirs_runtime(path, NULL, NULL) < 0)
		return false;
	strcat(path, "/log");
	return true;
}

static void log_note_file(void)
{
	struct stat st;

	if (fstat(log_state.fd, &st) < 0)
		return;
	log_state.dev = st.st_dev;
	log_state.ino = st.st_ino;
}

void log_open_shared(const char *program)
{
	char path[PATH_MAX + 8];

	log_open(program, log_path(path) ? path : NULL);
	log_state.shared = log_state.fd != STDERR_FILENO;
	log_note_file();
}

void log_take_stderr(void)
{
	if (log_state.fd == STDERR_FILENO)
		return;
	dup2(log_state.fd, STDERR_FILENO);
	log_state.has_stderr = true;
}

/* ---- the size of the shared log ---- */

static bool is_same_log(const struct stat *st, const char *path)
{
	struct stat there;

	return lstat(path, &there) == 0 && there.st_ino == st->st_ino && there.st_dev == st->st_dev;
}

/* A stopped process may hold the lock, so it is waited for only a moment. */
static bool log_lock(int fd)
{
	for (int tries = 0; tries < LOCK_TRIES; tries++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return true;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return false;
}

/* `fd` is a description of its own: flock(2) does not exclude processes that share one by fork(). Only the
 * holder of the lock on the file that has the name may rename it, so that no writer moves a new log over the
 * old one. The others find another file under the name. */
static void log_rotate(int fd, const char *path)
{
	char old[PATH_MAX + 16];
	struct stat st;

	if (!log_lock(fd) || fstat(fd, &st) < 0)
		return;
	snprintf(old, sizeof(old), "%s.old", path);
	if (is_same_log(&st, path) && rename(path, old) < 0)
		return; /* the log grows on */
}

static void log_move(int fd)
{
	if (dup3(fd, log_state.fd, O_CLOEXEC) >= 0 && log_state.has_stderr)
		dup2(fd, STDERR_FILENO);
	log_note_file();
}

/* Checks that the log is short enough, and the one that other processes write: they rotate it, and a removed
 * directory is made again elsewhere (base/dirs.h). False if the descriptor is not the log any more. */
static bool log_follow(void)
{
	char path[PATH_MAX + 8];
	struct stat st;

	if (fstat(log_state.fd, &st) < 0 || st.st_dev != log_state.dev || st.st_ino != log_state.ino)
		return false;
	if ((st.st_nlink > 0 && (uint64_t)st.st_size < log_state.max) || !log_path(path))
		return true;
	auto_close int fd = log_open_file(path);
	if (fd >= 0 && is_same_log(&st, path))
		log_rotate(fd, path);
	auto_close int next = log_open_file(path);
	if (next >= 0)
		log_move(next);
	return true;
}

/* ---- lines ---- */

/* There is nowhere to report a failed write: the line is lost. */
static void log_write(const char *text)
{
	char line[LINE_MAX_BYTES + 64];
	struct timespec now;
	int n;

	clock_gettime(CLOCK_REALTIME, &now);
	n = log_state.fd == STDERR_FILENO
		    ? snprintf(line, sizeof(line), "%s: %s\n", log_state.program, text)
		    : snprintf(line, sizeof(line), "%lld.%06ld [%d] %s\n", (long long)now.tv_sec,
			       now.tv_nsec / 1000, (int)getpid(), text);
	if (log_state.shared && !log_follow())
		return;
	if (write(log_state.fd, line, (size_t)n) < 0)
		return;
}

/* The count of an unchanging line is written at each power of ten and once a minute: a process that is killed
 * leaves at least that, and the log tells that the line still comes. */
static bool log_is_count_due(uint64_t now)
{
	unsigned long tens = 10;

	while (tens < log_state.repeated)
		tens *= 10;
	return tens == log_state.repeated || now - log_state.counted_ns >= COUNT_EVERY_NS;
}

/* True if the line is only counted. */
static bool log_is_repeated(const char *text)
{
	const bool repeated = log_state.pid == getpid() && strcmp(text, log_state.last) == 0;
	const uint64_t now = io_now_ns(CLOCK_MONOTONIC);
	char count[64];

	if (log_state.pid != getpid())
		log_state.repeated = 0;
	log_state.repeated += repeated;
	if (repeated ? log_is_count_due(now) : log_state.repeated > 0) {
		snprintf(count, sizeof(count), "the last message was repeated %lu times", log_state.repeated);
		log_write(count);
		log_state.counted_ns = now;
	}
	if (repeated)
		return true;
	log_state.pid = getpid();
	log_state.repeated = 0;
	log_state.counted_ns = now;
	snprintf(log_state.last, sizeof(log_state.last), "%s", text);
	return false;
}

int log_enabled(enum log_level level)
{
	return level <= log_state.level;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	char line[LINE_MAX_BYTES];
	int n = 0, m;
	bool repeated = false;
	va_list ap;

	if (!log_enabled(level))
		return;
	if (log_state.fd != STDERR_FILENO)
		n = snprintf(line, sizeof(line), "%s: ", level_names[level]);
	va_start(ap, fmt);
	m = vsnprintf(line + n, sizeof(line) - (size_t)n, fmt, ap);
	va_end(ap);
	if (m < 0)
		return;
	text_make_visible(line, sizeof(line));
	/* A thread that finds the lock taken does not wait: its holder may have been in another process
	 * (fork). */
	if (log_state.fd != STDERR_FILENO && pthread_mutex_trylock(&log_state.mutex) == 0) {
		repeated = log_is_repeated(line);
		pthread_mutex_unlock(&log_state.mutex);
	}
	if (!repeated)
		log_write(line);
}
