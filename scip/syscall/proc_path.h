/* Paths into /proc, and of pseudo-terminals. Private to scip/syscall/. */
#ifndef SCIP_SYSCALL_PROC_PATH_H
#define SCIP_SYSCALL_PROC_PATH_H

#include "namespace/proc_text.h"
#include "scip/syscall/call.h"

enum proc_leaf {
	PROC_NOTHING,	  /* not a path into a process's part of /proc */
	PROC_ROOT,	  /* /proc itself */
	PROC_SELF,	  /* /proc/self, the link */
	PROC_THREAD_SELF, /* /proc/thread-self, the link */
	PROC_OTHER,	  /* a file below a process without numbers in it */
	PROC_TASK,	  /* .../task: names are thread numbers */
	PROC_STAT,
	PROC_STATUS,
	PROC_CHILDREN,
	PROC_MAPS,
};

struct proc_path {
	enum proc_leaf leaf;
	bool changed;		    /* `text` differs from what the program passed */
	bool read_only;		    /* a carried file that the job does not own: read only */
	int32_t pid, tid;	    /* real; tid 0 where the path names no thread */
	int32_t on_other_host;	    /* not 0: the process (virtual) is on another host, and `file` is */
	char file[64];		    /* the path below its directory, "" for the directory */
	char text[CALL_SLOT_BYTES]; /* the path with real numbers, relative or absolute as it was */
};

/* The state of a walk, also used in tests without a tracee. */
struct proc_walk {
	struct names *names;
	int32_t self_pid, self_tid; /* real */
	int depth;		    /* components below /proc; -1: not in /proc */
	bool task;		    /* the component after the process is "task" */
	bool (*is_other_host)(const struct call *call,
			      int32_t vpid); /* NULL: no process is on another host */
	const struct call *call;
	struct proc_path *out;
};
/* Walks `path`. With `given`, its numbers are the program's (virtual), else the kernel's. -ENAMETOOLONG. */
must_check int proc_walk(struct proc_walk *walk, const char *path, bool given);

/* Examines the path in argument `path_arg`, relative to the directory in `dir_arg` (-1: the working
 * directory). */
must_check int proc_path_find(struct call *call, int dir_arg, unsigned path_arg, struct proc_path *out);

/* The number in the absolute path /dev/pts/N, else -1. pts_path.c */
int32_t pts_number(const char *path);
/* True if the path leads to a pseudo-terminal whose number has diverged; its real path is in `out`. */
bool pts_path_find(const struct call *call, int dir_arg, const char *path, char *out, size_t size);
/* The program's number of the terminal. */
int32_t pts_virtual(const struct call *call, int32_t real);

#endif
