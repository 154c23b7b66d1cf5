/*
 * The contents of /proc/PID with virtual process numbers and the program's paths of mapped files and links.
 * Used by scips for processes of this host, and by pbeamd for requests from other hosts.
 */
#ifndef NAMESPACE_PROC_TEXT_H
#define NAMESPACE_PROC_TEXT_H

#include "namespace/paths.h"

/* The translations themselves: `text` (NUL-terminated) to `out`. -ENOSPC when it does not fit, else the
 * length. */
must_check int proc_text_stat(struct names *names, const char *text, char *out, size_t size);
must_check int proc_text_status(struct names *names, const char *text, char *out, size_t size);
must_check int proc_text_numbers(struct names *names, const char *text, char *out, size_t size);

/* True if `file`, below /proc/PID, can be read for a process of another host: it describes the process alone.
 * False for "", the directory itself. */
bool proc_text_known(const char *file);
/* The text of `file` below /proc/PID (real number) as the programs of `keeper`'s job see it; thread numbers
 * in `file` are virtual. The caller frees *text. -ENOENT unless proc_text_known(file), else -errno of reading
 * it. */
must_check int proc_text_read(struct names *names, struct rpid keeper, pid_t pid, const char *file,
			      char **text, size_t *len);
/* The same for a link: exe, cwd, root. */
must_check int proc_text_link(struct names *names, struct rpid keeper, pid_t pid, const char *file,
			      char **text, size_t *len);
/* One file of /proc/PID, or of its thread `tid` (real) if that is not 0. stat, status, children and maps are
 * translated, other files are returned unchanged. `paths`: the job's, may be NULL. */
must_check int proc_text_make(struct names *names, const struct paths *paths, pid_t pid, pid_t tid,
			      const char *leaf, char **text, size_t *len);
/* Adds `ticks` to the start time in the text of a stat file; *text is replaced. */
must_check int proc_text_shift(char **text, size_t *len, int64_t ticks);

#endif
