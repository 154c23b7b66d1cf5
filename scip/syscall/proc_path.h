/* Paths into /proc: whose they are; and those of pseudo-terminals. Private to scip/syscall/. */
#ifndef SCIP_SYSCALL_PROC_PATH_H
#define SCIP_SYSCALL_PROC_PATH_H

#include "namespace/proc_text.h"
#include "scip/syscall/call.h"

enum proc_leaf {
	PROC_NOTHING,	  /* not a path into a process's part of /proc */
	PROC_ROOT,	  /* /proc itself */
	PROC_SELF,	  /* /proc/self, the link */
	PROC_THREAD_SELF, /* /proc/thread-self, the link */
	PROC_OTHER,	  /* something below a process, with nothing to translate in it */
	PROC_TASK,	  /* .../task: names are thread numbers */
	PROC_STAT,
	PROC_STATUS,
	PROC_CHILDREN,
	PROC_MAPS,
};

struct proc_path {
	enum proc_leaf leaf;
	bool changed;		    /* `text` differs from what the program passed */
	bool read_only;		    /* it is a file that came along and is not the job's own */
	int32_t pid, tid;	    /* real; tid 0 where the path names no thread */
	int32_t far;		    /* not 0: the process (virtual) is on another host, ... */
	char file[64];		    /* ... and this is wanted of it, "" for its directory */
	char text[CALL_SLOT_BYTES]; /* the path with real numbers, as relative or absolute as it was */
};

/* Where a path starts from and how far it is: also what is tested without a tracee. */
struct proc_walk {
	struct names *names;
	int32_t self_pid, self_tid; /* real */
	int depth;		    /* components below /proc so far; -1: not in /proc */
	bool task;		    /* the component after the process is "task" */
	bool (*is_far)(const struct call *call, int32_t vpid); /* on another host? NULL: none is */
	const struct call *call;
	struct proc_path *out;
};
/* Goes down `path`. `given`: numbers in it are the program's (virtual), else the kernel's. -ENAMETOOLONG. */
must_check int proc_walk(struct proc_walk *walk, const char *path, bool given);

/* The path in argument `path_arg`, of /proc or /dev/pts, relative to the directory in `dir_arg` (-1: the
 * working directory). */
must_check int proc_path_find(struct call *call, int dir_arg, unsigned path_arg, struct proc_path *out);

/* The number in an absolute path that is /dev/pts/N, else -1. pts_path.c */
int32_t pts_number(const char *path);
/* True and where it is now in `out` if the path leads to a pseudo-terminal whose number diverged. */
bool pts_path_find(const struct call *call, int dir_arg, const char *path, char *out, size_t size);
/* The number by which the program knows the terminal. */
int32_t pts_virtual(const struct call *call, int32_t real);

#endif
