/*
 * The log: one line to standard error, or to the file given to log_open(), prefixed by the program's name.
 * Levels above the threshold cost a compare. The threshold comes from PBEAM_LOG (error, warn, info, debug;
 * default warn).
 *
 * In a file a line that equals the one before is counted, not written. The shared log, RUNTIME/log, is
 * bounded: the writer that finds it longer than PBEAM_LOG_SIZE (8 MiB) renames it to log.old, and every
 * writer goes on in the new one.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Names the program in every line and reads PBEAM_LOG. `path` is a file to append to, or NULL for standard
 * error. */
void log_open(const char *program, const char *path);
/* The same with RUNTIME/log (base/dirs.h), for programs in the background; standard error if it cannot be
 * opened. */
void log_open_shared(const char *program);

/* If the log is a file, redirects standard error to it, so that messages of libraries and sanitizers are
 * kept. */
void log_take_stderr(void);

/* True if lines of this level are written: guards expensive arguments. */
int log_enabled(enum log_level level);

void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)                                                                                       \
	do {                                                                                                 \
		if (log_enabled(LOG_LEVEL_DEBUG))                                                            \
			log_line(LOG_LEVEL_DEBUG, __VA_ARGS__);                                              \
	} while (0)

#endif
