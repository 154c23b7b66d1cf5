/*
 * What /proc/PID has, with the names that the programs of the name space know: numbers of processes, paths of
 * mapped files and of links. Used by scips for processes of this host and by pbeamd for those that others
 * ask for.
 */
#ifndef NAMESPACE_PROC_TEXT_H
#define NAMESPACE_PROC_TEXT_H

#include "namespace/paths.h"

/* The translations themselves: `text` (NUL-terminated) to `out`. -ENOSPC when it does not fit, else the
 * length. */
must_check int proc_text_stat(struct names *names, const char *text, char *out, size_t size);
must_check int proc_text_status(struct names *names, const char *text, char *out, size_t size);
must_check int proc_text_numbers(struct names *names, const char *text, char *out, size_t size);

/* True if `file`, below /proc/PID, is one that can be read for a process of another host: its text is of the
 * process alone. "" is the directory itself, which cannot. */
bool proc_text_known(const char *file);
/* The text of `file` below /proc/PID of the process (real number) as programs of the job of `keeper` are to
 * see it; numbers of threads in `file` are virtual. *text is malloc'd. -ENOENT for other files than
 * proc_text_known() ones, -errno of reading it. */
must_check int proc_text_read(struct names *names, struct rpid keeper, pid_t pid, const char *file,
			      char **text, size_t *len);
/* The same for a link: exe, cwd, root. */
must_check int proc_text_link(struct names *names, struct rpid keeper, pid_t pid, const char *file,
			      char **text, size_t *len);
/* One file of /proc/PID, or of a thread of it where tid (real) is not 0: stat, status, children, maps; what
 * else it is called by is given as it is. `paths`: those of its job, may be NULL. */
must_check int proc_text_make(struct names *names, const struct paths *paths, pid_t pid, pid_t tid,
			      const char *leaf, char **text, size_t *len);
/* The start time in the text of a stat file, later by `ticks`; *text is replaced. */
must_check int proc_text_shift(char **text, size_t *len, int64_t ticks);

#endif
