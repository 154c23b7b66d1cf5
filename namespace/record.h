/*
 * What the kernel does not report later, recorded when it happens: the paths of inotify watches, the seccomp
 * filters that programs install, the numbers of pseudo-terminals, the System V objects created. The records
 * are files of the job (RUNTIME/record/KEEPER.*), so that every scip and coordinator can read them and none
 * is lost when a scip dies. They are removed with the job.
 */
#ifndef NAMESPACE_RECORD_H
#define NAMESPACE_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "namespace/names.h"

/* `sdev`: the device as in fdinfo, the kernel's (major << 20 | minor). */
must_check int record_watch_add(struct rpid keeper, uint32_t sdev, uint64_t ino, const char *path);
/* Returns the path last recorded for the inode. 0, -ENOENT, -ENAMETOOLONG. */
must_check int record_watch_find(struct rpid keeper, uint32_t sdev, uint64_t ino, char *path, size_t size);

/* Appends a filter (struct sock_filter[], bytes a multiple of 8) that the process installed. */
must_check int record_filter_add(struct rpid keeper, struct vpid vpid, const void *filter, size_t bytes);
/* A child inherits its parent's filters. No effect if there are none. */
must_check int record_filter_inherit(struct rpid keeper, struct vpid parent, struct vpid child);
/* Returns filter `index`, oldest first; the caller frees it. 1, or 0 when there are no more. */
must_check int record_filter_get(struct rpid keeper, struct vpid vpid, unsigned index, void **filter,
				 size_t *bytes);
/* A rollback (names_replace_begin()): the records of the process are kept until names_replace_end(), while
 * the new process with this number gets its own. */
must_check int record_filter_set_aside(struct rpid keeper, struct vpid vpid);
/* With `committed` what was set aside is removed, else put back. */
void record_filter_settle(struct rpid keeper, bool committed);
/* The process has ended. */
void record_filter_forget(struct rpid keeper, struct vpid vpid);

/* The job's terminal /dev/pts/`virtual` is /dev/pts/`real`. Replaces earlier bindings of either number. */
must_check int record_pts_bind(struct names *names, struct rpid keeper, int32_t virtual, int32_t real);
/* A number that has not diverged stays the same; one that is only the real number of another terminal gives
 * one that no terminal has. */
int32_t record_pts_real(struct rpid keeper, int32_t virtual);
/* The reverse. A terminal whose real number is another's virtual number in the job gets a new one, recorded.
 */
int32_t record_pts_virtual(struct names *names, struct rpid keeper, int32_t real);

/* Records a System V object that a process of the job created, by its real id. */
must_check int record_ipc_add(struct rpid keeper, enum names_ipc kind, int32_t real);
/* Lists all that were created, each once, in ascending order; some may have been removed. The caller frees
 * *ids. */
must_check int record_ipc_list(struct rpid keeper, enum names_ipc kind, int32_t **ids, size_t *n);

/* Records the peer of a UNIX socket, by its inode, in place of the kernel's SO_PEERCRED. */
must_check int record_peer_add(struct rpid keeper, uint64_t ino, struct vpid peer);
/* 0 if nothing is recorded: SO_PEERCRED is right. */
struct vpid record_peer_find(struct rpid keeper, uint64_t ino);
/* All sockets of the job have been closed. */
void record_peer_forget(struct rpid keeper);

/* The job has ended, or a new keeper has this number. */
void record_forget_job(struct rpid keeper);

#endif
